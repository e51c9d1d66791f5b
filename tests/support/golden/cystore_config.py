"""The settings of a golden store under cystore's names."""

NAMES = {
    "mapedFileSizeCommitLog": "mapped_file_size_commit_log_bytes",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue_bytes",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "mappedFileSizeConsumeQueueExt": "mapped_file_size_consume_queue_ext_bytes",
    "bitMapLengthConsumeQueueExt": "bit_map_length_consume_queue_ext",
}


def cystore_config(spec: dict) -> dict:
    """What shapes the files; how often RocketMQ flushed them when it wrote the store does not matter to a
    reader."""
    shaping = {ours: spec["config"][theirs] for theirs, ours in NAMES.items() if theirs in spec["config"]}
    return {**shaping, "record_format": "rocketmq"}
