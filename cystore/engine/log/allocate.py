"""Space ahead of need: segments are made, reserved on disk and faulted in before an append gets there.

Source: AllocateMappedFileService. Reserving in steps, and publishing the position, is ours: no process writes beyond
`allocated`, so a full disk is an error of fallocate and never a signal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.pace import Pace
from cystore.engine.files.progress import Progress
from cystore.engine.files.resident_pages import PUT_GROWTH_BYTES
from cystore.engine.log.active_segment import ActiveSegment
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.flush import refuse_writes
from cystore.engine.pool.buffers import BufferPool
from cystore.errors import QueuesFullError, StoreFullError, SyncFailedError
from cystore.layout import FLAGS
from cystore.system import files
from cystore.system.ranges.pages_ahead import PagesAhead
from cystore.system.threads.reentry import undisturbed

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
CONTROL_NAME = "control"
HEADROOM_NAME = "headroom"
FIRST_PAGES_BYTES = 64 * 1024  # faulted in by a put; the next put that reaches their end doubles that
MOST_BYTES = 1 << 62
# The room ahead grows with the log, up to the default of `allocate_ahead_bytes`: a store of a few records takes little
# disk, and a writer that begins fast waits for three short steps.
FIRST_AHEAD_BYTES, AHEAD_TIMES = 2 * 1024 * 1024, 4
MOST_PAGES_BYTES = 128 * 1024  # some 0.1 ms; where memory is scarce, 1 MiB took a put 20 ms of processor time
KEPT_WRITABLE_BYTES = 1024 * 1024  # ahead of the appends, looked after in each turn; some 20 µs
# The disk takes up to 0.3 s to make a name durable: so many bytes may be appended meanwhile.
FILES_AHEAD_BYTES = 64 * 1024 * 1024
MOST_FILES_AHEAD = 4  # of a store with small files
FILES_AHEAD_LEFT = 2  # after a clean close: RocketMQ's load looks for the log's end in the last three files
LOOK_MS, LOOKS = 2, 500  # a put that waits for the lock checks for room this often
READ_AHEAD_BYTES = 2 * 1024 * 1024  # in one go at least, some 0.2 ms
ROOM_READS = 2  # so often until appends may come to the end of their room: each waits for the interpreter
RESERVED_BYTES = 32 * 1024 * 1024  # in one go: the file system lets nobody else write to the file meanwhile
FAST_AHEAD_S, FAST_AHEAD_TIMES = 1.0, 4  # see `_room_ahead`
POPULATED_BYTES = 16 * 1024 * 1024  # in one turn, some 5 ms: the thread dispatches between two turns
OFTEN_SYNCS = 4  # in a turn: more than the service `flush` makes, so puts wait for them
WRITTEN_AHEAD_BYTES = 8 * 1024 * 1024  # some 10 ms of the disk
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]
HEADROOM_BYTES = 64 * 1024  # beside the control block: the tables in config/, first steps of consume queues


def without_room(path: Path, needed: int) -> StoreFullError:
    """The error of a store that lacks its reserved space: what an operator can do."""
    return StoreFullError(
        f"no space left on the disk: make {needed} bytes free, or remove expired segments with `cystore clean PATH`; "
        "if none has expired, `cystore clean PATH --forcibly` removes the oldest ones all the same",
        path=path,
    )


@contextlib.contextmanager
def writes_end_when_it_fails(control: Control, directory: Path) -> Iterator[None]:
    """A failed sync inside makes the store read-only for every process: later answers of such a disk prove nothing."""
    try:
        with files.translated(directory):
            yield
    except SyncFailedError as error:
        refuse_writes(control, error)
        raise


class Allocator:
    """Keeps the log allocated ahead of the wrote position. Any process may do it; the housekeeping lock lets one do it
    at a time. `grows`: the room ahead of a short log is less than `allocate_ahead_bytes`, which nobody asked for."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        config: StoreConfig,
        reserve: Callable[[int], None] = lambda queues: None,
        buffers: BufferPool | None = None,
        *,
        grows: bool = True,
    ) -> None:
        self._control, self._commit_log, self._reserve = control, commit_log, reserve
        self._buffers = buffers
        self._ahead_bytes = config.allocate_ahead_bytes
        self._populate_bytes = config.populate_ahead_bytes
        self._step_bytes = 0  # of a warm-up; 0: none
        self._syncs_steps = config.flush_disk_type == "sync"
        self._grows = grows and not config.warm_mapped_file_enable
        if config.warm_mapped_file_enable:
            self._ahead_bytes = self._populate_bytes = 2 * commit_log.file_bytes
            self._step_bytes = config.flush_least_pages_when_warm_mapped_file * PAGE_BYTES
        self.active = ActiveSegment(config.active_segment_memory)
        self._kept_writable = (-1, -1)  # (wrote position, number of the last flush)
        self._populated = 0  # of this process's mappings: log position up to which pages are faulted in
        self._read_ahead = (0, 0)  # range of log that this process read last, page by page in order
        self._written_ahead = 0  # log position up to which this process wrote empty pages to the disk
        self._pace = Pace(control)
        self._at_hand = 0  # log position up to which `fault_in` made pages ready
        self._own_end = 0  # the last result of `fault_in`: appends of this process ask again behind it
        self._pages_bytes = FIRST_PAGES_BYTES
        self._has_headroom = False

    def keep_headroom(self) -> None:
        """Reserves space for a clean and for the next recovery, which need some on a full disk: the table of queue
        offsets, and the control block. Neither the log nor a derived file grows before this space is reserved. Raises
        StoreFullError."""
        if not self._has_headroom:
            control = self._control
            step = control.more_queue_bytes()
            control_bytes = Control.size_bytes(control.max_queues) if step is None else step[0]
            self._keep_headroom(control_bytes, control.queue_capacity)
            self._has_headroom = True

    def _keep_headroom(self, control_bytes: int, queues: int) -> None:
        path = self._commit_log.files.root / HEADROOM_NAME
        length = control_bytes + HEADROOM_BYTES
        try:
            files.reserve(path, length)
            self._reserve(queues)
        except StoreFullError as error:
            raise without_room(path, length) from error

    def headroom_is_gone(self) -> None:
        """A write used up reserved space: `keep_headroom` reserves it again before anything grows."""
        self._has_headroom = False

    def lend_headroom(self) -> None:
        """Gives the reserved space to a write on a full disk."""
        self.headroom_is_gone()
        files.remove(self._commit_log.files.root / HEADROOM_NAME, durable=False)

    def make_room(self, needed: int) -> None:
        """Allocates the log at least up to `needed`, and some steps more if there is space. Raises StoreFullError."""
        since_s = monotonic_s()
        try:
            undisturbed(partial(self._make_room, needed))
        finally:
            self._control.count_room_wait(int(1000 * (monotonic_s() - since_s)))

    def _make_room(self, needed: int) -> None:
        """A put waits for this. The lock's holder publishes each piece that it makes, so the put continues when there
        is enough, even if the holder has not finished."""
        for _ in range(LOOKS):
            with self._control.held_if_free("housekeeping", within_ms=LOOK_MS) as turn:
                if turn.held:
                    return self._make_more_room(needed)
            if turn.mine:
                break
            if self._control.allocated >= needed:
                return None
        with self._control.held("housekeeping"):  # a long wait is logged
            return self._make_more_room(needed)

    def _make_more_room(self, needed: int) -> None:
        """`make_room`, under the housekeeping lock."""
        if self._control.allocated >= needed:
            return
        self.keep_headroom()
        try:
            # Makes only the files that this append needs: the name of each has to become durable first. The step is
            # short however fast appends come: they wait for it.
            step = min(self._target(self._usual_ahead), self._end_of_files(needed))
            self._allocate_up_to(max(needed, step))
        except StoreFullError:
            self._allocate_up_to(
                needed
            )  # the disk has no room for a whole step: allocate only for this append

    def _target(self, ahead_bytes: int, files_ahead: int = 1) -> int:
        """The end of the next step, at most `files_ahead` whole files ahead."""
        wrote, file_bytes = self._control.log_end, self._commit_log.file_bytes
        most = self._commit_log.files.base_of(wrote) + (1 + files_ahead) * file_bytes
        return min(wrote + ahead_bytes, most)

    @property
    def _usual_ahead(self) -> int:
        """`allocate_ahead_bytes`, and less while the log is short, unless that setting was given. A warm-up takes its
        whole files at once."""
        control = self._control
        if not self._grows:
            return self._ahead_bytes
        content = control.log_end - control.min_physical_offset
        return min(self._ahead_bytes, max(FIRST_AHEAD_BYTES, AHEAD_TIMES * content))

    @property
    def _room_ahead(self) -> int:
        """More than the usual for a slave whose master is fast. The disk may take 0.3 s to say which of
        its blocks are free; the records of that time need room. Puts go through the mapping: their pages are made with
        their room, and are slow if they are made so long before that they are in no cache any more."""
        ahead = self._usual_ahead
        if not self._control.flags & FLAG_SLAVE:
            return ahead
        fast = int(min(FAST_AHEAD_S * self._pace.bytes_per_s, FAST_AHEAD_TIMES * self._ahead_bytes))
        return max(ahead, fast)

    def _end_of_files(self, least: int = 0) -> int:
        """The end of the newest file of the log, or of the one that the byte in front of `least` will be in."""
        log, ready = self._commit_log.files, self._control.ready_base
        named = (
            ready + 1 if ready % log.file_bytes else ready + log.file_bytes
        )  # some process is making the file behind `ready`
        position = max(self._control.allocated, least)
        return max(named, -(-position // log.file_bytes) * log.file_bytes)

    def _allocate_up_to(self, end: int) -> None:
        """`_reserve_up_to`; after a failed sync every process refuses puts."""
        with writes_end_when_it_fails(self._control, self._commit_log.files.directory):
            self._reserve_up_to(end)

    def _reserve_up_to(self, end: int) -> None:
        """Called under the housekeeping lock. Each piece is published as soon as it is allocated, so a kill loses at
        most one step."""
        log = self._commit_log.files
        at = self._control.allocated
        while at < end:
            base = log.base_of(at)
            upto = min(base + log.file_bytes, max(end, at + PAGE_BYTES))
            upto = min(base + log.file_bytes, -(-upto // PAGE_BYTES) * PAGE_BYTES)
            if not self._has_file(at):
                log.forget(base)  # another process may have removed the file that was made ahead
                log.create(base, upto - base)
                self._control.count_file_made()
                self._control.ready_base = base
                failpoint("allocate.created")
            # If a kill came before a step was published, the file exists and may have less space than this step.
            log.allocate(base, at - base, upto - base)
            at = upto
            self._publish(at)

    def _has_file(self, at: int) -> bool:
        """Whether room at a log position needs no new file."""
        log = self._commit_log.files
        base = log.base_of(at)
        return at != base or (self._control.ready_base >= base and log.path(base).exists())

    def _publish(self, at: int) -> None:
        """Under the housekeeping lock: from now on appends may go to the room below `at`."""
        failpoint("allocate.reserved")
        self._control.allocated = at
        failpoint("allocate.published")

    def make_successors(self) -> None:
        """Makes the next files of the log, before room may be made in them. Otherwise a put that comes to the end of a
        file waits for the disk to make the next name durable. No lock is held meanwhile. One process makes a file; if
        it dies, a put makes the file. `remove_files_ahead` removes the files that RocketMQ would not expect."""
        log, control = self._commit_log.files, self._control
        file_bytes = log.file_bytes
        ahead = max(file_bytes // 2, min(file_bytes * MOST_FILES_AHEAD, FILES_AHEAD_BYTES))
        last, base = log.base_of(control.log_end + ahead), self._end_of_files()
        while base <= last:
            before = control.ready_base
            with control.held_if_free("housekeeping") as turn:
                if not turn.held or control.ready_base >= base - 1:
                    return
                control.ready_base = base - 1  # this process is making it
            self._make_file(base, before)
            base += file_bytes

    def _make_file(self, base: int, before: int) -> None:
        """Makes one file that this process announced in `ready_base`."""
        control, made = self._control, False
        try:
            with writes_end_when_it_fails(control, self._commit_log.files.directory):
                self._commit_log.files.create(base, 0)
            control.count_file_made()
            made = True
        finally:
            if control.ready_base == base - 1:
                control.ready_base = base if made else before

    def remove_files_ahead(self) -> None:
        """Leaves two files behind the log's end, for a store that is closed cleanly. In such a store RocketMQ looks for
        the end in the last three files, and would append to an empty one (CommitLog.recoverNormally). After a crash it
        looks at every file."""
        log = self._commit_log.files
        end = log.base_of(max(self._control.log_end - 1, 0)) + (1 + FILES_AHEAD_LEFT) * log.file_bytes
        ahead = [base for base in log.refresh() if base >= end]
        for base in reversed(ahead):
            log.remove(base, durable=False)
            failpoint("allocate.removed")
        if ahead:
            log.sync_removed()

    def more_queues(self) -> None:
        """Reserves memory for more queue slots in the control block. Raises QueuesFullError at max_queues."""
        undisturbed(self._add_queues)

    def _add_queues(self) -> None:
        with self._control.held("housekeeping"):
            step = self._control.more_queue_bytes()
            if step is None:
                raise QueuesFullError(
                    f"all {self._control.max_queues} queue slots are taken (max_queues)",
                    path=self._control.file.path,
                )
            block: MappedFile = self._control.file
            files.allocate_mapped(self._commit_log.files.root / CONTROL_NAME, block, step[0], step[1])
            self._keep_headroom(step[1], 2 * self._control.queue_capacity)  # more queues need more
            failpoint("allocate.slots_reserved")
            self._control.publish_queue_capacity(step[1])

    def run_once(self) -> Progress:
        """Reserves the next step once half of the last one is used, and faults in the next pages of this process. Does
        nothing in a store that was only read: the first append makes the first file.
        """
        control = self._control
        self._commit_log.forget_cleaned()
        if control.put_count == 0:
            return Progress(0)
        before = control.allocated
        self._pace.look()
        if not self._go_ahead():
            return Progress(0)  # another process is at work
        populated = 0
        if control.log_end <= self._at_hand:
            made = self._populated
            if not control.flags & FLAG_SLAVE:  # a slave writes most records to the file, and reads none back
                populated = self.populate_ahead()
            self._write_ahead()
            self._keep_writable(made)
        self.make_successors()
        self._go_ahead()
        return Progress(control.allocated - before + populated)

    @property
    def spectates(self) -> bool:
        """Whether other processes made all recent appends: the log's end is beyond the room that this one asked for."""
        return self._control.log_end > self._own_end

    def _go_ahead(self) -> bool:
        """Reserves the next step, in existing files, once half of the last one is used. False if another process has
        the lock, or has reserved it."""
        control, wrote = self._control, self._control.log_end
        in_memory = self._pace.fills_large_pages and not control.flags & FLAG_SLAVE
        ahead = self._room_ahead
        end = min(self._target(ahead, MOST_FILES_AHEAD if in_memory else 1), self._end_of_files())
        if control.allocated - wrote >= ahead // 2 or control.allocated >= end:
            return True
        while (at := control.allocated) < end:
            if self._has_headroom and self._has_file(at):
                if not self._go_on_in_file(at, end, in_memory):
                    return False
                continue
            with control.held_if_free("housekeeping") as turn:
                if not turn.held:
                    return False
                self.keep_headroom()
                self._allocate_up_to(min(max(end, control.allocated), at + PAGE_BYTES))
        return True

    def _go_on_in_file(self, begin: int, end: int, in_memory: bool) -> bool:
        """Makes some room from `begin` on, in one file. The lock is held only while the room is published: a put may
        wait for the lock, and this thread may wait for the disk or the interpreter. False if a put or another process
        made room meanwhile.

        `in_memory`: the pages are brought into memory before an append may come to them. No other thread touches them,
        so no put waits for a page that is half done. Reading in order makes large pages, which also cost the puts half
        as much to map.
        """
        control, log = self._control, self._commit_log.files
        at, base = begin, log.base_of(begin)
        end = min(-(-end // PAGE_BYTES) * PAGE_BYTES, base + log.file_bytes)
        if end - at > RESERVED_BYTES + RESERVED_BYTES // 2:  # a short rest would cost as many system calls
            end = at + RESERVED_BYTES
        with writes_end_when_it_fails(control, log.directory):
            log.allocate(base, at - base, end - base)
        with PagesAhead(log.path(base)) as pages:
            while at < end:
                upto = end
                if in_memory:
                    length = max(READ_AHEAD_BYTES, (at - control.log_end) // ROOM_READS)
                    upto = min((at + length) // PAGE_BYTES * PAGE_BYTES, end)
                    pages.read(at - base, upto - base)
                    self._read_ahead = (self._read_ahead[0] if self._read_ahead[1] == at else at), upto
                with control.held_if_free("housekeeping") as turn:
                    if not turn.held or control.allocated != at:  # a put, perhaps, made all of it
                        return turn.held and control.allocated >= end
                    self._publish(upto)
                at = upto
        return True

    def _keep_writable(self, made: int) -> None:
        """Faults in the pages of this process's next appends again, up to log position `made`: the kernel
        write-protects pages that it has written to disk, and the next append would wait in a page fault for the file
        system, with the lock held."""
        wrote = self._control.log_end
        state = wrote, self._control.flush_seq
        puts_made_them = wrote + MOST_PAGES_BYTES >= made
        if state == self._kept_writable or puts_made_them:
            return
        self._kept_writable = state
        segment = self._written_at(wrote)
        if segment is not None and segment.writable:
            with files.translated(segment.path):
                segment.populate(
                    wrote - segment.base,
                    min(wrote + KEPT_WRITABLE_BYTES, segment.end, made) - segment.base,
                )

    def _write_ahead(self) -> None:
        """Where puts wait for the disk: writes the next pages to it while they are empty. The first write of a page
        makes the file system note that its block is in use, and a sync waits for that note as long as for the bytes."""
        control, wrote = self._control, self._control.log_end
        begin, end = max(self._written_ahead, wrote), min(wrote + WRITTEN_AHEAD_BYTES, control.allocated)
        if self._pace.syncs < OFTEN_SYNCS or end - begin < WRITTEN_AHEAD_BYTES // 2:
            return
        segment = self._written_at(begin)
        if segment is None or not segment.writable or segment.in_memory:
            return
        end = min(end, segment.end)
        with files.translated(segment.path):
            if segment.populate(begin - segment.base, end - segment.base):
                self._sync_ahead(segment, begin, end)
        self._written_ahead = end

    def _written_at(self, position: int) -> MappedFile | None:
        """The memory that appends at a log position go to: the segment's, or that of its buffer."""
        base = self._commit_log.files.base_of(position)
        buffer = None if self._buffers is None else self._buffers.at_hand(base)
        return buffer or self._commit_log.files.get(base)

    def fault_in(self, begin: int, end: int) -> int:
        """Faults in pages for this process's appends, from log position `begin` up to `end` and a step more, as far as
        they are allocated; returns the end. A put waits for it, so the steps are small. They grow while this process
        continues where it stopped; a process that appends rarely beside others gets only what it needs."""
        self._own_end = self._fault_in(begin, end)
        self._commit_log.resident.look(PUT_GROWTH_BYTES)
        return self._own_end

    def _fault_in(self, begin: int, end: int) -> int:
        log, allocated = self._commit_log.files, self._control.allocated
        segment = self._written_at(begin)
        ended = (
            segment is None or not segment.writable
        )  # ended by another process: the put goes to the next segment
        if segment is None or ended:
            return log.base_of(begin) + log.file_bytes
        self.active.is_now(segment, begin, allocated)
        if self._populate_bytes == 0:
            return int(segment.end)
        end = min(end, segment.end)
        others = max(begin - self._at_hand, 0)
        grown = min(2 * self._pages_bytes, MOST_PAGES_BYTES) if others <= FIRST_PAGES_BYTES else 0
        self._pages_bytes = max(grown, FIRST_PAGES_BYTES)
        upto = min(max(end, begin + min(grown, self._populate_bytes)), segment.end, allocated)
        first, last = max(begin, self._populated), min(upto, begin + self._populate_bytes)
        if first < last:
            with files.translated(segment.path):
                if not segment.populate(first - segment.base, last - segment.base):
                    return int(segment.end)
            self._populated = last
        self._at_hand = max(upto, min(self._populated, segment.end))
        return self._at_hand

    def populate_ahead(self, ahead_bytes: int | None = None) -> int:
        """Faults in allocated pages ahead of the wrote position, in this process; returns the number of bytes, at most
        POPULATED_BYTES.

        Only for a process that appends: in others the work would be useless. A warm-up goes step by step, and with sync
        flush makes each step durable: else the first sync of a put would write all of it (MappedFile.warmMappedFile).
        """
        wrote = self._control.log_end
        begin = max(self._populated, wrote)
        end = min(
            wrote + (self._populate_bytes if ahead_bytes is None else ahead_bytes),
            self._control.allocated,
            begin + POPULATED_BYTES,
        )
        done = 0
        while begin < end:
            segment = self._written_at(begin)
            if (
                segment is None or not segment.writable
            ):  # cleaned, or ended by another process: appends continue behind it
                break
            upto = min(end, segment.end, begin + (self._step_bytes or MOST_BYTES))
            is_read = self._read_ahead[0] <= begin and upto <= self._read_ahead[1]
            if (
                self._pace.fills_large_pages
                and upto - begin >= READ_AHEAD_BYTES
                and not (is_read or segment.in_memory)
            ):
                with PagesAhead(self._commit_log.files.path(segment.base)) as pages:
                    pages.read(begin - segment.base, upto - segment.base)
            with files.translated(segment.path):
                if not segment.populate(begin - segment.base, upto - segment.base):
                    break
            if self._step_bytes and self._syncs_steps:
                self._sync_ahead(segment, begin, upto)
            done += upto - begin
            begin = self._populated = upto
        return done

    def _sync_ahead(self, segment: MappedFile, begin: int, end: int) -> None:
        with writes_end_when_it_fails(self._control, self._commit_log.files.directory):
            segment.sync_range(begin - segment.base, end - segment.base)
