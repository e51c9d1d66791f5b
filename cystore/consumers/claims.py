"""Claims: several owners compete for the messages of one queue (RocketMQ 5's pop consumption).

A claim gives a message to one owner until it settles the message, gives it back, or ends. Whether an owner lives is
asked of the kernel: it has the lock of a byte of ``claims/owners`` as long as its process has the file open. So
the messages of a killed owner return at once, and those of a slow one never do.

The claims of a queue of a group are a file of ``claims``: the queue offset that was never claimed (`following`), and a
place for each message below it that is not settled. It survives the kill of every process. A settled message is also a
record in the log, in the topic ``%ACK%group``. After a power cut, in a copy of the store, and on a promoted slave the
file is made again from these records and from the group's offset, which stands at the lowest message that is not
settled. Another record may settle a message, too (`cystore.consumers.settled`): its writer leaves a mark at the
message's place before it appends, and whoever would free a place with a mark asks the log first.
"""

from __future__ import annotations

import logging
import os
import secrets
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cystore._native.system.descriptor import ByteLock, Descriptor
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import StoreHandle
from cystore.clock import monotonic_s, now_ms
from cystore.consumers.groups import table_of
from cystore.consumers.settled import Range, SettledLog
from cystore.consumers.table import NO_OFFSET
from cystore.errors import CorruptRecordError, StoreFormatError, StoreMovedError, StoreResourceError
from cystore.layout import CONSTANTS
from cystore.system import files, key_lock, platform
from cystore.system.key_lock import PlaceLocks
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

FOLDER, OWNERS = "claims", "owners"
RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
OWNERS_MAX = 4096
MAGIC, VERSION = b"CYCLAIM1", 2
HEADER_BYTES, KEY_AT = 4096, 128
# Magic, version, bytes of a place, inode, boot id.
_HEADER = struct.Struct("<8sIIQ40s")
# The first offset that was never claimed; the number of places; 1 if a hold keeps the messages.
_STATE = struct.Struct("<qqq")
_STATE_AT, _HELD_AT = 64, 64 + 16
# A queue offset, -1 for a place without one; its owner, or FREE; the mark: where in the log a record may begin that
# settles it, or 0.
_PLACE = struct.Struct("<qQq8x")  # no place is in two pages
_PLACE_WORDS, _OWNER_AT, _MARK_AT = 4, 8, 16
_WORD = struct.Struct("<q")
NOBODY, FREE = -1, 0
_NOTE = struct.Struct(
    "<QQQq"
)  # of an owner, behind the incarnations: incarnation, PID namespace, pid, since when
_LOCK_AT = 1 << 40
UNUSED_S = 60.0  # a hold costs a write of the manifest, so a queue that is in use keeps it


class _DamagedError(Exception):
    """The file of claims cannot be read."""


class Claim(NamedTuple):
    """A message that an owner has: its queue offset, its place in the file, and whether somebody had it before."""

    queue_offset: int
    place: int
    redelivered: bool


class OwnerNote(NamedTuple):
    """A process that claims, for people: `since_ms` is when it began, ms since 1970."""

    pid_namespace: int
    pid: int
    since_ms: int


def owner_notes(root: Path) -> dict[int, OwnerNote]:
    """Who claims in a store, by `Owner.id`; some of them may have ended. For readers."""
    data = files.read_if_there(root / FOLDER / OWNERS) or b""
    found = {}
    for slot, at in enumerate(range(8 * OWNERS_MAX, len(data) - _NOTE.size + 1, _NOTE.size)):
        incarnation, pid_namespace, pid, since_ms = _NOTE.unpack_from(data, at)
        if incarnation:
            found[incarnation << 16 | slot] = OwnerNote(pid_namespace, pid, since_ms)
    return found


