"""A consistent copy of a store, taken while other processes use it: `cystore snapshot`.

The log below the durable watermark never changes, except that the cleaner removes the oldest segments. So the copy is
the log up to a watermark, with facts and offsets that were read *before* that watermark: nothing in the copy refers to
a missing record. Queues and index are not copied: opening the copy makes them from its log, and verifies every record
on the way.

Segments are copied from the newest to the oldest. When the cleaner removes the next one, the copy begins behind it, in
each pass over the log. Before that, the cleaner appended the segment's delayed messages to the log again, so another
pass takes the newer records.

A pack is the same copy as one file (`pack`); `unpack` makes a store of it.

The copy is made inside a folder TARGET.incomplete, which is not a store. It is renamed to TARGET when all of it is
durable, verified and closed. A kill leaves TARGET.incomplete, perhaps with a store inside that nobody verified, for an
operator to remove; any error removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cystore
from cystore.config import LOG_PATHS, StoreConfig
from cystore.derived.files.offsets import (
    QUEUE_OFFSETS,
    QueueOffsets,
    read_queue_offsets,
    render_queue_offsets,
)
from cystore.engine.files import checkpoint
from cystore.engine.files.checkpoint import CheckpointFields, read_checkpoint, render_checkpoint
from cystore.engine.files.compacted_file import FOLDER as COMPACTED
from cystore.engine.files.compacted_file import open_newest
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.quarantine import QUARANTINE
from cystore.engine.files.segments import file_name
from cystore.engine.inspect.recognize import check_is_store
from cystore.engine.log.commit_log import DIRECTORY, MARKER
from cystore.engine.manifest import manifest_file
from cystore.engine.manifest.manifest import Facts, read_facts, render
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreTimeoutError,
)
from cystore.operate.packs.destinations import INCOMPLETE, Destination, IntoFolder, IntoPack
from cystore.operate.packs.destinations import unpack as unpacked
from cystore.operate.packs.members import CONFIG, NOT_CARRIED, PackError, PackFacts
from cystore.operate.packs.reader import PackReader, Piece
from cystore.operate.packs.streams import (
    STANDARD,
    TargetError,
    check_free,
    check_writable,
    draft_of,
    read,
    written,
)
from cystore.operate.packs.writer import PackWriter
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.store import MessageStore
from cystore.system import files, ownership, platform
from cystore.system.links import real_path
from cystore.system.os_errors import is_missing

DRAFT_STORE = "copy"  # the folder inside the draft that is renamed to TARGET
TRIES = 100  # most reads of the watermark beside a flusher, and of the log's end beside a cleaner

Report = Callable[[str, int, int], None]


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
class Packed:
    """A finished pack: its log is [begin, end); `size_bytes` is the length of the file, None of standard output."""

    path: str
    begin: int
    end: int
    size_bytes: int | None


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
            ours = entry.name.startswith(QUEUE_OFFSETS) or entry.name in NOT_CARRIED
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
    target = _target(target, path)
    check_free(target, draft_of(target))
    with _opened(path, config, report) as store, _made(target, config) as draft:
        file_bytes = store.snapshot().file_bytes
        into = IntoFolder(draft, file_bytes)
        into.begin()
        begin, end = _Copy(store, into, file_bytes, report or _silent).run()
        into.complete()
        taken = proven(draft, path, config, begin, end, report)
    return replace(taken, path=str(target))


def pack(path: Path, file: Path, config: StoreConfig, report: Report | None = None) -> Packed:
    """Writes the content of the store at `path` at one moment into one file, which must not exist; or to standard
    output (`-`). Raises StoreError, and then leaves nothing behind."""
    path = real_path(path)
    if file != STANDARD:
        file = _target(file, path)
        check_writable(file)
    with _opened(path, config, report) as store:
        file_bytes, begin, end = store.snapshot().file_bytes, *_log_of(store)
        with written(file) as sink:
            writer = PackWriter(sink, file, PackFacts(begin, end, file_bytes))
            begin, end = _Copy(store, IntoPack(writer, file_bytes), file_bytes, report or _silent).run()
            writer.finish(begin, end)
    return Packed(str(file), begin, end, None if file == STANDARD else file.stat().st_size)


def unpack(file: Path, target: Path, config: StoreConfig, report: Report | None = None) -> Taken:
    """Makes `target`, which must not exist, the store that `pack` wrote into `file`, durable, verified and closed.
    Raises StoreError, and then leaves nothing behind."""
    if file != STANDARD:
        file = real_path(file)
    target = _target(target, None)
    check_free(target, draft_of(target))
    with read(file) as take_bytes:
        reader = PackReader(take_bytes, file)
        _check_room(target, reader.first)
        with _made(target, config) as draft:
            into = IntoFolder(draft, reader.first.file_bytes)
            into.begin()
            unpacked(_reported(reader, report or _silent), draft, reader.first.file_bytes)
            last = reader.last
            assert last is not None
            into.drop_to(last.begin - last.begin % last.file_bytes - 1)
            _check_facts(draft, file)
            into.complete()
            taken = proven(draft, file, config, last.begin, last.end, report)
    return replace(taken, path=str(target))


def _target(target: Path, path: Path | None) -> Path:
    """The place of something to make, which is outside of the store at `path`. Raises StoreError."""
    target = real_path(target.parent) / target.name
    if not target.name:
        raise TargetError("already exists: a copy never replaces anything; name another target", path=target)
    if path is not None:
        check_is_store(path)
        if target == path or target.is_relative_to(path):
            raise TargetError("lies inside the store: name a target outside", path=target)
    return target


def _opened(path: Path, config: StoreConfig, report: Report | None) -> MessageStore:
    return cystore.open(
        path, config=replace(config, create=False, exclusive=False, services=()), progress=report
    )


@contextlib.contextmanager
def _made(target: Path, config: StoreConfig) -> Iterator[Path]:
    """A with block that makes a store in a folder, which it gets. The folder becomes `target` when the block ends;
    after an error nothing is left."""
    draft = draft_of(target)
    group = ownership.group_id(config.group)
    platform.check_writable_file_system(target.parent, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check_way(draft, group)  # an error is raised now, not after the copy
    files.make_root(draft, None)
    try:
        files.create_sized(draft, draft / INCOMPLETE, 0, 0)
        made = draft / DRAFT_STORE
        files.make_root(made, group)
        yield made
        files.move(made, target)
        files.remove_tree(draft)
    except BaseException:
        with contextlib.suppress(StoreError, OSError):
            files.remove_tree(draft)
        raise


def _silent(what: str, done: int, total: int) -> None:
    """Nobody looks."""


def _log_of(store: MessageStore) -> tuple[int, int]:
    found = store.stats()
    return int(found["min_physical_offset"]), int(found["wrote"])


def _check_room(target: Path, first: PackFacts) -> None:
    """Raises StoreFullError if the log alone does not fit. A pack may say what it wants; then it is refused here, or
    the disk refuses it."""
    free, _ = files.free_space(target.parent)
    if first.end - first.begin > free:
        raise StoreFullError(
            f"no space for the pack: its log has {first.end - first.begin} bytes, and {free} are free: make space, or "
            "name a target on another disk",
            path=target,
        )


def _reported(reader: PackReader, report: Report) -> Iterator[Piece]:
    done, total = 0, reader.first.end - reader.first.begin
    for piece in reader.pieces():
        report("unpacking the log", min(done, total), total)
        yield piece
        done += len(piece.data)


def _check_facts(draft: Path, file: Path) -> None:
    """A manifest from elsewhere must not lead to folders of this host."""
    settings = read_facts(draft)[0].settings
    if any(settings.get(name) for name in LOG_PATHS):
        raise PackError("has a manifest that names folders for the log outside of the store", path=file)


class _Copy:
    """One copy in the making: the store, and where its files go."""

    def __init__(self, store: MessageStore, into: Destination, file_bytes: int, report: Report) -> None:
        self._store, self._into, self._file_bytes, self._report = store, into, file_bytes, report
        self._folders = LogFolders.of(store.path)  # once for all segments: each one stays open

    def run(self) -> tuple[int, int]:
        """Copies; returns where the copied log begins and ends."""
        try:
            return self._run()
        finally:
            if self._folders is not None:
                self._folders.let_go()

    def _run(self) -> tuple[int, int]:
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
        return begin, at.watermark

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
            try:
                self._into.segment(self._path(base), base, since, end)
            except StoreIOError as error:
                if is_missing(error) and self._minimum() > base:
                    self._into.drop_to(base)
                    return reached
                raise
            reached = max(base, begin)
        return begin

    def _path(self, base: int) -> Path:
        """The segment's file."""
        if self._folders is not None:
            return self._folders.path(base)
        return self._store.path / DIRECTORY / file_name(base)

    def _copy_compacted(self, end: int) -> bool:
        """Copies the compacted file in force. False if it was replaced, or covers more than the copied log."""
        found = open_newest(self._store.path)
        if found is None:
            return True
        if found.header is not None and found.header.covered > end:
            return False
        return self._into.copy_if_there(found.path, f"{COMPACTED}/{found.path.name}")

    # ------------------------------------------------------------------------------------------ the rest

    def _copy_small(self, small: _Small, begin: int, at: CheckpointFields) -> None:
        """Copies everything but the log: files that refer to the log come after it."""
        root, into = self._store.path, self._into
        if (root / DIRECTORY / MARKER).exists():
            into.data(f"{DIRECTORY}/{MARKER}", b"")
        for entry in files.entries(root / QUARANTINE):
            if entry.is_file():
                into.copy_if_there(entry.path, f"{QUARANTINE}/{entry.name}")
        for name, data in small.config.items():
            into.data(f"{CONFIG}/{name}", data)
        into.data(f"{CONFIG}/{QUEUE_OFFSETS}", render_queue_offsets(small.offsets))
        own = {name: value for name, value in small.facts.settings.items() if name not in LOG_PATHS}
        facts = replace(small.facts, settings=own, log_begin=begin)
        into.data(manifest_file.FILE_NAME, manifest_file.whole(max(1, facts.sequence), render(facts)))
        # Nothing is derived yet; the open walks the whole log, as after a crash.
        fields = at._replace(logics_timestamp=0, index_timestamp=0, index_watermark=0)
        into.data(checkpoint.FILE_NAME, render_checkpoint(fields))
        into.data(ABORT_NAME, b"")


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
