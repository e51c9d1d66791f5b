"""Settings that are the store's and not a process's. They stand in the manifest.

The first process that opens the store for writing enters the settings that shape the files (`SHAPE`); lengths of
existing files win. A process that gives another value is refused. A process that gives none takes the store's.

The process that makes the store enters the retention policy (`RETENTION`). In a store of an older version, the first
process that gives a value enters it. A different value that a process gives later is ignored with a warning: a worker
with outdated settings must start all the same, and must not delete messages that other workers keep.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from cystore.config import DEFAULTS, EXT_UNIT_FIXED_BYTES, KEPT, LOG_PATHS, StoreConfig, value_text
from cystore.engine.files.log_folders import check_new_folders
from cystore.engine.manifest.manifest import Facts, Manifest, look
from cystore.errors import StoreConfigError, StoreFormatError

log = logging.getLogger("cystore")

EXT_END_BYTES = 4  # of the mark that ends a file of extended entries
LOG_FILE, QUEUE_FILE = "mapped_file_size_commit_log_bytes", "mapped_file_size_consume_queue_bytes"
DELAY_LEVELS = "message_delay_level"
LIGHT_QUEUES = ("enable_lmq", "enable_multi_dispatch", "max_lmq_consume_queue_num")
POOL_ENABLE = "transient_store_pool_enable"
POOL = (POOL_ENABLE, "transient_store_pool_size")
SHAPE = (
    LOG_FILE,
    QUEUE_FILE,
    "enable_consume_queue_ext",
    "mapped_file_size_consume_queue_ext_bytes",
    "bit_map_length_consume_queue_ext",
    "max_hash_slot_num",
    "max_index_num",
    "message_index_enable",
    "record_format",
    *LIGHT_QUEUES,
    DELAY_LEVELS,
    *POOL,
    *LOG_PATHS,
)
# Settings of each process, for a store with a pool.
OF_POOL = (
    "fast_fail_if_no_buffer_in_store_pool",
    "commit_interval_commit_log_ms",
    "commit_commit_log_least_pages",
    "commit_commit_log_thorough_interval_ms",
)
RETENTION = (
    "file_reserved_time_h",
    "delete_when",
    "compacted_topics",
    "roll_interval_h",
    "disk_max_used_space_ratio",
    "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio",
    "clean_file_forcibly_enable",
    "min_free_bytes",
    "quarantine_reserved_time_h",
    "quarantine_bytes_max",
)


CHANGEABLE = (*RETENTION, DELAY_LEVELS, *LIGHT_QUEUES, *POOL, *LOG_PATHS)


def effective(config: StoreConfig, facts: Facts | None) -> StoreConfig:
    """`config` with the store's own settings that shape its files. Raises StoreConfigError for another value, and
    StoreFormatError for a manifest with impossible values."""
    if facts is None or not facts.settings:
        _refuse_unused(config)
        _refuse_one_of_two(config)
        _refuse_pool(config, {name for name in (*POOL, *OF_POOL) if config.gives(name)})
        return config
    theirs = {name: value for name, value in facts.settings.items() if name in SHAPE}
    theirs = dict.fromkeys(LOG_PATHS, "") | theirs
    try:
        found = config.but(**theirs)
    except StoreConfigError as error:
        raise StoreFormatError(f"the manifest's settings cannot be used: {error}") from error
    for name in theirs:
        if config.gives(name) and _differs(name, config, found):
            raise StoreConfigError(
                f"{name}: this store was made with {getattr(found, name)!r}, and this process gives "
                f"{getattr(config, name)!r} "
                f"({config.source(name)}); leave the setting out"
                + (
                    f", or change it for all: cystore config PATH --set {name}=VALUE"
                    if name in CHANGEABLE
                    else ""
                )
            )
    _refuse_one_of_two(found)
    _refuse_pool(found, {name for name in (*POOL, *OF_POOL) if name not in theirs and config.gives(name)})
    return found


def _refuse_unused(config: StoreConfig) -> None:
    """The length of filter bitmaps says nothing about a store without extended entries. With them it is whole bytes,
    and a file has room for a unit."""
    bits, name = config.bit_map_length_consume_queue_ext, "bit_map_length_consume_queue_ext"
    file_bytes = config.mapped_file_size_consume_queue_ext_bytes
    if config.enable_consume_queue_ext and bits % 8:
        raise StoreConfigError(f"{name}: {bits} bits are no whole bytes; give a multiple of 8")
    if config.enable_consume_queue_ext and not has_room_for_bitmaps(bits, file_bytes):
        raise StoreConfigError(
            f"{name}: {bits} bits do not fit into a file of mapped_file_size_consume_queue_ext_bytes={file_bytes}"
        )
    if bits != DEFAULTS[name] and not config.enable_consume_queue_ext:
        raise StoreConfigError(
            f"{name}: {bits} is the length of the filter bitmaps of extended entries, and this store "
            "has none; give enable_consume_queue_ext=True too, or leave the setting out"
        )


def has_room_for_bitmaps(bits: int, file_bytes: int) -> bool:
    """Whether a file of extended entries has room for a unit with a bitmap, and for the mark that ends the file."""
    return EXT_UNIT_FIXED_BYTES + bits // 8 + EXT_END_BYTES <= file_bytes


def _refuse_one_of_two(config: StoreConfig) -> None:
    """RocketMQ's light queues need two settings; one alone would do nothing."""
    if config.enable_lmq != config.enable_multi_dispatch:
        one, other = "enable_lmq", "enable_multi_dispatch"
        if config.enable_multi_dispatch:
            one, other = other, one
        raise StoreConfigError(f"{one} is on and {other} is off: light queues need both")


