"""Reading a store whose live processes have a control block of another layout.

Such a reader does not attach and takes no lock. It follows the files, with a control block in its own memory. A private
recovery finds the content of the queues. After that each look walks the records that were committed since. Three words
of the live processes' block, which no layout moves, give the end of these records (`control_words`). The reader uses
queues and index of the live processes as far as these have dispatched, and walks the rest of the log itself, as every
read-only handle does.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cystore._native.append.appender import Appender
from cystore._native.derived.delay import Delivered
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.properties import queues_of
from cystore.attachment.assemble import compose
from cystore.attachment.attachment import Attachment
from cystore.clock import monotonic_s
from cystore.config import INT_MAX, StoreConfig
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.derived.files.index import DIRECTORY as INDEX
from cystore.engine.files.segments import POSITIONS_END, Mode
from cystore.engine.inspect.control_head import read_head
from cystore.engine.inspect.control_words import Words, read_words
from cystore.engine.log.allocate import CONTROL_NAME
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.manifest import FILE_NAME, Facts, Manifest, look
from cystore.engine.manifest.store_settings import effective_at
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
)
from cystore.layout import takes_queue_offset
from cystore.recovery.outcome import RecoveredState
from cystore.recovery.recover import recover
from cystore.system import files, folders, platform
from cystore.system.os_errors import is_missing
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

MANIFEST_S = (
    0.05  # a change of the manifest alone (a removed topic, listed damage) may be seen this much later
)
CLEANED_S = 30.0  # an open tries again for this time if other processes clean the files that it reads
MAX_QUEUES = 1 << 20  # the most queues of a store

Status = tuple[int, int, int] | None


class Beside:
    """This process's knowledge of a store that other processes write with another layout. `control` is this process's
    own block."""

    is_still = False

    def __init__(self, root: Path, words: Words, dispatched: int) -> None:
        self._root, self._words = root, words
        self._dispatched = dispatched  # read before recovery looked at the files
        self._seen: Words | None = None  # at the last complete look
        self._look_again_s = 0.0
        self._control: Control | None = None
        self._commit_log: CommitLog | None = None
        self._lock = os_threads.RLock()
        self._left = os_threads.Flag()
        self._walked = 0  # records below it are counted in their queues
        self._queues: ConsumeQueues | None = None
        self._followed = 0  # the log's minimum that the queues' minimums follow
        # Records that are counted and not dispatched: their end, the queue's slot, and its offset behind them.
        self._pending: deque[tuple[int, int, int]] = deque()
        self._manifest = self._status(FILE_NAME)
        self._facts = look(root).facts or Facts()
        self._index = self._status(INDEX)

    def manifest(self, state: RecoveredState, control: Control) -> Manifest:
        """The manifest as it is now, with the findings of a private recovery."""
        control.manifest_seq = self._facts.sequence
        facts = replace(self._facts, damaged_ranges=state.damaged_ranges, given_up=state.given_up)
        return Manifest(self._root, facts, control, durable=False)

    def enter(self, control: Control, state: RecoveredState) -> None:
        """Fills a new block with the findings of a private recovery, up to the position that the writing processes have
        committed."""
        control.min_physical_offset = state.min_physical_offset
        control.wrote = control.allocated = max(
            min(state.wrote, self._words.wrote), state.min_physical_offset
        )
        control.dispatched = max(
            min(state.dispatched, self._dispatched, control.wrote), state.min_physical_offset
        )
        control.last_store_timestamp_ms = state.last_store_timestamp_ms
        for topic, queue_id, dispatched, minimum, following in state.queues:
            control.add_queue(topic, queue_id, next=following, dispatched=dispatched, minimum=minimum)
        self._walked = control.dispatched
        self._followed = control.min_physical_offset
        control.follow()

    def begin(self, control: Control, commit_log: CommitLog, queues: ConsumeQueues) -> bool:
        """Lets `moved` look from now on. False if the view is already outdated."""
        self._control, self._commit_log, self._queues = control, commit_log, queues
        commit_log.look_again = self._take_minimum
        return not self.moved()

    def moved(self) -> bool:
        """Reads the commits and cleanings of the writing processes since the last look. True when this view is
        outdated: these processes are gone, or have repaired or cleaned records that it has not counted. Then the store
        is opened again."""
        if self._left.is_set():
            return True
        try:
            with self._lock:
                return self._look()
        except (OSError, ValueError):
            if not self._left.is_set():  # otherwise another thread closed the store just now
                raise
            return True

    def leave(self) -> None:
        """Ends the view: `moved` is True from now on."""
        self._left.set()

    def _look(self) -> bool:
        control, words = self._control, read_words(self._root)
        if control is None or words is None or words.generation != self._words.generation:
            return True
        if not folders.is_at_place(self._root):
            return True
        control.place_seen()
        if words == self._seen and monotonic_s() < self._look_again_s:
            return False  # nothing was committed, dispatched or cleaned since
        if not self._followed <= words.minimum <= self._walked or words.wrote < control.wrote:
            return True
        if self._facts_changed(control):
            return True
        self._raise_minimum(control, words)
        listed = self._status(INDEX)
        if listed != self._index:
            self._index = listed
            control.index_base = control.index_base  # this assignment counts as a change of the index files
        try:
            self._walk(control, words)
        except (OffsetError, StoreFullError):  # cleaned meanwhile; more queues than the table holds
            return True
        if words.minimum > self._followed:
            self._follow(control, words.minimum)
        if self._walked == words.wrote:
            self._seen, self._look_again_s = words, monotonic_s() + MANIFEST_S
        return False

    def _take_minimum(self) -> None:
        """Reads the present minimum: a file of the log is missing, and a writing process may have cleaned it."""
        control, words = self._control, read_words(self._root)
        if control is not None and words is not None and words.generation == self._words.generation:
            self._raise_minimum(control, words)

    def _raise_minimum(self, control: Control, words: Words) -> None:
        """Raises this view's minimum to that of the writing processes. Never moves it back, nor beyond the end that
        this view knows."""
        with self._lock:
            control.min_physical_offset = max(control.min_physical_offset, min(words.minimum, control.wrote))

    def _follow(self, control: Control, minimum: int) -> None:
        """Raises the queues' minimums to the log's. The writing processes do so too, and remove files of queues
        meanwhile."""
        assert self._queues is not None
        for slot in range(control.queue_count):
            queue, begin = self._queues.get(slot), -1
            while (bases := queue.files.refresh()) and bases[
                0
            ] != begin:  # otherwise no file was removed meanwhile
                begin = bases[0]
                control.raise_queue_minimum(slot, min(begin // ENTRY_BYTES, queue.max_offset))
                control.raise_queue_minimum(slot, queue.offset_at(minimum))
            if not bases:  # the queue's files were removed: no dispatched message is left
                control.raise_queue_minimum(slot, queue.max_offset)
        self._followed = minimum

    def _facts_changed(self, control: Control) -> bool:
        """Whether the manifest changed in a way that matters to readers."""
        status = self._status(FILE_NAME)
        if status == self._manifest:
            return False
        before, self._facts = self._facts, look(self._root).facts or self._facts
        self._manifest = status
        control.manifest_seq = self._facts.sequence
        now = self._facts
        return (before.damaged_ranges, before.given_up, before.removed) != (
            now.damaged_ranges,
            now.given_up,
            now.removed,
        )

    def _walk(self, control: Control, words: Words) -> None:
        commit_log = self._commit_log
        assert commit_log is not None
        if words.wrote > control.wrote:
            control.allocated = words.wrote
            control.wrote = words.wrote  # set before the queues count the records, as an append does
        if self._walked < words.wrote:
            try:
                self._count(control, commit_log, words.wrote)
                self._walked = words.wrote
            except CorruptRecordError as error:
                now = read_words(self._root)
                if now is None or now.minimum > self._walked:
                    raise OffsetError("cleaned while it was read", offset=self._walked) from error
                log.error(
                    "%s: this reader stops before damage that is not in the manifest yet: %s",
                    self._root,
                    error,
                )
            control.wake_append()
        dispatched = min(words.dispatched, self._walked)
        while self._pending and self._pending[0][0] <= dispatched:
            _, slot, following = self._pending.popleft()
            if following > control.queue_dispatched(slot):
                control.set_queue_dispatched(slot, following)
        if dispatched > control.dispatched:
            control.dispatched = dispatched

    def _count(self, control: Control, commit_log: CommitLog, end: int) -> None:
        """Counts the records up to a log position in their queues, and wakes the waiters for their keys."""
        for message in commit_log.scan(self._walked, end):
            assert message.physical_offset is not None and message.size_bytes is not None
            after = message.physical_offset + message.size_bytes
            if takes_queue_offset(message.sys_flag):
                for topic, queue_id, first in queues_of(message):
                    slot = control.find_queue(topic, queue_id)
                    if slot < 0:
                        slot = control.add_queue(topic, queue_id, next=first, dispatched=first, minimum=first)
                    if first >= control.queue_next(slot):
                        control.set_queue_next(slot, first + 1)
                    self._pending.append((after, slot, first + 1))
            control.last_store_timestamp_ms = message.store_timestamp_ms or 0
            control.last_record = message.physical_offset
            for key in message.keys:
                control.key_changed(zlib.crc32(key.encode("utf-8", "surrogatepass")))
            self._walked = after

    def _status(self, name: str) -> Status:
        with files.translated(self._root):
            try:
                found = (self._root / name).lstat()
            except FileNotFoundError:
                return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def can_only_be_followed(root: Path) -> bool:
    """Whether the attached processes have another layout that a reader can follow."""
    head = read_head(root)
    return head is not None and not head.is_ours and head.can_be_followed


def _check(root: Path, words: Words) -> None:
    """Raises StoreFormatError for a block with impossible values."""
    positions = (0, words.minimum, words.wrote, POSITIONS_END)
    if (
        list(positions) == sorted(positions)
        and 0 <= words.dispatched < POSITIONS_END
        and 0 < words.commit_log_file_bytes <= POSITIONS_END
        and 0 < words.consume_queue_file_bytes <= INT_MAX
        and 0 < words.max_hash_slot_num <= INT_MAX
        and 0 < words.max_index_num <= INT_MAX
        and 0 < words.max_queues <= MAX_QUEUES
    ):
        return
    raise StoreFormatError(
        f"the control block of the attached processes has another layout and impossible values ({words}): it was "
        "overwritten. Stop them, then "
        "open the store again: it recovers from its files",
        path=root / CONTROL_NAME,
    )


def read_beside(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment | None:
    """A view of a store that other processes write with another layout; None if they left meanwhile, or if others came.

    A cleaner may remove files that recovery is about to read, or has read. Then recovery begins again, for at most
    CLEANED_S.
    """
    first, missing, until_s = read_words(root), None, monotonic_s() + CLEANED_S
    before = first
    while first is not None and before is not None and before.generation == first.generation:
        _check(root, before)
        error: Exception | None = None
        try:
            attachment = _recovered(root, effective_at(config, root), before, revive, progress)
            if attachment is not None:
                return attachment
        except (StoreError, OSError) as caught:
            error = caught
        after = read_words(root)
        if error is not None and after == before:
            # A listed file that is gone was cleaned, because the minimum is published first. The next list lacks it.
            path = getattr(error, "path", None) if is_missing(error) else None
            if path is None or path == missing:
                raise error
            missing = path
        if monotonic_s() >= until_s:
            raise StoreLockedError(
                f"the store was cleaned or changed repeatedly for {CLEANED_S:.0f} s while it was read: try again",
                path=root,
            ) from error
        before = after
    return None


def _recovered(
    root: Path,
    config: StoreConfig,
    before: Words,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment | None:
    """One try of `read_beside`; None if its result is already outdated."""
    # The block has the end of the index; a check of the index files would take longer than everything else.
    state = recover(root, config, Mode.PRIVATE, abnormal=True, progress=progress, with_index=False)
    words = read_words(root)
    if words is None or words.generation != before.generation:
        return None
    _check(root, words)
    memory = MappedFile.anonymous(0, Control.size_bytes(words.max_queues))
    control = Control.create(
        memory,
        commit_log_file_bytes=words.commit_log_file_bytes,
        consume_queue_file_bytes=words.consume_queue_file_bytes,
        max_hash_slot_num=words.max_hash_slot_num,
        max_index_num=words.max_index_num,
        max_queues=words.max_queues,
        **platform.identity(),
    )
    while control.queue_capacity < words.max_queues:  # reserved memory costs nothing until it is touched
        step = control.more_queue_bytes()
        if step is None:
            break
        control.publish_queue_capacity(step[1])
    Delivered(control).set_levels(config.delay_levels_ms())
    ground = Beside(root, words, before.dispatched)
    ground.enter(control, state)
    attachment = compose(root, config, Mode.READ, control, None, revive, ground.manifest(state, control))
    attachment.ground = ground
    attachment.clock.begin(config.max_clock_jump_s * 1000, state.last_store_timestamp_ms)
    if not ground.begin(control, attachment.commit_log, attachment.queues):
        attachment.let_mappings_go()
        return None
    attachment.delivered.load(writable=False)
    return attachment
