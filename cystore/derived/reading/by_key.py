"""Messages by key: from the index, and from the log behind the part that the index covers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.key_reader import QueryResult, find_messages
from cystore._native.lookup.many_keys import find_many
from cystore._native.lookup.tail import TailKeys
from cystore._native.lookup.visible import has_expired
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import text, whole
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.many_keys import add_newer, newest_first, several
from cystore.derived.reading.request import stored_topic
from cystore.derived.reading.windows import SpareWindows
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError
from cystore.layout import takes_index_entry

log = logging.getLogger("cystore")

FOREVER_MS = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
DEFAULT_COUNT = 32  # messages of a query
REPLACED = "�"  # bytes that are not UTF-8 become this


def log_damage(damaged: Iterable[CorruptRecordError]) -> None:
    """Logs each place that the index names and that has no valid record."""
    for error in damaged:
        log.error("a query met damage: %s", error)


class KeySearch:
    """Answers queries by key, from any thread. `keys` are those that dispatch has not entered."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        index: IndexFiles,
        counts: ReadCounts,
        windows: SpareWindows,
        help_dispatch: DispatchHelp,
        keys: TailKeys,
    ) -> None:
        self._control, self._commit_log, self._index = control, commit_log, index
        self._counts, self._windows, self._help = counts, windows, help_dispatch
        self._keys = keys

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        with_expired: bool = False,
    ) -> QueryResult:
        """The newest `max_count` messages of a topic that hold a key (one of `keys`, or the unique key), newest first.

        A damaged record does not hide the intact ones; the result's `damaged` names it.

        Only messages with a store timestamp from `begin_ms` to `end_ms` (default: any later one). The key of each
        message is compared, so another key with the same hash is no match, and no message comes twice. Expired messages
        come only with `with_expired`. Source: DefaultMessageStore.queryMessage.
        """
        name = stored_topic(topic)
        key = text("key", key)
        if end_ms is None:
            end_ms = FOREVER_MS
        if not (
            type(max_count) is type(begin_ms) is type(end_ms) is int
            and 0 < max_count <= INT32_MAX
            and -FOREVER_MS <= begin_ms <= end_ms <= FOREVER_MS
        ):
            max_count = whole("max_count", max_count, 1, INT32_MAX)
            begin_ms = whole("begin_ms", begin_ms, -FOREVER_MS, FOREVER_MS)
            end_ms = whole("end_ms", end_ms, -FOREVER_MS, FOREVER_MS)
        encoded = key.encode()
        control = self._control
        self._counts.count_queries(1)
        wrote = control.wrote
        if control.dispatched < wrote:
            self._help.run()
        dispatched = control.dispatched
        window = self._commit_log.window(with_expired=True) if with_expired else self._windows.take()
        # A key with the replacement character is compared as text; any other key is compared by its bytes.
        as_text = not key.isascii() and REPLACED in key
        found = find_messages(
            window, control, self._index.shapes(), name, encoded, FOREVER_MS if as_text else max_count, begin_ms,
            end_ms,
            any_key=as_text,
        )  # fmt: skip
        messages, damaged = list(found), found.damaged
        log_damage(damaged)
        if as_text:
            messages = [message for message in messages if _has_key(message, key)][:max_count]
        if dispatched < wrote:
            newer: list[Message] = []  # oldest first
            try:
                if as_text:
                    for message in self._not_dispatched(
                        dispatched, wrote, topic, begin_ms, end_ms, with_expired
                    ):
                        if _has_key(message, key):
                            newer.append(message)
                else:
                    newer = self._newer(window, name, encoded, dispatched, wrote, max_count, begin_ms, end_ms)
            except CorruptRecordError as error:
                log.error(
                    "a query cannot read behind damage that dispatch has not stepped over yet: %s", error
                )
                damaged = [*damaged, error]
            messages = newest_first([*newer, *messages], max_count)
        if not with_expired:
            self._windows.give_back(window)
        return QueryResult(messages, damaged)

    def query_many(
        self, topic: str, keys: Iterable[str], max_count: int = DEFAULT_COUNT
    ) -> dict[str, QueryResult]:
        """`query` for many keys: one dispatch, one walk over the undispatched log, and one call of the kernel for the
        rest."""
        name = stored_topic(topic)
        max_count = whole("max_count", max_count, 1, INT32_MAX)
        wanted = several(keys)
        control = self._control
        wrote = control.wrote
        if control.dispatched < wrote:
            self._help.run()
        dispatched = control.dispatched
        window, shapes = self._windows.take(), self._index.shapes()
        as_text = []
        answers, unanswered = find_many(window, control, shapes, name, wanted, max_count)
        found = cast(dict[str, QueryResult], answers)  # when all keys are answered
        if unanswered:
            for key in [key for key, messages in answers.items() if messages is None]:
                if REPLACED in key:
                    as_text.append(key)
                    found[key] = QueryResult()
                else:
                    found[key] = find_messages(
                        window, control, shapes, name, key.encode(), max_count, 0, FOREVER_MS
                    )
                    log_damage(found[key].damaged)
        self._counts.count_queries(len(found) - len(as_text))
        if dispatched < wrote:
            look = partial(self._keys.find_messages, control, window, control.min_physical_offset, wrote)
            path = self._commit_log.files.directory
            add_newer(found, partial(look, dispatched, name), wrote, max_count, path)
        self._windows.give_back(window)
        for key in as_text:
            found[key] = self.query(topic, key, max_count)
        return found

    def _newer(
        self,
        window: LogWindow,
        name: bytes,
        key: bytes,
        dispatched: int,
        wrote: int,
        max_count: int,
        begin_ms: int,
        end_ms: int,
    ) -> list[Message]:
        """Messages with the key that the index does not know yet, oldest first. Damage ends the walk before it."""
        minimum = self._control.min_physical_offset
        found, end = self._keys.find_messages(
            self._control, window, minimum, wrote, dispatched, name, key, max_count, begin_ms, end_ms
        )
        if end < wrote:
            log.error(
                "%s: a query cannot read behind damage at %d, which dispatch has not stepped over yet",
                self._commit_log.files.directory,
                end,
            )
        return found[::-1]

    def _not_dispatched(
        self, begin: int, end: int, topic: str, begin_ms: int, end_ms: int, with_expired: bool = False
    ) -> Iterator[Message]:
        """The part of the log that the index does not cover, because dispatch stands still (a full or failing disk, a
        stopped process). Raises CorruptRecordError at damage."""
        for message in self._commit_log.scan(begin, end):
            in_time = begin_ms <= (message.store_timestamp_ms or 0) <= end_ms
            wanted_one = in_time and message.topic == topic and takes_index_entry(message.sys_flag)
            if wanted_one and (with_expired or not has_expired(self._control, message)):
                yield message


def _has_key(message: Message, key: str) -> bool:
    return key in message.keys or key == message.properties.get("UNIQ_KEY")