def _refuse_pool(config: StoreConfig, given: set[str]) -> None:
    """A pool is for asynchronous flush (MessageStoreConfig.isTransientStorePoolEnable); without one its other `given`
    settings would do nothing. A reader has no part in a pool."""
    if config.read_only:
        return
    if config.transient_store_pool_enable and config.flush_disk_type == "sync":
        raise StoreConfigError(
            "transient_store_pool_enable goes with flush_disk_type='async': with 'sync' each put would wait for a "
            "commit and a flush. A single put may have flush='sync'"
        )
    if not config.transient_store_pool_enable:
        for name in (*POOL[1:], *OF_POOL):
            if name in given and getattr(config, name) != DEFAULTS[name]:
                raise StoreConfigError(
                    f"{name} is for a store with transient_store_pool_enable, which this one is not"
                )


def _differs(name: str, one: StoreConfig, other: StoreConfig) -> bool:
    if name == DELAY_LEVELS:
        return one.delay_levels_ms() != other.delay_levels_ms()
    if name in LOG_PATHS:
        return one.paths_of(name) != other.paths_of(name)
    return bool(getattr(one, name) != getattr(other, name))


def effective_at(config: StoreConfig, root: Path) -> StoreConfig:
    """`effective` for the store in a directory."""
    try:
        return effective(config, look(root).facts)
    except StoreFormatError as error:
        raise error if error.path is not None else StoreFormatError(str(error), path=root) from error


def enter_settings(
    manifest: Manifest, config: StoreConfig, *, new: bool, log_file_bytes: int = 0, queue_file_bytes: int = 0
) -> None:
    """Enters values that the store does not have yet. `new`: this process makes the store. The lengths are those of
    existing files."""
    settings = manifest.snapshot().settings
    missing = {
        name: getattr(config, name)
        for name in SHAPE
        if name not in settings and _has(name, config) and not (settings and name in LOG_PATHS)
    }
    for name, length in ((LOG_FILE, log_file_bytes), (QUEUE_FILE, queue_file_bytes)):
        if name in missing and length > 0:
            missing[name] = length
    missing |= {
        name: getattr(config, name)
        for name in RETENTION
        if name not in settings and (new or config.gives(name))
    }
    if missing:
        manifest.update(lambda facts: dataclasses.replace(facts, settings={**missing, **facts.settings}))
    _tell_of_ignored(manifest, config)


