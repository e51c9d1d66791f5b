"""The commit of a write, on the driver, which runs on the store's host: staged rows get their offsets and become
durable.

Without a name, a job's rows are appended and flushed. A kill in between leaves some of them, and the repeated job
appends all again. With a name (`Sink`), the commit writes a note before and after the records; sinks.py lists the
states that a kill leaves. The next commit finishes an unfinished batch from its first files, even if Spark stages the
batch again, because its rows may then come in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cystore._native.record.message import Message
from cystore._native.system.failpoint import failpoint
from cystore.errors import (
    MessageIllegalError,
    NotAcknowledgingError,
    PageCacheBusyError,
    PoolDeficientError,
    StoreConfigError,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreIsSlaveError,
)
from cystore.spark.sink.queue_room import check_queues
from cystore.spark.sink.rows import messages
from cystore.spark.sink.sinks import Begun, SinkLog, SinkNote, read_note
from cystore.spark.sink.staged_rows import (
    StagedFile,
    TaskMessage,
    check_staged,
    clear_dead,
    clear_folder,
    staged_batches,
)
from cystore.spark.sink.write_options import Sink, WriteOptions
from cystore.store import MessageStore
from cystore.store import open as open_store
from cystore.system import files

log = logging.getLogger("cystore")

CHUNK_ROWS = 4096
CHUNK_BYTES = 4 * 1024 * 1024
FLUSH_BYTES = 64 * 1024 * 1024
# Refusals by a store that goes on: some of a write's records may be in the log.
REFUSED: tuple[type[StoreError], ...] = (
    *(StoreFullError, MessageIllegalError, PageCacheBusyError, PoolDeficientError),
    *(StoreIsSlaveError, NotAcknowledgingError),
)


@dataclass(frozen=True)
class Commit:
    """The commit of one job or micro-batch: `folder` has the files that its tasks staged."""

    options: WriteOptions
    folder: Path
    tasks: tuple[TaskMessage, ...]
    batch: int | None

    @property
    def staged(self) -> tuple[StagedFile, ...]:
        return tuple(task.staged for task in self.tasks if task.staged is not None)

    @property
    def query(self) -> str | None:
        return next((task.query for task in self.tasks if task.query is not None), None)

    def run(self) -> int:
        """Appends the missing records durably; returns their number. Raises the errors of `cystore.open` and
        `put_many`, StoreConfigError for a batch that cannot be this sink's next batch, StoreIOError for missing staged
        files."""
        with open_store(self.options.path, **self.options.settings) as store:
            self._check_sizes(store)
            sink = self.options.sink
            if sink is None or self.batch is None:
                count = self._append_once(store)
            else:
                count = NamedCommit(self, SinkLog(store, sink), self.batch).run()
        clear_dead(Path(self.options.staging))
        return count

    def _check_sizes(self, store: MessageStore) -> None:
        """Checks the largest record: an existing store has its own file size, which the tasks do not know."""
        largest = max((task.largest_bytes for task in self.tasks), default=0)
        most = store.snapshot().file_bytes
        if largest > most:
            raise MessageIllegalError(
                f"column value: a record takes up to {largest} bytes, a whole commit log file {most}; nothing "
                "was written",
                path=store.path,
            )

    def _append_once(self, store: MessageStore) -> int:
        check_staged(self.folder, self.staged)
        check_queues(store, self.folder, self.staged)
        count = append(store, staged_messages(self.folder, self.staged, None, 0))
        clear_folder(self.folder)
        return count


@dataclass(frozen=True)
class NamedCommit:
    """The commit of a sink's batch."""

    commit: Commit
    sinks: SinkLog
    batch: int

    def run(self) -> int:
        """See Commit.run."""
        with self.sinks.locked():
            note, count = self._finish(self._without_dropped(self.sinks.read()))
            self._check_order(note)
            if note.has(self.batch):
                log.info("%s: batch %d of %s is appended", self.sinks.store.path, self.batch, self._sink)
            elif self.commit.staged:
                count += self._append(note)
            clear_folder(self.commit.folder)
            return count

    @property
    def _sink(self) -> Sink:
        return self.sinks.sink

    def _without_dropped(self, note: SinkNote) -> SinkNote:
        """The note without the unfinished batch that the user gives up: its records stay in the log, and the rest is
        never appended."""
        given, begun = self.commit.options.given_up, note.begun
        if given is None or begun is None:
            return note
        if begun.batch != given:
            raise StoreConfigError(
                f"dropUnfinished names {self._called(given)}, but the unfinished one is {begun.batch}",
                path=self.sinks.path,
            )
        store = self.sinks.store
        store.flush_log()
        log.warning(
            "%s: %s is given up with %d of its %d records in the log",
            store.path,
            self._called(begun.batch),
            self.sinks.appended_of(begun),
            begun.rows,
        )
        note = replace(note, begun=None)
        self.sinks.write(note)
        clear_folder(Path(begun.folder), but=self.commit.staged)
        return note

    def _called(self, batch: int) -> str:
        return f"{'batch' if self._sink.is_stream else 'version'} {batch} of {self._sink}"

    def _with_way_out(self, error: StoreError, begun: Begun, there: int) -> StoreError:
        """The error, with the version that it concerns and what ends it."""
        text = (
            f"{self._called(begun.batch)} has {there} of its {begun.rows} records in the log, and the next one is "
            f"refused: {error}. Remove the cause and write again: the rest is appended first. Or write with option "
            f"dropUnfinished={begun.batch}: the rest is never appended, and that number may be written anew"
        )
        error.args = (text,)
        return error

    def _finish(self, note: SinkNote) -> tuple[SinkNote, int]:
        """Appends the missing records of an unfinished batch: this batch, or an earlier batch that was not repeated."""
        begun = note.begun
        if begun is None:
            return note, 0
        store, folder = self.sinks.store, Path(begun.folder)
        store.flush_log()  # the scan ends at the committed position
        there = self.sinks.appended_of(begun)
        if there == 0 and store.snapshot().minimum > begun.position:
            raise StoreConfigError(
                f"batch {begun.batch} of {self._sink} began in a part of the log that was cleaned since: it is unknown "
                "whether the batch was appended; "
                f"remove the file to append it again, or write with option dropUnfinished={begun.batch} to go on",
                path=self.sinks.path,
            )
        log.warning(
            "%s: batch %d of %s was interrupted after %d of %d records; appending the rest",
            store.path,
            begun.batch,
            self._sink,
            there,
            begun.rows,
        )
        if there < begun.rows:
            try:
                check_staged(folder, begun.files)
            except StoreIOError as error:
                if there:
                    raise StoreIOError(
                        f"batch {begun.batch} of {self._sink} has {there} of {begun.rows} records, and the "
                        "staged files of the rest "
                        f"are gone ({error}); restore them, or remove the file to append the whole batch again, "
                        f"or write with option dropUnfinished={begun.batch} to go on without the rest",
                        path=self.sinks.path,
                    ) from error
                note = replace(note, begun=None)  # the log has no record of it: it counts as not begun
                self.sinks.write(note)
                return note, 0
        try:
            if there < begun.rows:
                check_queues(store, folder, begun.files)
            return self._end(note, begun, there)
        except REFUSED as error:
            store.flush_log()
            raise self._with_way_out(error, begun, self.sinks.appended_of(begun)) from None

    def _check_order(self, note: SinkNote) -> None:
        """Checks the batch's number: a stream's numbers ascend from its checkpoint; an application chooses its own."""
        if self._sink.is_stream:
            query = self.commit.query
            if note.query is not None and query is not None and query != note.query:
                raise StoreConfigError(
                    f"{self._sink} belongs to query {note.query}, whose last batch is {note.last}; but this is query "
                    f"{query} with another "
                    "checkpoint, whose batches have the same numbers: give it another sinkId",
                    path=self.sinks.path,
                )
            if self.batch < note.last:
                raise StoreConfigError(
                    f"batch {self.batch} of {self._sink} follows batch {note.last}: the checkpoint is older "
                    "than the last write, and "
                    "its batches may begin and end elsewhere; give the query another sinkId, and expect rows "
                    "that are written twice",
                    path=self.sinks.path,
                )
        elif self.batch < note.forgotten_below:
            raise StoreConfigError(
                f"version {self.batch} of {self._sink} is below {note.forgotten_below}: it is unknown whether "
                "it was written",
                path=self.sinks.path,
            )

    def _append(self, note: SinkNote) -> int:
        check_staged(self.commit.folder, self.commit.staged)
        store = self.sinks.store
        check_queues(store, self.commit.folder, self.commit.staged)
        store.flush_log()  # a power cut must not make the log shorter than the noted position
        position = store.snapshot().flushed
        begun = Begun(self.batch, position, str(self.commit.folder), self.commit.staged)
        before, note = note, replace(note, begun=begun, query=self.commit.query or note.query)
        self.sinks.write(note)
        failpoint("sink.begun")
        try:
            return self._end(note, begun, 0)[1]
        except REFUSED as error:
            store.flush_log()
            there = self.sinks.appended_of(begun)
            if there:
                raise self._with_way_out(error, begun, there) from None
            self.sinks.write(before)  # nothing was written, so nothing is unfinished
            raise

    def _end(self, note: SinkNote, begun: Begun, there: int) -> tuple[SinkNote, int]:
        """Appends a batch from record number `there` on, and notes that it is complete."""
        mark = f"{self._sink.id}:{begun.batch}:"
        folder = Path(begun.folder)
        rest = staged_messages(folder, begun.files, lambda number: f"{mark}{number}", there)
        count = append(self.sinks.store, rest if there < begun.rows else ())
        failpoint("sink.appended")
        note = note.ended(begun.batch)
        self.sinks.write(note)
        failpoint("sink.ended")
        if folder != self.commit.folder:
            clear_folder(folder)
        return note, count


