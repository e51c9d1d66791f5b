"""MessageStore: the one object that users open. It composes the parts of an attachment and holds no bytes itself."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from cystore._native.append.appender import Appender
from cystore._native.append.put import put_function
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.key_reader import QueryResult, query_function
from cystore._native.lookup.queue_reader import get_function, read_function
from cystore._native.record.argument_checks import function, yes_or_no
from cystore._native.record.argument_checks import path as checked_path
from cystore._native.record.message import Message, PutResult
from cystore._native.system.descriptor import AtDrop
from cystore.attachment.attach import Attachment, attach
from cystore.attachment.interrupted_close import Leaving, keeping, weakly
from cystore.attachment.private_reads import FOLLOWED, follow, has_moved
from cystore.attachment.release_thread import housekeeper
from cystore.attachment.service_threads import start_service
from cystore.config import StoreConfig
from cystore.config_sources import resolve
from cystore.consumers.names import checked_group
from cystore.derived.reading.by_key import DEFAULT_COUNT
from cystore.errors import (
    NotDurableError,
    StoreClosedError,
    StoreConfigError,
    StoreError,
    StoreMovedError,
    StoreNotWritableError,
    StoreResourceError,
    shown,
)
from cystore.filters.given_filter import Filter
from cystore.ha.link.address import split_url
from cystore.services.threads import ServiceThread
from cystore.surface.arrivals import StoreArrivals
from cystore.surface.consumers import StoreConsumers, taken_up_to
from cystore.surface.once import StoreOnce
from cystore.surface.places import StorePlaces
from cystore.surface.timed import StoreTimed
from cystore.surface.transactions import StoreTransactions
from cystore.surface.upkeep import StoreUpkeep
from cystore.surface.waits import StoreWaits
from cystore.system import folders
from cystore.system.links import real_path
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

if TYPE_CHECKING:
    from cystore.ha.facts.shipment import GroupOffsets

log = logging.getLogger("cystore")

_open_stores: weakref.WeakSet[MessageStore] = weakref.WeakSet()
_leavings: weakref.WeakSet[Leaving] = weakref.WeakSet()  # a thread that leaves a store keeps its `Leaving`


def open(  # noqa: A001 - the surface's name
    path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **settings: Any,
) -> MessageStore:
    """Attaches this process to the store in directory `path`; makes the store if it is missing.

    `settings` are fields of `StoreConfig`. They win over environment variables ``CYSTORE_<FIELD>``, and these over a
    TOML file, which `config` or the variable CYSTORE_CONFIG names. If `config` is a `StoreConfig`, it is used
    unchanged.

    Any number of processes and threads may attach at once; ``exclusive=True`` refuses others, ``read_only=True``
    writes nothing. `progress(what, done, total)` is called during long recovery. Close the store, or use it as a
    context manager.

    `path` may also be ``cystore://HOST:PORT,HOST:PORT/path``: a directory of this host with a replica of the log whose
    master is on one of the hosts. A new store becomes a slave that follows it, wherever it is. Any replica answers
    reads; puts are for the host whose store is the master.

    A symbolic link to a store is resolved here, once; inside a store no link is followed.

    A handle notices within a second that its path leads to another directory, or nowhere: a backup was restored, or the
    directory was moved or deleted. A ``read_only=True`` handle then continues with the store at its path, and raises
    StoreMovedError while there is none. Every call of any other handle raises StoreMovedError, until the directory is
    back; `follow_path` makes it continue as well.

    Raises StoreConfigError, StoreLockedError, StoreFormatError (no store, foreign directory, other version attached),
    StorePermissionError (also for a store that another user could replace), StoreFullError.
    """
    if not isinstance(config, StoreConfig):
        if config is not None:
            config = checked_path("config", config, "be a StoreConfig or name a TOML file", StoreConfigError)
        config = resolve(settings, file=config)
    elif settings:
        raise StoreConfigError("give a config or single settings, not both")
    progress = None if progress is None else function("progress", progress, StoreConfigError)
    masters, path = split_url(checked_path("path", path, "name a directory", StoreConfigError))
    try:
        real = real_path(path)
    except ValueError as error:
        raise StoreConfigError(f"path must name a directory, not {shown(path)}: {error}") from error
    if masters:
        from cystore.ha.role import looking_for  # nearly no open needs it

        config = looking_for(masters, real, config)
    return MessageStore(real, config, progress)


def _group_offsets(parts: Attachment) -> GroupOffsets:
    """For the service "ha", which is below consumer groups."""
    from cystore.consumers.replicated import ReplicatedOffsets  # nearly no open needs it

    return ReplicatedOffsets(parts)


class MessageStore(
    StorePlaces,
    StoreWaits,
    StoreTimed,
    StoreUpkeep,
    StoreArrivals,
    StoreConsumers,
    StoreTransactions,
    StoreOnce,
):
    """A store that this process is attached to; made by `cystore.open`. Safe for threads.

    A forked child attaches again by itself at first use. Offsets: a *queue offset* counts messages of one (topic,
    queue id), a *physical offset* is a byte position in the commit log. Times are ms since the epoch. `followed` counts
    how often this handle continued in another directory at its path; then offsets of the one before mean nothing.
    Source: DefaultMessageStore.
    """

    def __init__(
        self, path: Path, config: StoreConfig, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        self.path = path
        self.config = config
        self.followed = 0
        self._follows: bool = config.read_only
        self._at_follow: Callable[[], object] | None = None
        self._place: tuple[int, int] | None = None  # device and inode of the directory
        # Attachments to directories that are not at this handle's path any more. Calls of other threads may still use
        # them: they are left at the next look at the place.
        self._behind: list[tuple[Attachment, Leaving, AtDrop]] = []
        self._lock = os_threads.RLock()
        self._closed = False
        self._was_attached = False  # a forked child that attaches again never makes a second store
        self._progress = progress
        self._parts: Attachment | None = None
        self._private: Attachment | None = None  # instead of `_parts` while this handle reads alone
        self._leaving: Leaving | None = None
        self._dropped: AtDrop
        self._attach()

    # ----------------------------------------------------------------------------------------- attachment

    def _attached(self) -> Attachment:
        """The parts. A forked child gets new ones here; so does a handle that reads alone, after another process
        came; so does a handle that follows its path, after that leads to another directory. Raises StoreMovedError."""
        parts = self._parts
        if parts is not None and not parts.control.place_due:
            return parts
        if parts is not None and self._is_at_place(parts):
            self._leave_behind()
            return parts
        with self._lock:
            private = self._present()
        if private is not None:
            return private
        # Else the put of a signal handler would wait at the gate for its own thread, which has it.
        before = self.followed
        parts = undisturbed(self._attach_again)
        if self.followed != before and self._at_follow is not None:
            self._at_follow()
        return parts

    def _present(self) -> Attachment | None:
        """The parts that are of use, under the lock; None: this process has to attach again."""
        if self._closed:
            raise StoreClosedError("the store is closed", path=self.path)
        private, parts = self._private, self._parts
        if private is None:
            return parts if parts is not None and self._is_at_place(parts) else None
        if has_moved(private):
            return None
        private.control.place_seen()
        return private

    def _is_at_place(self, parts: Attachment) -> bool:
        """Whether the path leads to the directory of these parts. Raises StoreMovedError if this handle does not
        follow its path."""
        try:
            parts.look_at_place()
        except StoreMovedError:
            if not self._follows:
                raise
            return False
        return True

    def _attach_again(self) -> Attachment:
        with self._lock:
            present = self._present()
            if present is not None:
                return present
            before = self._private or self._parts
            if before is None:  # in a forked child
                if self._place is not None and not self._follows:
                    folders.check_leads(str(self.path), self._place)
                return self._unless_closed(self._attach())
            private = before.ground is not None
            stays = private and folders.is_at_place(before.root)
            leaving, dropped = self._leaving, self._dropped
            try:
                parts = self._attach(before if stays else None)
            except BaseException as error:
                self._leaving, self._dropped = leaving, dropped
                if private:
                    self._start(before, [])
                if isinstance(error, StoreError):
                    folders.check_place(before.root)  # raises if the directory was deleted or moved
                raise
            if private:
                dropped.cancel()
                housekeeper.unwatch(before)
                before.replace_private()
            elif leaving is not None:
                self._behind.append((before, leaving, dropped))
            return self._unless_closed(parts)

    def _leave_behind(self) -> None:
        """Leaves the directories that this handle followed its path away from."""
        for entry in list(self._behind):
            _, leaving, dropped = entry
            _leavings.add(leaving)
            try:
                leaving.start()
            except RuntimeError:  # no more threads: at the next look
                return
            dropped.cancel()
            with contextlib.suppress(ValueError):  # another thread did the same
                self._behind.remove(entry)

    def _unless_closed(self, parts: Attachment) -> Attachment:
        """A close that came meanwhile did not find these parts: leaves them."""
        if self._closed:
            self._begin_to_leave(self._leaving)
            raise StoreClosedError("the store is closed", path=self.path)
        return parts

    def _attach(self, instead: Attachment | None = None) -> Attachment:
        """Attaches completely or not at all: an unfinished attachment is left again, even if this object is dropped
        meanwhile."""
        config = self.config.but(create=False) if self._was_attached else self.config
        revive = weakly(self, MessageStore._revive)
        path = self.path
        if self._was_attached and instead is None:
            path = real_path(path)  # perhaps a link is there now
        parts = attach(path, config, revive, self._progress, instead=instead)
        self._was_attached = True
        threads: list[ServiceThread] = []
        leaving = Leaving(parts, threads)
        dropped = AtDrop(leaving.start)  # a store that is dropped without `close` is left as well
        try:
            self._start(parts, threads)
            housekeeper.watch(parts, self.config)
            self._leaving, self._dropped = leaving, dropped
            _open_stores.add(self)
        except BaseException:
            self._unbind()
            try:
                leaving.start()
            except StoreResourceError:
                leaving.here()
            leaving.settle()
            raise
        self._enter_place(parts, path)
        if parts.ground is not None:
            self._parts, self._private = None, parts
        else:
            self._parts, self._private = parts, None
        return parts

    def _enter_place(self, parts: Attachment, path: Path) -> None:
        """Notes the directory of new parts, and counts it if it is another one than before."""
        found = folders.identity(parts.root)
        place = None if found is None else found[1:]
        if self._place is not None and place != self._place:
            self.followed += 1
            log.warning(
                "%s was moved, deleted or replaced: this process continues with the store that is at its path "
                "now; positions of the one before mean nothing in it",
                path,
            )
        self.path, self._place, parts.followed = path, place, self.followed
        parts.control.place_seen()

    def _revive(self) -> Appender:
        """For an Appender that was detached: the Appender of the new attachment."""
        parts = self._attached()
        if parts.appender is None:
            raise StoreNotWritableError("the store is open for reading only", path=self.path)
        if self._closed:
            raise StoreClosedError("the store is closed", path=self.path)
        return parts.appender

    def _start(self, parts: Attachment, threads: list[ServiceThread]) -> None:
        """Puts the kernel's own methods in front of `put`, `put_many` and `query` (a call through Python costs as
        much as the append itself) and starts the services."""
        self._unbind()
        if type(self).query is MessageStore.query:
            general = weakly(self, type(self).query)
            self.query = query_function(parts.reader.by_key, general, self)  # type: ignore[method-assign]
        cls = type(self)
        if cls.get is MessageStore.get and cls.read is MessageStore.read:
            reader = parts.reader.by_offset
            self.get = get_function(reader, weakly(self, cls.get), self)  # type: ignore[method-assign]
            self.read = read_function(reader, weakly(self, cls.read), self)  # type: ignore[method-assign]
        if parts.ground is not None:
            follow(self, self._attached, parts.ground)
        if parts.appender is None:
            return
        if type(self).put is MessageStore.put:
            whole_put = weakly(self, MessageStore.put)
            self.put = put_function(parts.appender, self, whole_put)  # type: ignore[method-assign]
        if type(self).put_many is MessageStore.put_many:
            self.put_many = keeping(self, parts.appender.put_many)  # type: ignore[method-assign]
        parts.group_offsets = _group_offsets
        parts.cleaner.untaken.group_offset = partial(taken_up_to, weakref.ref(parts))
        # The threads keep the parts, not this object. So a store without references is closed, and they end.
        with os_threads.works_for(self.path):
            for name in self.config.services:
                start_service(name, parts, self.config, threads)

    def _forked(self) -> None:
        """In a forked child, which has no threads, and whose locks are the parent's. Only closes, never unlocks."""
        self._lock = os_threads.RLock()
        self._dropped.cancel()
        inherited = [parts for parts in (self._parts or self._private,) if parts is not None]
        for parts, _, dropped in self._behind:
            dropped.cancel()
            inherited.append(parts)
        self._parts = self._private = self._leaving = None
        self._behind = []
        self._unbind()
        for parts in inherited:
            parts.forked()
            # The frames of the parent's threads are never cleared in a child, nor are the objects that they refer to.
            parts.control.release()

    def _unbind(self) -> None:
        for name in ("put", "put_many", *FOLLOWED):
            self.__dict__.pop(name, None)

    def follow_path(self, followed: Callable[[], object] | None = None) -> None:
        """From now on this handle follows its path, as one with ``read_only=True`` does: if another directory with a
        store is there (a backup was restored), each call continues with that one, and `followed()` is called. Messages
        that were put before are in the directory that was moved away."""
        self._attached()  # raises for a closed store
        self._at_follow = None if followed is None else function("followed", followed, StoreConfigError)
        self._follows = True

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Detaches. A handle that may write makes the log durable. The last process out makes everything durable, the
        log first, and marks the store clean. Views of bodies stay readable.

        Waits for calls of other threads that are inside the store: for a put that waits for a slave up to
        `slave_timeout_ms`, for one that waits for the disk up to `sync_flush_timeout_ms`. In a signal handler, or a
        finalizer, that interrupts a call of the same thread, it returns at once. The store is then closed when that
        call ends; the call may raise StoreClosedError. An exception of a handler ends the wait, not the closing. Safe
        to call twice. Raises NotDurableError, after everything was released, when a part of the log may not be on disk.
        """
        leaving = self._leaving
        behind = [other for _, other, _ in self._behind]
        below = leaving is not None and leaving.is_below()
        try:
            self._begin_to_leave(leaving)
        except BaseException:  # perhaps a handler's exception, which must not keep the store attached
            self._begin_to_leave(leaving)
            raise
        if leaving is not None and not below:
            for other in behind:
                other.settle()
            leaving.wait()
            self._leaving = None
        _open_stores.discard(self)

    def _begin_to_leave(self, leaving: Leaving | None) -> None:
        """From now on every call raises StoreClosedError, and the store is left. Safe to repeat."""
        self._closed = True
        self._unbind()
        self._parts = self._private = None
        self._leave_behind()
        if leaving is not None:
            _leavings.add(leaving)
            leaving.start()
            self._dropped.cancel()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NotDurableError:
            if error is None:
                raise  # else the caller needs the error inside; `detach` has logged this one

    def __repr__(self) -> str:
        return f"<MessageStore {str(self.path)!r}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store cannot be copied or pickled: open it by its path in each process")

    # ---------------------------------------------------------------------------------------------- write

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        flush: str | None = None,
        unique_key: str | None = None,
        delay_level: int = 0,
        busy_timeout_ms: int | None = None,
        expires_at_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        dedup_key: str | None = None,
        every_ms: int | None = None,
        missed: str = "once",
        until_ms: int | None = None,
    ) -> PutResult:
        """Appends one message and returns its place.

        `topic` is 1 to 127 of letters, digits, % | _ and -; `body` is any bytes-like object of at most
        max_message_size_bytes (all but `bytes` is copied). `query` finds messages by `keys`, `get` filters by `tags`;
        keys, tags and `properties` together take at most 32,767 bytes. ``flush="sync"`` returns only when the message
        is durable, ``"async"`` at once; the default is the setting flush_disk_type.

        With a `delay_level` from 1 on (of message_delay_level), `deliver_at_ms` (ms since the epoch) or `delay_ms`
        (up to timer_max_delay_s) it waits in SCHEDULE_TOPIC_XXXX until it is due and delivered (`deliver`). The result
        describes its place there. With `every_ms` it comes again and again, until `until_ms` or a `cancel`; `missed`
        says what becomes of times at which nobody delivered: "once", "all" or "skip" (docs/delay.md).
        From `expires_at_ms` on (ms since the epoch) reads leave the message out. With a `dedup_key` only the first put
        of the key within dedup_window_ms appends; each later one returns the place of that message (`put_once`). Waits
        up to `busy_timeout_ms` for a holder of the append lock that makes no progress, such as a stopped process.

        Raises MessageIllegalError, StoreFullError, StoreNotWritableError, PageCacheBusyError, StoreClosedError; with
        sync flush also FlushFailedError and StoreTimeoutError, whose `results` hold the messages that were appended.
        """
        given: dict[str, Any] = {
            "queue_id": queue_id, "keys": keys, "tags": tags, "properties": properties, "flag": flag, "flush": flush,
            "unique_key": unique_key, "delay_level": delay_level, "busy_timeout_ms": busy_timeout_ms,
            "expires_at_ms": expires_at_ms, "deliver_at_ms": deliver_at_ms, "delay_ms": delay_ms,
        }  # fmt: skip
        if every_ms is not None or until_ms is not None:
            return self._put_every(topic, body, every_ms, missed, until_ms, dedup_key, given)
        if dedup_key is not None:
            return self._put_with_key(topic, body, dedup_key, given)
        return self._revive().put(topic, body, **given)

    def put_many(
        self, messages: Sequence[Message], *, flush: str | None = None, batch: bool = False
    ) -> list[PutResult]:
        """Appends messages in order, with one lock and one flush; all are checked before the first is written.

        A kill leaves all or none of the messages that share a segment. Raises the errors of `put`; `results` of an
        error hold the messages that were appended before it.

        ``batch=True`` appends them as RocketMQ appends a batch of a producer: one segment holds all of them, so a
        kill leaves all or none. They have one topic and one queue, follow each other there, and have one store
        timestamp. Their records together have at most max_message_size_bytes; none is delayed, prepared or rolled
        back. Otherwise the call raises MessageIllegalError. Source: CommitLog.asyncPutMessages.
        """
        return self._revive().put_many(messages, flush=flush, batch=batch)

    def flush(self) -> None:
        """Makes everything appended so far durable, queues and index too. Raises FlushFailedError."""
        parts = self._writable()
        parts.flusher.flush_to(parts.control.log_end)
        parts.derived_flusher.flush()

    def _writable(self) -> Attachment:
        """For calls that change the store. Raises StoreMovedError if the path names another directory now."""
        parts = self._attached()
        if parts.appender is None:
            raise StoreNotWritableError("the store is open for reading only", path=self.path)
        folders.check_place(parts.root)
        return parts

    # ----------------------------------------------------------------------------------------------- read

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        tags: str | None = None,
        filter: Filter | None = None,
        group: str | None = None,
        raw: bool = False,
    ) -> GetResult:
        """Reads up to `max_count` messages of a queue from `queue_offset` on (DefaultMessageStore.getMessage).

        `tags` keeps only messages with one of the tags of an expression like ``"A || B"``. `filter` keeps only those
        that match a SQL92 expression over properties (text, or a `SqlFilter`), or for which a callable with the message
        gives true; an error that it raises ends the call. A filtered call examines `max_count` messages, but at least
        800; the next call continues at `next_offset`.

        `group` names the consumer group that reads: `groups.reads` of all processes counts the call. If the group
        registered the expression in `filter` (`filters`), messages that do not match need not be read.

        A read sees everything that was appended before it. ``raw=True`` gives the records in one buffer and an array of
        their offsets instead of objects. Raises CorruptRecordError when a record it would return is damaged,
        FilterError for a filter that cannot be parsed, StoreConfigError for an invalid name of a group.
        """
        reader, raw = self._attached().reader, yes_or_no("raw", raw)
        if group is None:
            return reader.get(topic, queue_id, queue_offset, max_count, tags=tags, filter=filter, raw=raw)
        group = checked_group(group)
        result = reader.get(
            topic, queue_id, queue_offset, max_count, tags=tags, filter=filter, group=group, raw=raw
        )
        self.groups.count_get(group, topic, queue_id, result)
        return result

    def query(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> QueryResult:
        """The newest `max_count` messages of `topic` with `key` among their keys (or as unique key), newest first,
        whose store timestamp is in [begin_ms, end_ms] (DefaultMessageStore.queryMessage).

        The result is a list. Its `damaged` holds a CorruptRecordError for each record that the index names for the
        key and that is damaged.
        """
        return self._attached().reader.query(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)

    def query_many(
        self, topic: str, keys: Iterable[str], max_count: int = DEFAULT_COUNT
    ) -> dict[str, QueryResult]:
        """`query` for many keys at once: for each key the newest `max_count` messages, newest first; an empty list if
        there is none.

        It costs less than a query for each key: it searches the undispatched log once for all keys.
        """
        return self._attached().reader.query_many(topic, keys, max_count)

    def read(self, physical_offset: int) -> Message:
        """The record at a physical offset. Raises OffsetError if none begins there, CorruptRecordError if it is
        damaged."""
        return self._attached().commit_log.read(physical_offset)

    @property
    def recovery(self) -> Any:
        """The RecoveryReport of this attachment; None if other processes had the store open already."""
        recovered = self._attached().recovered
        return None if recovered is None else recovered.report


def _forked() -> None:
    for store in list(_open_stores):
        store._forked()


def close_all() -> None:
    """Closes every open store of this process; registered to run at exit."""
    for store in list(_open_stores):
        with contextlib.suppress(NotDurableError):  # `detach` has logged it
            store.close()
    for leaving in list(_leavings):
        leaving.settle()


os.register_at_fork(after_in_child=_forked)
