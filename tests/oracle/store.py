"""A whole store directory: what a reader that opens it must see."""

from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle import index, queue, recovery
from tests.oracle.checkpoint import Checkpoint, parse
from tests.oracle.log import Log, read_log
from tests.oracle.record import Record

Queues = dict[tuple[str, int], queue.Queue]


@dataclass(frozen=True)
class Directory:
    """The files of a store before anything recovered them."""

    path: Path
    log: Log
    clean: bool
    checkpoint: Checkpoint
    entries: dict[tuple[str, int], dict[int, queue.Entry]]
    ext_files: dict[tuple[str, int], dict[int, bytes]]

    @property
    def watermark(self) -> int:
        return recovery.watermark(self.log, self.clean, self.checkpoint, self.entries)


@dataclass(frozen=True)
class View:
    """The recovered store."""

    outcome: recovery.Outcome
    records: list[Record]
    queues: Queues
    by_offset: dict[int, Record] = field(repr=False)

    def queue_messages(self, key: tuple[str, int]) -> dict[int, Record]:
        live = self.queues[key]
        return {
            offset: self.by_offset[entry.physical_offset]
            for offset, entry in live.entries.items()
            if offset >= live.minimum and not entry.is_hole
        }

    def offset_by_time(self, key: tuple[str, int], timestamp_ms: int) -> int:
        times = {offset: record.store_timestamp_ms for offset, record in self.by_offset.items()}
        return queue.offset_by_time(self.queues[key], times, timestamp_ms)

    def query(self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int | None = None):
        return index.query(
            self.records, topic, key, max_count, begin_ms, index.FOREVER_MS if end_ms is None else end_ms
        )


def read_directory(path: Path) -> Directory:
    checkpoint_file = path / "checkpoint"
    files = queue.read_queue_directories(path / "consumequeue")
    return Directory(
        path=path,
        log=read_log(path),
        clean=not (path / "abort").exists(),
        checkpoint=parse(checkpoint_file.read_bytes()) if checkpoint_file.exists() else Checkpoint(),
        entries={key: queue.read_entries(data) for key, data in files.items()},
        ext_files=queue.read_queue_directories(path / "consumequeue_ext"),
    )


def recover(directory: Directory, damaged_range: str = "keep", *, believe_queues: bool = True) -> View:
    """The store after recovery: `truncate` cuts at the first bad record as RocketMQ does, `keep` is cystore's
    rule. Without `believe_queues` all follows from the log."""
    if damaged_range == "truncate":
        outcome = recovery.truncated(directory.log, directory.clean, directory.checkpoint)
    else:
        start = recovery.start_file(directory.log, directory.clean, directory.checkpoint)
        ours = (directory.path / "commitlog" / "CYSTORE").exists()
        outcome = recovery.kept(directory.log, start, directory.watermark, in_time_order=ours)
    records = recovery.records_kept(directory.log, outcome)
    built = queue.entries_of(records)
    minimum = directory.log.minimum
    by_offset = {r.physical_offset: r for r in records}
    queues = {}
    believed = directory.entries if believe_queues else {}
    for key in sorted(set(built) | set(believed)):
        # An entry that the queue already has is kept (it may point to an ext unit), but for one that leads to a record
        # which damage swallowed; what is missing follows from the log.
        written = {
            offset: entry
            if entry.physical_offset in by_offset or not _inside(entry, minimum, outcome)
            else queue.HOLE
            for offset, entry in believed.get(key, {}).items()
        }
        queues[key] = queue.queue_of({**built.get(key, {}), **written}, minimum, outcome.end)
    return View(outcome, records, queues, by_offset)


def _inside(entry: queue.Entry, minimum: int, outcome: recovery.Outcome) -> bool:
    return not entry.is_hole and minimum <= entry.physical_offset < outcome.end


def index_files(directory: Path, slots: int, capacity: int) -> list[index.IndexFile]:
    files = sorted(p for p in directory.iterdir()) if directory.is_dir() else []
    return [index.IndexFile(slots, capacity, p.read_bytes()) for p in files]


def rocketmq_index(directory: Directory, view: View, slots: int, capacity: int) -> list[index.IndexFile]:
    """The index as RocketMQ has it after its own load: young files deleted after a crash, then what it
    dispatches again put in, the last record that a file holds a second time."""
    files = index_files(directory.path / "index", slots, capacity)
    if not directory.clean:
        files = [f for f in files if f.header.end_ms <= directory.checkpoint.index_ms]
        dispatched_from = view.outcome.start
    else:
        ends = (
            e.physical_offset + e.size
            for entries in directory.entries.values()
            for e in entries.values()
            if not e.is_hole
        )
        dispatched_from = max(ends, default=directory.log.minimum)
    again = [r for r in view.records if r.physical_offset >= dispatched_from]
    index.build(files, again, slots, capacity, repeat_last=True)
    return files
