"""A consistent copy of a store, taken while other processes use it: `cystore snapshot`.

The log below the durable watermark never changes, except that the cleaner removes the oldest segments. So the copy is
the log up to a watermark, with facts and offsets that were read *before* that watermark: nothing in the copy refers to
a missing record. Queues and index are not copied: opening the copy makes them from its log, and verifies every record
on the way.

Segments are copied from the newest to the oldest. When the cleaner removes the next one, the copy begins behind it, in
each pass over the log. Before that, the cleaner appended the segment's delayed messages to the log again, so another
pass takes the newer records.

The copy is made inside a folder TARGET.incomplete, which is not a store, so every open refuses it. It is renamed to
TARGET when all of it is durable, verified and closed. A kill leaves TARGET.incomplete for an operator to remove; any
error removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cystore
from cystore.config import LOG_PATHS, StoreConfig
from cystore.consumers.table import NAME as GROUP_TABLE
from cystore.derived.files.known_queues import NAME as QUEUE_TABLE
from cystore.derived.files.offsets import (
    QUEUE_OFFSETS,
    QueueOffsets,
    read_queue_offsets,
    write_queue_offsets,
)
from cystore.engine.files import checkpoint
from cystore.engine.files.checkpoint import CheckpointFields, read_checkpoint, render_checkpoint
from cystore.engine.files.compacted_file import FOLDER as COMPACTED
from cystore.engine.files.compacted_file import open_newest
from cystore.engine.files.log_folders import FILE as LOG_FOLDERS
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.quarantine import QUARANTINE
from cystore.engine.files.segments import base_of_name, file_name
from cystore.engine.inspect.recognize import check_is_store
from cystore.engine.log.commit_log import DIRECTORY, MARKER
from cystore.engine.manifest import manifest_file
from cystore.engine.manifest.manifest import Facts, read_facts, render
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreError,
    StoreIOError,
    StoreTimeoutError,
)
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.store import MessageStore
from cystore.system import files, ownership, platform
from cystore.system.links import real_path
from cystore.system.os_errors import is_missing
from cystore.system.ranges import file_ranges

CONFIG = "config"
DRAFT_SUFFIX = ".incomplete"
DRAFT_STORE = "copy"  # the folder inside the draft that is renamed to TARGET
# A mark file. It lies beside that folder, so that no open takes the draft for an empty folder and makes a store in it.
# It also lies in the copy's log until the log is complete.
INCOMPLETE = "INCOMPLETE"
TRIES = 100  # most reads of the watermark beside a flusher, and of the log's end beside a cleaner

Report = Callable[[str, int, int], None]


class TargetError(StoreError):
    """The copy cannot be made at this target."""


@dataclass(frozen=True)
class Taken:
    """A finished copy: records of [begin, end) of the log, and the ranges that turned out to be damaged in the store
    as well."""

    path: str
    begin: int
    end: int
    records: int
    queues: int
    damaged: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Small:
    """Everything that is read before the watermark: facts, the queues' next offsets, and the other files of config/."""

    facts: Facts
    offsets: QueueOffsets
    config: dict[str, bytes]

    @classmethod
    def of(cls, root: Path) -> _Small:
        kept = {}
        for entry in files.entries(root / CONFIG):
            # The offsets are rewritten from the checked content.
            ours = entry.name.startswith(QUEUE_OFFSETS) or entry.name in (
                QUEUE_TABLE,
                GROUP_TABLE,
                LOG_FOLDERS,
            )
            if ours or entry.name.endswith(".bak") or not entry.is_file():
                continue
            data = files.read_if_there(entry.path)
            if data is not None:
                kept[entry.name] = data
        return cls(read_facts(root)[0], read_queue_offsets(root), kept)


def take(path: Path, target: Path, config: StoreConfig, report: Report | None = None) -> Taken:
    """Makes `target`, which must not exist, a copy of the store at `path`, durable and closed. Raises StoreError, and
    then leaves nothing behind."""
    path = real_path(path)
    target = real_path(target.parent) / target.name
    if not target.name:
        raise TargetError("already exists: a copy never replaces anything; name another target", path=target)
    check_is_store(path)
    if target == path or target.is_relative_to(path):
        raise TargetError("lies inside the store: name a target outside", path=target)
    draft = target.with_name(target.name + DRAFT_SUFFIX)
    _check_free(target, draft)
    with cystore.open(
        path, config=replace(config, create=False, exclusive=False, services=()), progress=report
    ) as store:
        group = ownership.group_id(config.group)
        platform.check_writable_file_system(target.parent, allow_any=config.allow_any_file_system)
        if not config.allow_any_owner:
            ownership.check_way(draft, group)  # an error is raised now, not after the copy
        files.make_root(draft, None)
        try:
            files.create_sized(draft, draft / INCOMPLETE, 0, 0)
            made = draft / DRAFT_STORE
            files.make_root(made, group)
            taken = _Copy(store, made, report or _silent).run(config)
            files.move(made, target)
            files.remove_tree(draft)
        except BaseException:
            with contextlib.suppress(StoreError, OSError):
                files.remove_tree(draft)
            raise
    return replace(taken, path=str(target))


