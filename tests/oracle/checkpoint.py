"""The checkpoint, and the small JSON files of `config/` in fastjson's dialect."""

import json
import re
import struct
from dataclasses import dataclass

FILE_BYTES = 4096


@dataclass(frozen=True)
class Checkpoint:
    """RocketMQ's three timestamps, then cystore's own fields (zero where RocketMQ wrote the file)."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    durable_watermark: int = 0
    last_record: int = 0
    last_checksum: int = 0
    index_synced: int = 0


def parse(data: bytes) -> Checkpoint:
    numbers = struct.unpack_from(">qqqqqI", data)
    return Checkpoint(*numbers, struct.unpack_from(">q", data, 48)[0])


def encode(checkpoint: Checkpoint) -> bytes:
    c = checkpoint
    head = struct.pack(
        ">qqqqqI4xq",
        c.physic_ms,
        c.logics_ms,
        c.index_ms,
        c.durable_watermark,
        c.last_record,
        c.last_checksum,
        c.index_synced,
    )
    return head.ljust(FILE_BYTES, b"\0")


def parse_offsets(text: str) -> dict:
    """`{"offsetTable":{1:6,2:5}}`: JSON but for its unquoted integer keys, which become int."""
    quoted = re.sub(r"([{,]\s*)(-?\d+)(\s*:)", r'\1"\2"\3', text)

    def integer_keys(pairs):
        return {int(k) if re.fullmatch(r"-?\d+", k) else k: v for k, v in pairs}

    return json.loads(quoted, object_pairs_hook=integer_keys)["offsetTable"]