def read_places(path: Path, wrote: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Of a file of claims, for readers: the first offset that was never claimed, and the queue offset and owner of each
    place. None if the file is not there, or if its next user makes it again from the log, which ends at `wrote`."""
    data = files.read_if_there(path) or b""
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        return None
    _, version, place_bytes, inode, boot_id = _HEADER.unpack_from(data)
    with files.translated(path):
        known = os.stat(path).st_ino
    if (version, place_bytes, inode) != (VERSION, _PLACE.size, known) or boot_id.rstrip(b"\0") != _boot_id():
        return None
    try:
        following, count = _state(data, len(data), wrote)
    except _DamagedError:
        return None
    places = _PLACE.iter_unpack(data[HEADER_BYTES : HEADER_BYTES + count * _PLACE.size])
    return following, [(offset, owner) for offset, owner, _ in places]


def _state(head: bytes, file_bytes: int, wrote: int) -> tuple[int, int]:
    """From the beginning of a file of claims: the first offset that was never claimed, and the number of places. Raises
    _DamagedError for a file that no process wrote. No log up to `wrote` has more messages, whatever is dispatched."""
    if len(head) < _STATE_AT + _STATE.size or head[: len(MAGIC)] != MAGIC:
        raise _DamagedError
    following, count, _ = _STATE.unpack_from(head, _STATE_AT)
    room, most = max(file_bytes - HEADER_BYTES, 0) // _PLACE.size, wrote // RECORD_SIZE_MIN + 1
    if not 0 <= following <= most or not 0 <= count <= room:
        raise _DamagedError
    return following, count


def _boot_id() -> bytes:
    return platform.identity()["boot_id"].encode("ascii")


class Owner:
    """Something that claims, for as long as it lives: a consumer of this process. A forked child is none. It has a
    place among the owners from its first claim on; before, it only asks who lives."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        files.make_directory(self._folder)
        self._path = self._folder / OWNERS
        self._file: Descriptor = files.open_file(self._path, os.O_RDWR | os.O_CREAT)
        self._locks = PlaceLocks(self._path)
        self._id, self._pid = FREE, os.getpid()
        self._lock = os_threads.Lock()

    @property
    def id(self) -> int:
        """The number that stands beside what it claims. Raises StoreResourceError for one owner too many."""
        if self._id == FREE:
            undisturbed(self._begin)
        return self._id

    @property
    def is_here(self) -> bool:
        """Whether this process made the owner; a forked child of it has no claims."""
        return self._pid == os.getpid()

    def _begin(self) -> None:
        with self._lock:
            if self._id == FREE:
                self._id = self._take()

    def _take(self) -> int:
        others = set(self._locks.others(0, OWNERS_MAX))
        for slot in range(OWNERS_MAX):
            if slot not in others and self._locks.try_take(slot):
                incarnation = secrets.randbits(40) | 1
                with files.translated(self._path):
                    os.pwrite(self._file.fd, struct.pack("<Q", incarnation), 8 * slot)
                    note = _NOTE.pack(incarnation, platform.pid_namespace(), os.getpid(), now_ms())
                    os.pwrite(self._file.fd, note, 8 * OWNERS_MAX + _NOTE.size * slot)
                return incarnation << 16 | slot
        raise StoreResourceError(
            f"{OWNERS_MAX} consumers compete for messages of the store already, and no more have room",
            path=self._path,
        )

    def dead(self, owners: Iterable[int]) -> set[int]:
        """Those of these owners that do not live any more. One whose number was lost with a part of the file counts as
        alive until the lock of its place is free."""
        asked = {owner for owner in owners if owner not in (FREE, self._id)}
        if not asked:
            return set()
        alive = set(self._locks.others(0, OWNERS_MAX))
        with files.translated(self._path):
            known = os.pread(self._file.fd, 8 * OWNERS_MAX, 0)
        numbers = dict(enumerate(struct.unpack(f"<{len(known) // 8}Q", known[: len(known) // 8 * 8])))
        return {
            owner
            for owner in asked
            if (slot := owner & 0xFFFF) not in alive or numbers.get(slot, 0) not in (0, owner >> 16)
        }

    def close(self) -> None:
        """Ends the owner: what it claimed is free."""
        self._locks.close()
        self._file.close()


class ClaimedQueue:
    """A queue of a group whose messages owners claim. Safe for threads; each process, and each owner, has its own
    object. `owner` is called when somebody claims; who only puts needs none."""

    def __init__(
        self, store: StoreHandle, owner: Callable[[], Owner], group: str, topic: str, queue_id: int
    ) -> None:
        self._store, self._owner_of = store, owner
        self.group, self.topic, self.queue_id = group, topic, queue_id
        self._settled = SettledLog(store, group, topic, queue_id)
        self.path = store._writable().root / FOLDER / self._settled.name
        self._hold = f"claims-{self.path.name}"
        self._lock, self._used_s = os_threads.RLock(), monotonic_s()
        self._boot_id = _boot_id()
        self._inside = False
        self._given: dict[int, int] = {}  # by place: the queue offset of a claim that the owner got
        self._file = self._opened()

    @property
    def _owner(self) -> Owner:
        return self._owner_of()

    # ---------------------------------------------------------------------------------------------- the owner's calls

    def claim(self, count: int) -> list[Claim]:
        """Claims up to `count` messages: first those that were given back, then new ones, each in the order of the
        queue. A call that an exception of a signal handler ends loses nothing: the next one gives what it claimed."""
        if not self._owner.is_here:
            return []
        end = self._end()
        with self._lock, self._taken():
            if self._inside:
                return []  # this is a signal handler's call, inside of an interrupted one
            self._inside = True
            try:
                found = self._claim(count, end)
                self._given.update((claim.place, claim.queue_offset) for claim in found)
                return found
            finally:
                self._inside = False

    def settle(self, claims: Sequence[Claim], *, flush: str | None = None) -> None:
        """Ends claims: their messages come to nobody any more. Durable as the store's flush setting says, or `flush`.

        A kill in between leaves the messages settled; a power cut that takes the record back gives them once more."""
        if not claims or not self._owner.is_here:
            return
        ended: list[Range] = []  # but not those that another record has settled
        for claim in claims:  # nobody else changes a place of an owner that lives
            if self._has(claim, self._owner.id):
                self._empty(claim.place)
                ended.append((claim.queue_offset, claim.queue_offset + 1))
            self._forget(claim)
        failpoint("claims.emptied")
        self._settled.note(ended, flush)

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Frees claims: their messages are the next ones that somebody claims, and count as delivered before."""
        if not self._owner.is_here:
            return
        for claim in claims:
            if self._has(claim, self._owner.id):
                self._free(claim.queue_offset, claim.place)
            self._forget(claim)

    def begin_settling(self, claim: Claim, owner: int) -> dict[str, str] | None:
        """For any process that works for an owner, before it appends a record that also settles the claim: the
        properties that the record needs. None: the owner does not have the message any more, or the store takes no such
        record; then the owner settles.

        A kill before the append leaves the claim as it was, one after it leaves the message settled."""
        properties = self._settled.properties(claim.queue_offset)
        if properties is None or not self._has(claim, owner):
            return None
        self._write(_at(claim.place) + _MARK_AT, _WORD.pack(max(self._store._attached().control.wrote, 1)))
        failpoint("claims.marked")
        return properties

    def end_settling(self, claim: Claim, owner: int) -> None:
        """After that append: the place is empty, and the owner's `settle` appends nothing more."""
        failpoint("claims.settled_together")
        undisturbed(partial(self._end_settling, claim, owner))

    def take_over(self) -> int:
        """Frees the claims of owners that do not live any more; returns their number."""
        _, places = self._seen()
        if not self._owner.dead(owner for offset, owner in places if offset >= 0):
            return 0
        with self._lock, self._taken():
            following, places = self._mended()
            dead = self._owner.dead(owner for offset, owner in places if offset >= 0)
            count = 0
            for place, (offset, owner) in enumerate(places):
                if owner in dead and 0 <= offset < following:
                    count += self._free(offset, place)
            return count

    def ready(self) -> int:
        """The number of messages that nobody has."""
        following, places = self._seen()
        free = sum(owner == FREE and 0 <= offset < following for offset, owner in places)
        return free + max(self._end() - max(following, self._minimum()), 0)

    def claimed(self) -> list[tuple[int, int]]:
        """The queue offset and the owner of each message that somebody has."""
        following, places = self._seen()
        return sorted(
            (offset, owner) for offset, owner in places if owner != FREE and 0 <= offset < following
        )

    def purge(self) -> int:
        """Settles all messages that nobody has; returns their number."""
        ranges = undisturbed(self._purge)
        self._settled.note(ranges, None)
        return sum(end - begin for begin, end in ranges)

    def look(self) -> None:
        """To be called now and then: moves the group's offset and the queue's hold to the lowest message that is not
        settled. A queue without such a message has no hold, when nobody took one for a while."""
        undisturbed(self._look)

    def keep(self) -> None:
        """To be called after a put: holds the queue's messages, if nobody does, so that no clean removes one that
        nobody took."""
        with files.translated(self.path):
            held = _WORD.unpack(os.pread(self._file.fd, 8, _HELD_AT))[0]
        if not held:
            undisturbed(self._look)

    def close(self) -> None:
        """Closes the file. Claims stay the owner's until it ends."""
        self._file.close()

    # ------------------------------------------------------------------------------------------------------- the file

    def _opened(self) -> Descriptor:
        files.make_directory(self.path.parent)
        file: Descriptor = files.open_file(self.path, os.O_RDWR | os.O_CREAT)
        self._file = file
        with self._lock, self._taken():
            if not self._is_valid(file):
                undisturbed(partial(self._make, file))
        return file

    def _is_valid(self, file: Descriptor) -> bool:
        """Whether the file was written since this boot, here: else a power cut, or a copy, may have part of it."""
        with files.translated(self.path):
            head = os.pread(file.fd, HEADER_BYTES, 0)
            inode = os.fstat(file.fd).st_ino
        if len(head) < HEADER_BYTES or head[:8] != MAGIC:
            return False
        _, version, place_bytes, known, boot_id = _HEADER.unpack_from(head)
        if version != VERSION or place_bytes != _PLACE.size:
            raise StoreFormatError(
                f"the claims of {self.topic}/{self.queue_id} are of another version of cystore: end its processes, "
                "then remove the file",
                path=self.path,
            )
        return bool(known == inode and boot_id.rstrip(b"\0") == self._boot_id)

    def _make(self, file: Descriptor) -> None:
        """Makes the file from the log. A kill before the header is complete leaves that to the next owner."""
        following, free = self._facts()
        self._write(0, bytes(len(MAGIC)))  # from here on the file is none, until its header is complete
        room = HEADER_BYTES + max(len(free), 64) * _PLACE.size
        files.allocate(file.fd, 0, room, self.path)
        self._write(HEADER_BYTES, b"".join(_PLACE.pack(offset, FREE, 0) for offset in free))
        self._write(_STATE_AT, _STATE.pack(following, len(free), 0))
        self._write(KEY_AT, self._settled.key)
        failpoint("claims.filled")
        with files.translated(self.path):
            inode = os.fstat(file.fd).st_ino
        self._write(0, _HEADER.pack(MAGIC, VERSION, _PLACE.size, inode, self._boot_id))

    def _facts(self) -> tuple[int, list[int]]:
        """From the log: the first offset behind every settled message, and the offsets below it that are not
        settled."""
        table = table_of(self._store._attached()).table
        row = table.find((self.topic, self.group, self.queue_id))
        low = NO_OFFSET if row is None else table.offset(row)
        low = min(max(low, self._minimum(), 0), self._end())
        begin = self._first_from(low)
        settled: set[int] = set()
        following = low
        if begin is not None:
            for begin_offset, end_offset in self._settled.ranges(begin):
                settled.update(range(max(begin_offset, low), end_offset))
                following = max(following, end_offset)
        following = min(following, self._end())
        return following, [offset for offset in range(low, following) if offset not in settled]

    def _taken(self) -> ByteLock:
        wait_s = self._store.settings.sync_flush_timeout_ms / 1000
        what = f"the claims of {self.topic}/{self.queue_id}"
        return key_lock.taken(self._file, _LOCK_AT, wait_s, what, self.path)

    def _write(self, at: int, data: bytes) -> None:
        with files.translated(self.path):
            os.pwrite(self._file.fd, data, at)

    def _places(self) -> tuple[int, list[tuple[int, int]]]:
        """`following`, and each place: its queue offset and its owner. Raises StoreMovedError if somebody removed the
        file, _DamagedError if it cannot be read."""
        with files.translated(self.path):
            head = os.pread(self._file.fd, _STATE_AT + _STATE.size, 0)
            found = os.fstat(self._file.fd)
            if not found.st_nlink:
                raise StoreMovedError(
                    "the file of claims was removed under this process: connect again, then messages that were claimed "
                    "come once more",
                    path=self.path,
                )
            following, count = _state(head, found.st_size, self._store._attached().control.wrote)
            data = os.pread(self._file.fd, count * _PLACE.size, HEADER_BYTES)
        words = array("Q", data[: len(data) // _PLACE.size * _PLACE.size])
        offsets = array("q", words[::_PLACE_WORDS].tobytes())
        return following, list(zip(offsets, words[1::_PLACE_WORDS], strict=True))

    def _seen(self) -> tuple[int, list[tuple[int, int]]]:
        """`_places`, for a look without the lock."""
        try:
            return self._places()
        except _DamagedError:  # or another process makes it at this moment
            with self._lock, self._taken():
                return self._mended()

    def _end(self) -> int:
        parts = self._store._attached()
        slot = parts.control.find_queue(self.topic, self.queue_id)
        if slot < 0:
            return 0
        parts.reader.help_dispatch()
        return parts.reader.shown_end(slot)

    def _minimum(self) -> int:
        control = self._store._attached().control
        slot = control.find_queue(self.topic, self.queue_id)
        return 0 if slot < 0 else control.queue_minimum(slot)

    # --------------------------------------------------------------------------------------------------- under the lock

    def _mended(self) -> tuple[int, list[tuple[int, int]]]:
        """`_places`, after a damaged file was made again, and after places were emptied that a killed claim filled
        before its messages counted as claimed: later ones would give those messages a second place."""
        try:
            following, places = self._places()
        except _DamagedError:
            log.warning(
                "%s: the claims of %s/%d are damaged, and are made again from the log; messages that were claimed come "
                "once more",
                self.path,
                self.topic,
                self.queue_id,
            )
            undisturbed(partial(self._make, self._file))
            following, places = self._places()
        for place, (offset, _) in enumerate(places):
            if offset >= following:
                self._empty(place)
                places[place] = NOBODY, FREE
        return following, places

    def _claim(self, count: int, end: int) -> list[Claim]:
        following, places = self._mended()
        found: list[Claim] = []
        if places:
            free = sorted(
                (offset, place)
                for place, (offset, owner) in enumerate(places)
                if 0 <= offset < following
                and (owner == FREE or (owner == self._owner.id and self._given.get(place) != offset))
            )
            found = [Claim(offset, place, True) for offset, place in free[:count]]
        begin = max(following, self._minimum())
        new = min(end, begin + count - len(found))
        if new > begin:
            empty = [place for place, (offset, _) in enumerate(places) if not 0 <= offset < following]
            more = new - begin - len(empty)
            spare = [*empty, *range(len(places), len(places) + more)][: new - begin]
            found += [
                Claim(offset, place, False) for offset, place in zip(range(begin, new), spare, strict=True)
            ]
        if not found:
            return []
        self._used_s = monotonic_s()
        count_after = max(len(places), 1 + max(claim.place for claim in found))
        if count_after > len(places):
            files.allocate(self._file.fd, 0, HEADER_BYTES + count_after * _PLACE.size, self.path)
        for claim in found:
            self._write(_at(claim.place), _PLACE.pack(claim.queue_offset, self._owner.id, 0))
        failpoint("claims.placed")
        if new > begin:
            self._write(_STATE_AT, _STATE.pack(new, count_after, 0)[:16])
        return found

    def _has(self, claim: Claim, owner: int) -> bool:
        with files.translated(self.path):
            data = os.pread(self._file.fd, _MARK_AT, _at(claim.place))
        return data == _PLACE.pack(claim.queue_offset, owner, 0)[:_MARK_AT]

    def _free(self, queue_offset: int, place: int) -> bool:
        """Frees a place, or empties it if the log says that the message is settled."""
        with files.translated(self.path):
            (mark,) = _WORD.unpack(os.pread(self._file.fd, _WORD.size, _at(place) + _MARK_AT))
        if mark and self._settled.is_settled_since(queue_offset, mark):
            self._empty(place)
            return False
        self._write(_at(place) + _OWNER_AT, _WORD.pack(FREE))
        return True

    def _empty(self, place: int) -> None:
        self._write(_at(place), _PLACE.pack(NOBODY, FREE, 0))

    def _forget(self, claim: Claim) -> None:
        """The place may have another claim of this owner already."""
        if self._given.get(claim.place) == claim.queue_offset:
            del self._given[claim.place]

    def _end_settling(self, claim: Claim, owner: int) -> None:
        with self._lock, self._taken():  # the owner may be dead meanwhile, and the message another one's
            if self._has(claim, owner):
                self._empty(claim.place)

    def _purge(self) -> list[tuple[int, int]]:
        end = self._end()
        with self._lock, self._taken():
            following, places = self._mended()
            ranges = []
            for place, (offset, owner) in enumerate(places):
                if owner == FREE and 0 <= offset < following:
                    self._empty(place)
                    ranges.append((offset, offset + 1))
            begin = max(following, self._minimum())
            if end > begin:
                self._write(_STATE_AT, _WORD.pack(end))
                ranges.append((begin, end))
            return ranges

    def _first_from(self, queue_offset: int) -> int | None:
        """The place in the log of the first message from an offset on that can be read: others have expired, or are
        damaged."""
        while True:
            try:
                found = self._store.get(self.topic, self.queue_id, queue_offset, 1)
            except CorruptRecordError:
                queue_offset += 1
                continue
            if found.messages:
                return found.messages[0].physical_offset
            if found.next_offset <= queue_offset:
                return None
            queue_offset = found.next_offset

    def _look(self) -> None:
        with self._lock, self._taken():
            following, places = self._mended()
            waiting = [offset for offset, _ in places if 0 <= offset < following]
            low = max(min([following, *waiting]), self._minimum())
            parts = self._store._writable()
            table = table_of(parts).table
            row = table.row((self.topic, self.group, self.queue_id))
            if table.offset(row) != low:
                table.set_offset(row, low)
            held = _WORD.unpack(os.pread(self._file.fd, 8, _HELD_AT))[0]
            if low >= self._end():
                if held and monotonic_s() >= self._used_s + UNUSED_S:
                    self._write(_HELD_AT, _WORD.pack(0))
                    parts.cleaner.holds.release(self._hold)
                if (
                    low >= self._end()
                ):  # a put comes before its look at the word that was just written, or after it
                    return
            begin = self._first_from(low)
            if begin is None:
                return
            segment = begin // parts.config.mapped_file_size_commit_log_bytes + 1
            if held != segment:
                parts.cleaner.holds.set(self._hold, begin, None)
                self._write(_HELD_AT, _WORD.pack(segment))


def _at(place: int) -> int:
    """Where a place begins in the file."""
    return HEADER_BYTES + place * _PLACE.size