def _silent(what: str, done: int, total: int) -> None:
    """Nobody looks."""


def _check_free(target: Path, draft: Path) -> None:
    if not target.parent.is_dir():
        raise TargetError(
            "the parent directory of the copy does not exist: make it first", path=target.parent
        )
    if os.path.lexists(target):
        raise TargetError("already exists: a copy never replaces anything; name another target", path=target)
    if os.path.lexists(draft):
        raise TargetError(
            "left by an interrupted copy, or another process is making it now; if no process is, remove it",
            path=draft,
        )


class _Copy:
    """One copy in the making: the store, and where the files go."""

    def __init__(self, store: MessageStore, draft: Path, report: Report) -> None:
        self._store, self._draft, self._report = store, draft, report
        self._file_bytes = store.snapshot().file_bytes
        self._folders = LogFolders.of(store.path)  # once for all segments: each one stays open

    def run(self, config: StoreConfig) -> Taken:
        """Copies, verifies and closes."""
        try:
            return self._run(config)
        finally:
            if self._folders is not None:
                self._folders.let_go()

    def _run(self, config: StoreConfig) -> Taken:
        log = self._draft / DIRECTORY
        files.make_directory(log)
        files.create_sized(self._draft, log / INCOMPLETE, 0, 0)
        self._store.groups.save()  # writes the file; the table of the processes here does not change
        small = _Small.of(self._store.path)
        minimum, at = self._minimum(), self._durable()
        begin = self._copy_log(minimum, minimum, at.watermark)
        for _ in range(TRIES):
            if self._minimum() == minimum and self._copy_compacted(at.watermark):
                break
            minimum, before, at = self._minimum(), at.watermark, self._durable()
            begin = self._copy_log(begin, before, at.watermark)
        else:
            raise StoreTimeoutError(
                "cleaning and compaction remove files faster than they can be copied; try again",
                path=self._store.path,
            )
        self._copy_small(small, begin, at)
        files.remove(log / INCOMPLETE)
        return proven(self._draft, self._store.path, config, begin, at.watermark, self._report)

    def _minimum(self) -> int:
        return int(self._store.stats()["min_physical_offset"])

    def _durable(self) -> CheckpointFields:
        """The checkpoint with its watermark, and the record that proves it, as they are after a flush."""
        root = self._store.path
        for _ in range(TRIES):
            self._store.flush()
            found = read_checkpoint(root)
            if found.watermark <= self._minimum():
                return found
            try:
                last = self._store.read(found.last_record)
            except (OffsetError, CorruptRecordError):
                continue  # another process is about to name another record
            if (
                last.body_crc & 0xFFFFFFFF == found.last_record_checksum & 0xFFFFFFFF
                and found == read_checkpoint(root)
            ):
                return found
        raise StoreTimeoutError(
            "the checkpoint changes faster than it can be copied; try again", path=root / checkpoint.FILE_NAME
        )

    # ------------------------------------------------------------------------------------------------ log

    def _bases(self, begin: int, end: int) -> Iterator[int]:
        """The bases of the segments of [begin, end), the newest first."""
        first = begin - begin % self._file_bytes
        yield from reversed(range(first, end, self._file_bytes))

    def _copy_log(self, begin: int, since: int, end: int) -> int:
        """Copies the log's part [since, end) behind its part [begin, since), which is copied. Returns the copy's first
        offset: if the cleaner removed a segment, the copy begins behind it."""
        reached = end
        for base in self._bases(since, end):
            self._report("copying the log", end - reached, end - since)
            files.remove(self._path(self._draft, base), durable=False)  # the copy that ends at `since`
            try:
                self._copy_segment(base, end)
            except StoreIOError as error:
                if is_missing(error) and self._minimum() > base:
                    self._drop_to(base)
                    return reached
                raise
            reached = max(base, begin)
        return begin

    def _drop_to(self, last: int) -> None:
        """Removes the copies of a segment and all earlier ones: without its last records there would be a gap."""
        for entry in files.entries(self._draft / DIRECTORY):
            base = base_of_name(entry.name)
            if base is not None and base <= last:
                files.remove(entry.path)

    def _copy_segment(self, base: int, end: int) -> None:
        """A segment's bytes up to a place in the log, and zeros behind it."""
        source, copy = self._path(self._store.path, base), self._path(self._draft, base)
        if self._folders is not None:
            source = self._folders.path(base)
        file_ranges.copy_ranges(self._draft, [(source, 0, min(self._file_bytes, end - base))], copy)
        file_ranges.extend(copy, self._file_bytes)

    @staticmethod
    def _path(root: Path, base: int) -> Path:
        return root / DIRECTORY / file_name(base)

    def _copy_compacted(self, end: int) -> bool:
        """Copies the compacted file in force. False if it was replaced, or covers more than the copied log."""
        found = open_newest(self._store.path)
        if found is None:
            return True
        if found.header is not None and found.header.covered > end:
            return False
        return self._copy_if_there(found.path, self._draft / COMPACTED / found.path.name)

    # ------------------------------------------------------------------------------------------ the rest

    def _copy_small(self, small: _Small, begin: int, at: CheckpointFields) -> None:
        """Copies everything but the log: files that refer to the log come after it."""
        root, draft = self._store.path, self._draft
        if (root / DIRECTORY / MARKER).exists():
            files.create_sized(draft, draft / DIRECTORY / MARKER, 0, 0)
        for entry in files.entries(root / QUARANTINE):
            if entry.is_file():
                self._copy_if_there(entry.path, draft / QUARANTINE / entry.name)
        for name, data in small.config.items():
            files.write_whole(draft, draft / CONFIG / name, data, keep_last=False)
        write_queue_offsets(draft, small.offsets)
        own = {name: value for name, value in small.facts.settings.items() if name not in LOG_PATHS}
        facts = replace(small.facts, settings=own, log_begin=begin)
        manifest_file.create(draft, max(1, facts.sequence), render(facts))
        # Nothing is derived yet; the open walks the whole log, as after a crash.
        fields = at._replace(logics_timestamp=0, index_timestamp=0, index_watermark=0)
        files.write_whole(draft, draft / checkpoint.FILE_NAME, render_checkpoint(fields), keep_last=False)
        files.write_whole(draft, draft / ABORT_NAME, b"", keep_last=False)

    def _copy_if_there(self, source: Path, copy: Path) -> bool:
        """Copies a file that another process may remove; False if it did."""
        try:
            with files.opened(source) as fd:
                length = file_ranges.length_of(fd, source)
            file_ranges.copy_ranges(self._draft, [(source, 0, length)], copy)
        except StoreIOError as error:
            if not is_missing(error):
                raise
            return False
        return True


