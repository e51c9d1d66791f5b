"""Where a log ends after a restart: RocketMQ's rule, and cystore's, which keeps good records behind
damage."""

import struct
from dataclasses import dataclass, field

from tests.oracle.checkpoint import Checkpoint
from tests.oracle.log import Log
from tests.oracle.queue import Entry
from tests.oracle.record import BORN_HOST_V6, ROCKETMQ_MAGIC, Blank, NotValid, Record

CHECKPOINT_SLACK_MS = 3000
FILES_AFTER_CLEAN_CLOSE = 3


@dataclass(frozen=True)
class Outcome:
    """What recovery leaves: `end` of the log, damaged ranges that are stepped over, and the records to
    dispatch from."""

    start: int
    end: int
    holes: tuple[tuple[int, int], ...] = ()


def start_file(log: Log, clean: bool, checkpoint: Checkpoint) -> int:
    """The file that recovery begins with: the last third one after a clean close; after a crash the newest
    whose first record is older than the checkpoint, else the first."""
    bases = sorted(log.files)
    if clean:
        return bases[-FILES_AFTER_CLEAN_CLOSE:][0]
    limit = max(min(checkpoint.physic_ms, checkpoint.logics_ms) - CHECKPOINT_SLACK_MS, 0)
    for base in reversed(bases):
        data = log.files[base]
        sys_flag = struct.unpack_from(">i", data, 36)[0]
        time_at = 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
        store_ms = struct.unpack_from(">q", data, time_at)[0]
        if struct.unpack_from(">I", data, 4)[0] == ROCKETMQ_MAGIC and store_ms != 0 and store_ms <= limit:
            return base
    return bases[0]


def truncated(log: Log, clean: bool, checkpoint: Checkpoint) -> Outcome:
    """RocketMQ's rule: cut at the first record that is not valid. A blank counts when another file follows
    it."""
    start = end = start_file(log, clean, checkpoint)
    for offset, found in log.walk(start):
        if isinstance(found, Blank) and offset + found.size not in log.files:
            break
        end = offset + found.size
    return Outcome(start, end)


@dataclass
class _Sequence:
    """The conditions on a record above the watermark, beyond being valid by itself."""

    log_minimum: int
    in_time_order: bool
    next_offset: dict[tuple[str, int], int] = field(default_factory=dict)
    swallowed: set[tuple[str, int]] = field(default_factory=set)
    store_ms: int = 0

    def follows(self, record: Record) -> bool:
        if self.in_time_order and record.store_timestamp_ms < self.store_ms:
            return False
        queue = (record.topic, record.queue_id)
        if not record.in_queue:
            return True
        if queue not in self.next_offset:
            return record.queue_offset == 0 or self.log_minimum > 0 or bool(self.swallowed)
        known = self.next_offset[queue]
        return record.queue_offset == known or (queue in self.swallowed and record.queue_offset > known)

    def take(self, record: Record) -> None:
        self.store_ms = max(self.store_ms, record.store_timestamp_ms)
        if record.in_queue:
            queue = (record.topic, record.queue_id)
            self.next_offset[queue] = record.queue_offset + 1
            self.swallowed.discard(queue)

    def damage(self) -> None:
        """Any queue may have lost messages here, so each may go on at a higher offset once."""
        self.swallowed = set(self.next_offset) | {("", -1)}


def next_valid(log: Log, offset: int) -> int | None:
    """The lowest place behind `offset`, in any file, where a valid record stands under its own physical
    offset."""
    for base, data in sorted(log.files.items()):
        for at in range(max(offset + 1 - base, 0), len(data)):
            try:
                if isinstance(log.item(base + at), Record):
                    return base + at
            except NotValid:
                continue
    return None


def kept(log: Log, start: int, watermark: int, *, in_time_order: bool) -> Outcome:
    """cystore's rule. Below the watermark damage with valid records behind it is stepped over; with none it
    is cut. Above it the log ends before the first record that is not valid or does not follow."""
    sequence = _Sequence(log.minimum, in_time_order)
    for record in log.records(end=start):
        sequence.take(record)
    offset, end, holes = start, start, []
    while True:
        try:
            found = log.item(offset)
        except NotValid:
            resumed = next_valid(log, offset) if offset < watermark else None
            if resumed is None or resumed >= watermark:
                return Outcome(start, end, tuple(holes))
            holes.append((offset, resumed))
            sequence.damage()
            offset = end = resumed
            continue
        if isinstance(found, Blank):
            if offset + found.size not in log.files:
                return Outcome(start, end, tuple(holes))
        else:
            if offset >= watermark and not sequence.follows(found):
                return Outcome(start, end, tuple(holes))
            sequence.take(found)
        offset = end = offset + found.size


def watermark(
    log: Log, clean: bool, checkpoint: Checkpoint, queues: dict[tuple[str, int], dict[int, Entry]]
) -> int:
    """How far the log is known to be durable: what the checkpoint says where its last record is still there;
    else the last record that a consume queue points to (clean close), or the last up to the physic timestamp
    (crash)."""
    if checkpoint.durable_watermark:
        try:
            last = log.item(checkpoint.last_record)
        except NotValid:
            last = None
        if isinstance(last, Record) and last.checksum == checkpoint.last_checksum:
            return checkpoint.durable_watermark
    if clean:
        entries = (e for entries in queues.values() for e in entries.values() if not e.is_hole)
        return max((e.physical_offset + e.size for e in entries), default=log.minimum)
    mark, offset = log.minimum, log.minimum
    while offset is not None:
        for record in log.records(offset):
            offset = record.end
            if record.store_timestamp_ms <= checkpoint.physic_ms:
                mark = record.end
        offset = next_valid(log, offset)
    return mark


def records_kept(log: Log, outcome: Outcome) -> list[Record]:
    """Every record of the log below its end, holes stepped over."""
    begins = [log.minimum] + [end for _, end in outcome.holes]
    ends = [begin for begin, _ in outcome.holes] + [outcome.end]
    return [record for begin, end in zip(begins, ends, strict=True) for record in log.records(begin, end)]
