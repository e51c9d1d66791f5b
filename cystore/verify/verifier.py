"""Verify: every record's checksum, and consume queues and index against the log. Changes nothing; reads with pread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from cystore.config import StoreConfig
from cystore.engine.files.log_folders import check_list_is_there
from cystore.engine.manifest.manifest import skipped_entries
from cystore.engine.manifest.manifest_file import FILE_NAME
from cystore.engine.manifest.store_settings import effective_at
from cystore.errors import StoreIOError
from cystore.recovery.scan import Progress
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.log_visitor import Key
from cystore.recovery.walk.queue_reader import list_queues, open_queue
from cystore.system.os_errors import is_missing
from cystore.verify.bounds import Bounds, bounds_at_rest, likely_bounds
from cystore.verify.compacted import compacted_damage
from cystore.verify.index_comparison import index_file_damage, past_the_end, unreadable_index
from cystore.verify.queue_comparison import QueueSpan, begins_as_expected
from cystore.verify.record_walk import Comparison

TRIES = 20  # of one part of a verification beside processes that remove files


def verify(
    root: Path,
    config: StoreConfig,
    *,
    abnormal: bool = False,
    bounds: Bounds | None = None,
    minimum: Callable[[], int] | None = None,
    progress: Progress | None = None,
) -> Iterator[Damage]:
    """Every damaged range of the store at `root`, reported holes too.

    Without `bounds` no process may have the store open: verification ends where recovery (`abnormal`: after a crash)
    would end the log, and reports the part that recovery would truncate. After a crash entries may be missing, but none
    may be wrong. With `bounds` other processes may append and clean meanwhile; `minimum()` is the log's present
    minimum offset. Raises StoreFormatError and StoreIOError.
    """
    config = effective_at(config, root)
    check_list_is_there(root, config)
    for what in skipped_entries(root):
        yield Damage(
            "manifest", root / FILE_NAME, 0, 0, f"{what} has no effect, because no topic can have that name"
        )
    if bounds is not None:
        begin = bounds.begin
        yield from _verify_beside(root, config, bounds, minimum or (lambda: begin), progress)
        yield from compacted_damage(root)
        return
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        yield from _verify_at_rest(root, config, reader, progress, abnormal=abnormal)
        yield from compacted_damage(root)
    finally:
        reader.close()


def _verify_beside(
    root: Path, config: StoreConfig, bounds: Bounds, minimum: Callable[[], int], progress: Progress | None
) -> Iterator[Damage]:
    """Verifies beside other processes. The files that they remove meanwhile are no damage: if one is missing, the
    verification begins again with the files that are left."""
    reported: set[Damage] = set()
    for tries_left in reversed(range(TRIES)):
        reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
        try:
            if reader.bases:
                for damage in _Verifier(root, config, reader, bounds, progress).run():
                    if damage not in reported and not _was_removed(damage, minimum()):
                        reported.add(damage)
                        yield damage
            return
        except StoreIOError as error:
            if not tries_left or not is_missing(error):
                raise
        finally:
            reader.close()
        bounds = replace(bounds, begin=max(bounds.begin, minimum()))


def _was_removed(damage: Damage, minimum: int) -> bool:
    """Whether the damage is about records, or a file, that expired meanwhile."""
    if damage.kind == "record":
        return damage.end <= minimum
    return not damage.path.exists()


def _verify_at_rest(
    root: Path, config: StoreConfig, reader: LogReader, progress: Progress | None, *, abnormal: bool
) -> Iterator[Damage]:
    """Verifies up to the end that recovery would find. The comparison itself proves that end for a sound store, so
    the log is read once; recovery's walk is made only after damage."""
    likely = likely_bounds(root, config, reader, abnormal=abnormal)
    found: Iterator[Damage] = iter(())
    first: list[Damage] = []
    if likely is not None:
        work = _Verifier(root, config, reader, likely, progress)
        found = work.run()
        first += islice(found, 1)
        if not first and work.confirmed():
            return
    bounds, behind = bounds_at_rest(root, config, reader, abnormal=abnormal)
    yield from behind
    if bounds == likely:
        yield from first
        yield from found
    elif reader.bases:
        yield from _Verifier(root, config, reader, bounds, progress).run()


class _Verifier:
    """One comparison of a store's files with each other; `run` gives the damage."""

    def __init__(
        self, root: Path, config: StoreConfig, reader: LogReader, bounds: Bounds, progress: Progress | None
    ) -> None:
        self._root, self._config, self._reader, self._bounds = root, config, reader, bounds
        self._progress = progress
        self._queues = list_queues(root, config.mapped_file_size_consume_queue_bytes, [])[0]
        dispatched = replace(bounds, end=min(bounds.dispatched, bounds.end))
        self._comparison = Comparison(root, reader, dispatched, self._queues.get, progress=self._show)

    def _show(self, position: int) -> None:
        if self._progress is not None:
            begin = self._bounds.begin
            self._progress("verify", position - begin, self._bounds.end - begin)

    def run(self) -> Iterator[Damage]:
        """Every damaged range."""
        compared, bounds = self._comparison, self._bounds
        if self._config.message_index_enable:
            yield from self._index_files()
        yield from compared.run()
        yield from self._queue_ends()
        yield from past_the_end(compared.index.stream, compared.scanner.keys_at, bounds)
        if compared.position < bounds.end:
            rest = replace(bounds, begin=compared.position)
            yield from Comparison(
                self._root, self._reader, rest, self._queues.get, follow=False, progress=self._show
            ).run()

    def confirmed(self) -> bool:
        """After a run without damage: whether recovery's walk would end the log at the end of `bounds`, and would
        truncate nothing. See `VerifyParts.confirmed`."""
        compared = self._comparison
        if compared.jumps or compared.position != self._bounds.end or not compared.records:
            return False
        return all(
            begins_as_expected(
                self._bounds, compared.queues.removed, key, self._queues.get(key), span.first_offset
            )
            for key, span in compared.spans().items()
        )

    def _queue_ends(self) -> Iterator[Damage]:
        """Entries without a record in the log, and records without entries."""
        spans = self._comparison.spans()
        for key in sorted({*self._queues, *spans}):
            yield from self._queue_end(key, spans.get(key))

    def _queue_end(self, key: Key, span: QueueSpan | None) -> list[Damage]:
        """The damage at the end of one queue. Another process's cleaner may have removed the queue's first files since
        they were listed."""
        reader = self._queues.get(key)
        for tries_left in reversed(range(TRIES)):
            try:
                return list(self._comparison.queues.end(key, reader, span))
            except StoreIOError as error:
                if self._bounds.complete or not tries_left or not is_missing(error):
                    raise
                reader = open_queue(self._root, *key, self._config.mapped_file_size_consume_queue_bytes)
        return []

    def _index_files(self) -> Iterator[Damage]:
        readers, unreadable = list_readable_index(self._root, self._config)
        yield from map(unreadable_index, unreadable)
        if unreadable:
            return
        for reader in readers:
            yield from index_file_damage(reader, self._bounds)
        stream = IndexStream([reader for reader in readers if reader.sound])
        self._comparison.compare_keys(stream, stream.first_from(0, self._bounds.begin))