def _has(name: str, config: StoreConfig) -> bool:
    """A store without a pool has no settings of one, so that a later open can enable it. A log with one folder has no
    setting of folders."""
    if name in LOG_PATHS:
        return bool(config.paths_of(name) != StoreConfig().paths_of(name))
    return name not in POOL or config.transient_store_pool_enable


def _tell_of_ignored(manifest: Manifest, config: StoreConfig) -> None:
    settings = manifest.snapshot().settings
    policy = config.but(**{name: settings[name] for name in KEPT if name in settings})
    for name in KEPT:
        if not getattr(policy, name) and not config.is_replaced(name):
            log.warning("%s: %s", manifest.root, policy.meaning(name))
    for name in RETENTION:
        given = getattr(config, name)
        if config.gives(name) and settings.get(name, given) != given and not config.is_replaced(name):
            log.warning(
                "%s: the store has %s; the %s that this process gives is ignored (`cystore config PATH --set "
                "%s=%s` changes it for all)",
                name,
                value_text(name, settings[name]),
                value_text(name, given),
                name,
                value_text(name, given),
            )


def configure(manifest: Manifest, changes: dict[str, Any]) -> None:
    """Changes the store's retention policy for all processes, also for those that have it open. Changed delay levels
    apply from the next open while no other process has the store open, and so do changed folders of the log. A value of
    None removes the store's own. Raises StoreConfigError."""
    for name in changes:
        if name not in CHANGEABLE:
            raise StoreConfigError(
                f"{name} is not a changeable setting of the store; changeable are {', '.join(CHANGEABLE)}"
            )
    given = {name: value for name, value in changes.items() if value is not None}
    plain = {name: value for name, value in given.items() if name not in LOG_PATHS}
    checked = StoreConfig.from_mapping(plain)
    changes = {**changes, **{name: getattr(checked, name) for name in plain}}
    if any(name in LOG_PATHS for name in given):
        check_new_folders(manifest.root, _paths({**manifest.snapshot().settings, **changes}))

    def change(facts: Facts) -> Facts:
        merged = {**facts.settings, **changes}
        light = {name: merged[name] for name in LIGHT_QUEUES if merged.get(name) is not None}
        _refuse_one_of_two(StoreConfig.from_mapping(light))
        paths = _paths(merged)
        merged |= {name: getattr(paths, name) or None for name in LOG_PATHS}
        return dataclasses.replace(facts, settings={k: v for k, v in merged.items() if v is not None})

    manifest.update(change)


def _paths(settings: dict[str, Any]) -> StoreConfig:
    """The settings that name the folders of the log."""
    return StoreConfig.from_mapping({name: settings[name] for name in LOG_PATHS if settings.get(name)})


def sources(config: StoreConfig, facts: Facts) -> dict[str, tuple[Any, str]]:
    """Each setting with the value that a process with `config` has, and the value's source: "store", or that of
    `StoreConfig.source`."""
    return {
        name: (facts.settings[name], "store")
        if name in facts.settings and name in (*SHAPE, *RETENTION)
        else (value, config.source(name))
        for name, value in dataclasses.asdict(config).items()
    }


class Policy:
    """The retention policy as it is now: the store's, else this process's."""

    def __init__(self, manifest: Manifest, config: StoreConfig) -> None:
        self._manifest, self._given = manifest, config
        self._sequence, self._now = -1, config

    def now(self) -> StoreConfig:
        """All settings; those of the retention policy are the current ones."""
        facts = self._manifest.snapshot()
        if facts.sequence != self._sequence:
            theirs = {name: value for name, value in facts.settings.items() if name in RETENTION}
            try:
                self._now = dataclasses.replace(self._given, **theirs)
            except StoreConfigError as error:
                log.error("the store's retention policy cannot be used: %s", error)
            self._sequence = facts.sequence
        return self._now