def staged_messages(
    folder: Path, staged: Iterable[StagedFile], stamp: Callable[[int], str] | None, skip: int
) -> Iterator[Message]:
    """Messages of staged files in their order, without the first `skip`."""
    first = 0
    for batch in staged_batches(folder, staged):
        rows = batch.num_rows
        if first + rows > skip:
            begin = max(skip - first, 0)
            yield from messages(batch.slice(begin), stamp, first + begin)
        first += rows


def append(store: MessageStore, rows: Iterable[Message]) -> int:
    """Appends messages in chunks that fit into memory and hold no lock for long; returns their number when all are
    durable."""
    count = unflushed = 0
    for chunk in _chunks(rows):
        results = store.put_many(chunk, flush="async")
        failpoint("sink.chunk")
        count += len(results)
        unflushed += sum(result.size_bytes for result in results)
        if unflushed >= FLUSH_BYTES:
            store.flush_log()
            unflushed = 0
    store.flush_log()
    return count


def _chunks(rows: Iterable[Message]) -> Iterator[list[Message]]:
    chunk: list[Message] = []
    size = 0
    for message in rows:
        chunk.append(message)
        size += len(message.body)
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def all_there(messages: Sequence[object]) -> tuple[TaskMessage, ...]:
    """The tasks' messages. Raises StoreError if a message is missing: its rows would be lost."""
    found = tuple(message for message in messages if isinstance(message, TaskMessage))
    if len(found) != len(messages):
        missing = [
            str(number) for number, message in enumerate(messages) if not isinstance(message, TaskMessage)
        ]
        raise StoreError(
            f"{len(missing)} of {len(messages)} tasks did not report their staged files (task "
            f"{', '.join(missing[:10])}): nothing was written"
        )
    return found


def abort(options: WriteOptions, folder: Path, messages: Sequence[object]) -> None:
    """Removes the files that a failed job staged, except those of an unfinished batch, which the next commit finishes.
    Under a name it removes only the job's own files, because another job with that name may be at work."""
    if options.sink is None:
        clear_folder(folder)
        return
    begun = read_note(Path(options.path), options.sink).begun
    kept = {file.name for file in begun.files} if begun is not None else set()
    for message in messages:
        if isinstance(message, TaskMessage) and message.staged and message.staged.name not in kept:
            files.remove(folder / message.staged.name, durable=False)