def proven(
    draft: Path, source: Path, config: StoreConfig, begin: int, end: int, report: Report | None
) -> Taken:
    """Opens a copy of `source` whose log is complete, which makes queues and index, closes it, and opens it once more
    as a reader. Raises StoreError unless its log goes from `begin` to `end`."""
    alone = dataclasses.replace(
        config,
        create=False,
        exclusive=True,
        read_only=False,
        store_path_commit_log="",
        read_only_commit_log_store_paths="",
        services=(),
        allocate_ahead_bytes=4096,
        populate_ahead_bytes=0,
    )
    with cystore.open(draft, config=alone, progress=report) as store:
        recovered = store.recovery
        store.dispatch()  # because a close does not report why it leaves something undone
        store.flush()
        _check(store, source, begin, end)
    _check_closed(draft)
    with cystore.open(draft, config=replace(alone, exclusive=False, read_only=True)) as store:
        _check(store, source, begin, end)
        queues = sum(map(len, store.topics().values()))
    return Taken("", begin, end, recovered.records, queues, tuple(recovered.new_holes))


def _check_closed(draft: Path) -> None:
    """Raises if the close could not finish. It then leaves `abort` and its work to the next open, which a copy must not
    need."""
    if (draft / ABORT_NAME).exists():
        raise StoreIOError(
            "the copy could not be closed: its queues or its index may not be on the disk. The log of this "
            "command has the reason, often "
            "a full disk",
            path=draft,
        )


def _check(store: MessageStore, source: Path, begin: int, end: int) -> None:
    found = store.stats()
    if (found["min_physical_offset"], found["wrote"]) != (begin, end):
        raise CorruptRecordError(
            f"the copy has the log from {found['min_physical_offset']} to {found['wrote']}, but should have it "
            f"from {begin} to {end}: "
            "run `cystore verify` on the store; if it finds no damage, check the disk of the copy",
            path=source,
        )
