"""A store made of a DLedger broker's log: `cystore import`.

The records are RocketMQ's, byte for byte, except for the physical offset: a DLedger has a head of 48 bytes before each.
So every queue has the same messages at the same queue offsets, and the offsets of consumers and delay levels in
`config/` stay true.

The store is made inside a folder TARGET.incomplete, which is not a store, so every open refuses it. It is renamed to
TARGET when all of it is durable, verified and closed. A kill leaves the folder; the next import of the same TARGET
throws its content away and starts anew. An error removes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cystore.config import StoreConfig
from cystore.consumers.table import NAME as GROUP_TABLE
from cystore.derived.files.known_queues import NAME as QUEUE_TABLE
from cystore.derived.files.offsets import QUEUE_OFFSETS
from cystore.dledger.entries import Bad, Entry
from cystore.dledger.place import Place, check_at_rest, find
from cystore.dledger.source import Source, Stored
from cystore.engine.files.checkpoint import FILE_NAME, CheckpointFields, render_checkpoint
from cystore.engine.files.segments import file_name
from cystore.engine.log.commit_log import DIRECTORY
from cystore.errors import CorruptRecordError, StoreConfigError, StoreError, StoreFormatError
from cystore.layout import BLANK_SIZE_MIN, MAGIC, RECORD_MAGIC_BLANK, TOTAL_SIZE, field_of
from cystore.operate.backup import DRAFT_STORE, Taken, proven
from cystore.operate.packs.members import CONFIG
from cystore.operate.packs.streams import DRAFT_SUFFIX, TargetError
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.system import files, ownership, platform
from cystore.system.key_lock import KeyLock
from cystore.system.links import real_path
from cystore.system.ranges import file_ranges

IMPORTING = "IMPORTING"  # beside the draft; its lock belongs to the process that makes it
CHUNK_BYTES = 4 << 20
DAMAGED = b"\xff"  # begins no record and no blank
PHYSICAL_OFFSET = field_of("record", "physical_offset")

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Imported:
    """A finished import: records of the old commit log, entries of the DLedger, the index of the last one (-1: none),
    entries behind the committed index that were left out, and damaged ranges of the source that were stepped over."""

    path: str
    records: int
    old_records: int
    entries: int
    last_index: int
    left_out: int
    log_bytes: int
    queues: int
    skipped: tuple[tuple[int, int], ...]


def import_ledger(
    path: Path,
    target: Path,
    config: StoreConfig,
    *,
    uncommitted: bool = False,
    skip_damaged: bool = False,
    report: Report | None = None,
) -> Imported:
    """Makes `target`, which must not exist, a store with the messages of the DLedger broker at `path`, durable and
    closed.

    Without `uncommitted` the entries behind the checkpoint's committed index are left out. Raises CorruptRecordError at
    the first damage unless `skip_damaged`, StoreFormatError if there is no DLedger, and StoreError. Then leaves nothing
    behind.
    """
    place = find(real_path(path))
    if place is None:
        raise StoreFormatError("there is no DLedger here (a folder dledger-ID with data/ in it)", path=path)
    check_at_rest(place)
    target = real_path(target.parent) / target.name
    _check_target(place, target)
    draft = target.with_name(target.name + DRAFT_SUFFIX)
    group = ownership.group_id(config.group)
    platform.check_writable_file_system(target.parent, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check_way(draft, group)  # an error is raised now, not after the copy
    lock = _claimed(draft)
    try:
        made = draft / DRAFT_STORE
        files.remove_tree(made)  # left by an import that was killed
        files.make_root(made, group)
        work = _Import(place, made, config, report)
        try:
            imported = work.run(uncommitted=uncommitted, skip_damaged=skip_damaged)
        finally:
            work.close()
        files.move(made, target)
        files.remove_tree(draft)
    except BaseException:
        with contextlib.suppress(StoreError, OSError):
            files.remove_tree(draft)
        raise
    finally:
        lock.give()
    return replace(imported, path=str(target))


def _check_target(place: Place, target: Path) -> None:
    if not target.name or os.path.lexists(target):
        raise TargetError(
            "already exists: an import only makes a new store; name another target", path=target
        )
    if not target.parent.is_dir():
        raise TargetError(
            "the parent directory of the store does not exist: make it first", path=target.parent
        )
    if target.is_relative_to(place.root):
        raise TargetError("lies inside the broker's directory: name a target outside", path=target)


def _claimed(draft: Path) -> KeyLock:
    """Makes the draft's folder, or takes over that of a killed import; the lock shows that this process owns it."""

    def refuse() -> None:
        raise TargetError("another process makes this store just now", path=draft)

    if os.path.lexists(draft) and not (draft / IMPORTING).is_file():
        raise TargetError("is not of an interrupted import: remove it, or name another target", path=draft)
    files.make_root(draft, None)
    lock = KeyLock(draft / IMPORTING, IMPORTING)
    try:
        lock.take(refuse)
    except BaseException:
        lock.give()
        raise
    return lock


