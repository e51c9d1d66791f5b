"""The parts of a store over a log that a test wrote, put together without recovery: control block, queues, index,
reader; and a queue in memory, read by the kernel of `get`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cystore._native.derived.queue import BatchLimits, TagFilter
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.queue_reader import QueueReader
from cystore._native.memory.control import WROTE, Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.reader import Reader
from cystore.engine.files.segments import Mode
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.filters.sql import SqlFilter
from cystore.system import files
from tests.oracle.log import Log


@dataclass
class Parts:
    root: Path
    config: StoreConfig
    control: Control
    commit_log: CommitLog
    queues: ConsumeQueues
    index: IndexFiles
    dispatcher: Dispatcher
    reader: Reader


def write_log(root: Path, log: Log) -> None:
    directory = root / "commitlog"
    directory.mkdir(parents=True, exist_ok=True)
    for base, data in log.files.items():
        (directory / f"{base:020d}").write_bytes(data)


HOST = {"pid_namespace": 1, "boot_id": "boot", "c_library": "c"}


def control_block(config: StoreConfig, size: int = 1024, path: Path | None = None) -> Control:
    """A control block as the first attacher makes it: in memory of this process, or in a file that others can join."""
    length = Control.size_bytes(size)
    if path is not None:
        path.write_bytes(bytes(length))
    return Control.create(
        MappedFile.anonymous(0, length) if path is None else files.map_file(path, 0, length),
        commit_log_file_bytes=config.mapped_file_size_commit_log_bytes,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue_bytes,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        max_queues=size,
        **HOST,
    )


def join_control(path: Path) -> Control:
    """A second process's handle on a control block in a file."""
    return Control.attach(files.map_file(path, 0, path.stat().st_size), **HOST)


def attach(
    root: Path,
    config: StoreConfig,
    *,
    minimum: int,
    wrote: int,
    dispatched: int | None = None,
    holes: list[tuple[int, int]] | None = None,
    control: Control | None = None,
    mode: Mode = Mode.WRITE,
) -> Parts:
    """`control` of another `attach` makes this one a second process's handle on the same store."""
    listed = DamagedRanges(DamagedRange(begin, end) for begin, end in holes or ())
    if control is None:
        control = control_block(config)
        control.min_physical_offset, control.wrote = minimum, wrote
        control.dispatched = minimum if dispatched is None else dispatched
        if mode is Mode.PRIVATE:
            manifest = Manifest.private(root, listed, GivenUp())
        else:
            manifest = Manifest.load(root, None, lambda: Facts(damaged_ranges=listed))
            manifest.set_damaged_ranges(listed)
            manifest.share(control)
    else:
        manifest = Manifest.load(root, control)
        if listed:
            manifest.set_damaged_ranges(listed)
    commit_log = CommitLog(root, config, mode, control, manifest)
    queues = ConsumeQueues(root, config, mode, control)
    index = IndexFiles(root, config, mode, control)

    def more_queues() -> None:
        step = control.more_queue_bytes()
        control.publish_queue_capacity(step[1])

    dispatcher = Dispatcher(control, commit_log, queues, index, config, more_queues=more_queues)
    control.on_repair("dispatch", dispatcher.repair)
    reader = Reader(control, commit_log, queues, index, dispatcher, config)
    return Parts(root, config, control, commit_log, queues, index, dispatcher, reader)


class QueueInMemory:
    """Queue T/0 of a log that ends at `wrote`. What is missing cannot be made again."""

    def __init__(self, wrote: int, limits: BatchLimits) -> None:
        self.control = control_block(StoreConfig(), 64)
        self.slot = self.control.add_queue("T", 0)
        self.control.wrote = self.control.dispatched = wrote
        self._windows: list[LogWindow] = []
        counts = ReadCounts(self.control, lambda: None)
        self._reader = QueueReader(
            self.control, self, None, limits, self._windows, counts, SqlFilter, None, WROTE
        )

    def fill(self, entries: bytes) -> None:
        """The entries of the queue from now on. There are never fewer than before."""
        self._file = MappedFile.anonymous(0, len(entries))
        self._file.write(0, entries)
        self._reader.forget_files()
        for move in (self.control.set_queue_next, self.control.set_queue_dispatched):
            move(self.slot, len(entries) // ENTRY_BYTES)

    def get(
        self,
        first: int,
        count: int,
        *,
        window: LogWindow,
        tags: TagFilter | None = None,
        raw: bool = False,
    ) -> tuple[GetResult, int]:
        """The answer of a get that looks through the window, and the number of entries examined."""
        self._window: LogWindow | None = window
        try:
            result = self._reader.batch(b"T", 0, first, count, raw, tags, None, None, None, WROTE)
        finally:
            self._windows.clear()
            self._window = None
        return result, result.next_offset - first

    # ------------------------------------------------------------- what the kernel asks QueueObstacles for

    def window(self) -> LogWindow | None:
        return self._window

    def file_of(self, slot: int, queue_offset: int) -> MappedFile:
        return self._file

    def forget_cleaned(self) -> None:
        """The window lets the segments go in the next get."""

    def heal(self, slot: int, queue_offset: int, tries: int) -> bool:
        return False

    def from_log(self, slot: int, queue_offset: int, room: int, walks: int) -> None:
        return None

    def behind_file(self, slot: int, queue_offset: int) -> int:
        return queue_offset + 1