class _Import:
    """One import in the making."""

    def __init__(self, place: Place, draft: Path, config: StoreConfig, report: Report | None) -> None:
        self._place, self._draft, self._config, self._report = place, draft, config, report
        self._source = Source(place, config.mapped_file_size_commit_log_bytes, report)
        # A queue does not begin at 0 if the log's first files were removed.
        begin = config.mapped_file_size_commit_log_bytes if self._source.first > 0 else 0
        self._log = _LogWriter(draft, config.mapped_file_size_commit_log_bytes, begin)
        self._old = self._entries = self._left_out = 0
        self._last = -1
        self._skipped: list[tuple[int, int]] = []

    def close(self) -> None:
        self._source.close()

    def run(self, *, uncommitted: bool, skip_damaged: bool) -> Imported:
        """Copies, verifies and closes."""
        source = self._source
        if source.committed < 0 and source.reader.bases and not uncommitted:
            raise StoreFormatError(
                "no checkpoint says which entries are committed; --uncommitted imports all of them",
                path=self._place.folder,
            )
        for found in source.records(uncommitted=True):
            if isinstance(found, Bad):
                self._damaged(found, skip_damaged=skip_damaged)
            elif not isinstance(found, Entry):
                self._old += 1
                self._log.add(found)
            elif uncommitted or found.index <= source.committed:
                self._entries, self._last = self._entries + 1, found.index
                self._log.add(found)
            else:
                self._left_out += 1
        log, records = self._log, self._old + self._entries
        end = log.finish()
        self._copy_config()
        # The log is known to be durable, so recovery gives up no record of it. The open walks all of it.
        fields = CheckpointFields(
            physic_timestamp=log.last_timestamp,
            watermark=end,
            last_record=log.last_record,
            last_record_checksum=log.last_checksum,
        )
        files.write_whole(self._draft, self._draft / FILE_NAME, render_checkpoint(fields), keep_last=False)
        files.write_whole(self._draft, self._draft / ABORT_NAME, b"", keep_last=False)
        taken = proven(self._draft, self._place.root, self._config, log.begin, end, self._report)
        if taken.records != records or (taken.damaged and not self._skipped):
            self._refuse(taken, records, uncommitted=uncommitted)
        return Imported(
            "",
            records,
            self._old,
            self._entries,
            self._last,
            self._left_out,
            end - log.begin,
            taken.queues,
            tuple(self._skipped),
        )

    def _refuse(self, taken: Taken, records: int, *, uncommitted: bool) -> None:
        """Raises the error of a copy that lacks records, with the place of the first one in the source."""
        why = f"the store would have {taken.records} records of {records}"
        offset = self._first_in(taken.damaged, uncommitted=uncommitted)
        if offset is None:
            raise CorruptRecordError(f"{why}: check the disk", path=self._place.root)
        raise CorruptRecordError(
            f"{why}: the record's queue or queue offset contradicts the other records; its checksum is that of the "
            "body alone",
            path=self._source.file_of(offset),
            offset=offset,
        )

    def _first_in(self, ranges: tuple[tuple[int, int], ...], *, uncommitted: bool) -> int | None:
        """The physical offset in the source of the first record that the copy has in one of the ranges of its log.
        Walks the source again, because a list of all places would need memory for each record."""
        file_bytes, at = self._config.mapped_file_size_commit_log_bytes, self._log.begin
        source = Source(self._place, file_bytes)
        try:
            for found in source.records(uncommitted=True):
                if isinstance(found, Bad):
                    at += found.end - found.begin
                    continue
                if isinstance(found, Entry) and not uncommitted and found.index > source.committed:
                    continue
                room = file_bytes - at % file_bytes
                at += room if len(found.body) + BLANK_SIZE_MIN > room else 0
                if any(begin <= at < end for begin, end in ranges):
                    return found.physical_offset
                at += len(found.body)
        finally:
            source.close()
        return None

    def _damaged(self, bad: Bad, *, skip_damaged: bool) -> None:
        if not skip_damaged:
            raise CorruptRecordError(
                f"{bad.reason}; --skip-damaged imports what is around it",
                path=self._source.file_of(bad.begin),
                offset=bad.begin,
            )
        if bad.end - bad.begin > self._source.data_bytes:
            raise StoreFormatError(
                f"{bad.end - bad.begin} bytes are missing before a file, more than all other files have: move it away "
                "if it is not the broker's",
                path=self._source.reader.path(self._source.reader.base_of(bad.end)),
            )
        self._skipped.append((bad.begin, bad.end))
        self._log.add_damaged(bad.end - bad.begin)

    def _copy_config(self) -> None:
        """Copies the offsets of consumers and delay levels, and the broker's other files of config/."""
        ours = (QUEUE_TABLE, GROUP_TABLE)
        for entry in files.entries(self._place.root / CONFIG):
            is_ours = entry.name.startswith(QUEUE_OFFSETS) or entry.name in ours
            if is_ours or entry.name.endswith(".bak") or not entry.is_file():
                continue
            data = files.read_if_there(entry.path)
            if data is not None:
                files.write_whole(self._draft, self._draft / CONFIG / entry.name, data, keep_last=False)


class _LogWriter:
    """Writes records into new files of a commit log, one behind the other."""

    def __init__(self, root: Path, file_bytes: int, begin: int) -> None:
        self._root, self._file_bytes, self.begin = root, file_bytes, begin
        self._at = self._chunk_at = begin
        self._chunk = bytearray()
        self._gap = 0  # damaged bytes of the source since the last record
        self.last_record = self.last_checksum = self.last_timestamp = 0
        files.make_directory(root / DIRECTORY)

    def add(self, stored: Stored) -> None:
        """Appends a record, which gets its place as physical offset."""
        body, fields = stored.body, stored.fields
        self._leave_gap()
        if len(body) + BLANK_SIZE_MIN > self._file_bytes:
            raise StoreConfigError(
                f"a record of {len(body)} bytes does not fit into a file of "
                f"mapped_file_size_commit_log_bytes = {self._file_bytes}",
                path=self._root,
            )
        if len(body) + BLANK_SIZE_MIN > self._room:
            self._chunk += TOTAL_SIZE.form.pack(self._room) + MAGIC.form.pack(RECORD_MAGIC_BLANK)
            self._end_file()
        begin = len(self._chunk)
        self._chunk += body
        PHYSICAL_OFFSET.form.pack_into(self._chunk, begin + PHYSICAL_OFFSET.at, self._at)
        self.last_record, self.last_checksum = self._at, int(fields["checksum"])
        self.last_timestamp = int(fields["store_timestamp"])
        self._moved(len(body))

    def add_damaged(self, count: int) -> None:
        """Leaves a gap as long as the source's damage, if a record follows. Its length tells recovery how many messages
        of a queue may be missing."""
        self._gap += count

    def _leave_gap(self) -> None:
        while self._gap > 0:
            there = min(self._gap, self._room, CHUNK_BYTES)
            self._chunk += DAMAGED * there
            self._gap -= there
            if there == self._room:
                self._end_file()
            else:
                self._moved(there)

    @property
    def _room(self) -> int:
        return self._file_bytes - self._at % self._file_bytes

    def _end_file(self) -> None:
        room = self._room
        self._write()
        self._at = self._chunk_at = self._at + room

    def _moved(self, count: int) -> None:
        self._at += count
        if len(self._chunk) >= CHUNK_BYTES:
            self._write()

    def finish(self) -> int:
        """Writes the rest, all of it durably; returns the log's end."""
        self._write()
        return self._at

    def _write(self) -> None:
        if not self._chunk:
            return
        base = self._chunk_at - self._chunk_at % self._file_bytes
        path = self._root / DIRECTORY / file_name(base)
        if base == self._chunk_at:
            files.create_sized(self._root, path, self._file_bytes, 0)
        file_ranges.write_at(path, [(self._chunk_at - base, bytes(self._chunk))])
        self._chunk_at += len(self._chunk)
        self._chunk.clear()
