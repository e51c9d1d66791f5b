"""Begins, commits and rolls back transactions; checks those that were not ended (TransactionalMessageServiceImpl).

A commit appends two records: the message that consumers get, and the op message that ends its half message. One segment
holds both, and they are published as one, so a kill leaves both or none. Every end of a transaction happens under the
deliver lock, after a look at the ends so far. So a transaction has one end, whichever process asks for it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cystore import clock
from cystore._native.memory.control import WROTE
from cystore._native.record.argument_checks import any_text, choice, function, whole
from cystore._native.record.message import Message, PutResult, encode_host
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.clock import monotonic_s
from cystore.consumers.groups import Groups
from cystore.consumers.names import checked_group
from cystore.engine.log.append_policy import FLUSH_REPLICATED, FLUSH_SYNC
from cystore.errors import (
    CorruptRecordError,
    MessageIllegalError,
    OffsetError,
    PageCacheBusyError,
    QueuesFullError,
    StoreConfigError,
    StoreError,
    StoreLockedError,
    StoreTimeoutError,
    TransactionError,
    shown,
)
from cystore.layout import FLAGS, HALF_TOPIC, OP_TOPIC
from cystore.services.delay.recurring import check_room_to_wait, due_time_of
from cystore.services.delay.transfer import Room, RoomNeededError
from cystore.system.threads import os_threads
from cystore.transactions.facts import LogFacts
from cystore.transactions.half import (
    ASKED_AGAIN,
    COMMITTED,
    DISCARDED,
    OUTCOME,
    ROLLED_BACK,
    HalfMessage,
    asked_again_of,
    checks_of,
    committed_of,
    discarded_of,
    half_of,
    handle_of,
    lacks_room_for_check,
    mark,
    op_of,
)
from cystore.transactions.table import GROUP, SetAside, TransactionTable

log = logging.getLogger("cystore")

PRODUCER_GROUP = "cystore"
HOUR_MS = 3_600_000
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]
FULL_WAIT_S = 3_600.0  # for a half message that cannot even be discarded
OUTCOMES = {COMMITTED: "committed", ROLLED_BACK: "rolled back", DISCARDED: "discarded after too many checks"}
Check = Callable[[HalfMessage, Message], str | None]


class Checked(NamedTuple):
    """The result of `check_transactions`: numbers of transactions. `asked_again` were left open; `failed` counts
    checks that raised an error, and steps that could not be done, or not noted in full. Their transactions are open."""

    committed: int = 0
    rolled_back: int = 0
    asked_again: int = 0
    discarded: int = 0
    failed: int = 0


class Transactions:
    """The transactions of one store, for one handle."""

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    # ---------------------------------------------------------------------------------------------- ends

    def begin(
        self,
        topic: str,
        body: Any,
        *,
        queue_id: int = 0,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        producer_group: str = PRODUCER_GROUP,
        flush: str | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> HalfMessage:
        """See MessageStore.begin."""
        parts = self._store._writable()
        group = checked_group(producer_group)
        name = any_text("topic", topic, MessageIllegalError)
        transaction = uuid.uuid4().hex.upper()
        message = Message(
            topic=name, body=body, queue_id=queue_id, keys=keys, tags=tags, properties=properties, flag=flag,
            unique_key=transaction, deliver_at_ms=deliver_at_ms, delay_ms=delay_ms,
        )  # fmt: skip
        now_ms, most_ms = clock.now_ms(parts.control), parts.config.timer_max_delay_s * 1000
        due_ms = due_time_of(deliver_at_ms, delay_ms, now_ms, most_ms)
        half = half_of(message, encode_host(parts.config.store_host, "store_host"), group, due_ms)
        if due_ms is not None:
            assert parts.appender is not None
            check_room_to_wait(half, name, parts.commit_log.file_bytes)
            parts.appender.policy.begin_timer()
        most = parts.config.max_message_size_bytes
        if len(half.body) > most:
            raise MessageIllegalError(
                f"body: {len(half.body)} bytes, at most max_message_size_bytes = {most}"
            )
        self._reserve_queue_of_ends(parts)
        self._table()  # the first one marks lost notes
        (put,) = self._store.put_many([half], flush=flush)
        return handle_of(transaction, message, put)

    @staticmethod
    def _reserve_queue_of_ends(parts: Attachment) -> None:
        """Adds the queue of ends before the first half message, because a transaction could not be ended in a store
        without a free queue slot. Raises QueuesFullError."""
        control = parts.control
        while control.find_queue(OP_TOPIC, 0) < 0:
            assert parts.appender is not None
            if control.queue_count >= control.queue_capacity:
                parts.appender.policy.more_queues()
            with control.held(
                "append", timeout_ms=parts.config.os_page_cache_busy_timeout_ms, busy=PageCacheBusyError
            ):
                if control.find_queue(OP_TOPIC, 0) < 0 and control.queue_count < control.queue_capacity:
                    control.add_queue(OP_TOPIC, 0)

    def commit(self, half: HalfMessage | str, *, flush: str | None = None) -> PutResult:
        """See MessageStore.commit."""
        return self._end(half, COMMITTED, flush)[0]

    def rollback(self, half: HalfMessage | str, *, flush: str | None = None) -> None:
        """See MessageStore.rollback."""
        self._end(half, ROLLED_BACK, flush)

    def _end(self, half: HalfMessage | str, outcome: str, flush: str | None) -> list[PutResult]:
        transaction = _id_of(half)
        offset = half.queue_offset if isinstance(half, HalfMessage) else None
        results = self._append(
            partial(TransactionTable.find, transaction=transaction, queue_offset=offset), outcome, flush
        )
        if results is None:
            raise self._no_longer_open(transaction)
        return results

    def _append(
        self,
        find: Callable[[TransactionTable], HalfMessage | None],
        outcome: str,
        flush: str | None = None,
    ) -> list[PutResult] | None:
        """Ends the half message that `find` gives, all or nothing. None if it gives none, because the transaction is
        not open."""
        parts, table = self._store._writable(), self._table()
        assert parts.appender is not None
        code = _flush_code(parts, flush)
        room = Room(parts.appender.policy)
        self._catch_up(parts, table)  # most of the catching up, without the lock
        while True:
            _check_not_inside(parts, "deliver", "delivers messages or ends a transaction")
            try:
                with parts.control.held(
                    "deliver", timeout_ms=parts.config.os_page_cache_busy_timeout_ms, busy=PageCacheBusyError
                ):
                    self._catch_up(parts, table)
                    half = find(table)
                    if half is None:
                        return None
                    records = self._records(parts, half, outcome)
                    failpoint("transaction.ending")
                    results = parts.appender.put_with(room, records, together=True)
                    failpoint("transaction.ended")
                break
            except RoomNeededError as needed:
                needed.make()
        if code:
            try:
                parts.appender.policy.reach(results[-1].physical_offset + results[-1].size_bytes, code)
            except StoreError as error:
                error.results = results[:-1]
                raise
        return results

    @staticmethod
    def _catch_up(parts: Attachment, table: TransactionTable) -> None:
        """Reads every end so far: a transaction whose end is appended and not dispatched would get a second one. Raises
        the errors of dispatch, StoreTimeoutError."""
        parts.control.commit()
        wrote = parts.control.wrote
        wait_ms = parts.config.os_page_cache_busy_timeout_ms
        parts.dispatcher.run_once(timeout_ms=wait_ms)
        if parts.control.dispatched < wrote:
            _check_not_inside(parts, "dispatch", "dispatches the log, so ends of transactions may be unknown")
            raise StoreTimeoutError(
                f"the log is dispatched up to {parts.control.dispatched}, not to {wrote}, so ends of transactions may "
                f"be unknown: another dispatcher has been at it for {wait_ms} ms",
                path=parts.root,
            )
        table.catch_up()

    def _records(self, parts: Attachment, half: HalfMessage, outcome: str) -> list[Message]:
        """The records that end a half message in this way. Raises TransactionError if the half message is gone."""
        if outcome == ROLLED_BACK:
            return [op_of(half, outcome)]
        try:
            stored = parts.commit_log.read(half.physical_offset)
        except (OffsetError, CorruptRecordError) as error:
            raise TransactionError(
                f"transaction {half.id}: its half message cannot be read any more: {error}",
                path=parts.root,
                offset=half.physical_offset,
            ) from error
        if outcome == COMMITTED:
            return [committed_of(stored, half, clock.now_ms(parts.control)), op_of(half, outcome)]
        if outcome == DISCARDED:
            return [discarded_of(stored), op_of(half, outcome)]
        return [asked_again_of(stored), op_of(half, outcome)]

    def _no_longer_open(self, transaction: str) -> TransactionError:
        """The error for a transaction that is ended or unknown, with its outcome if that is known."""
        found = [
            op.properties[OUTCOME]
            for op in self._store._attached().reader.query(OP_TOPIC, transaction, read_end=WROTE)
            if op.properties.get(OUTCOME) in OUTCOMES
        ]
        what = f"it was {OUTCOMES[found[0]]}" if found else "the store knows no open transaction of this id"
        return TransactionError(f"transaction {transaction}: {what}", path=self._store._attached().root)

    # --------------------------------------------------------------------------------------------- the table

    def _table(self) -> TransactionTable:
        parts = self._store._attached()
        if parts.transactions is None:
            offsets = Groups(self._store).offsets(GROUP)
            parts.transactions = TransactionTable(
                partial(parts.reader.get, read_end=WROTE),
                offsets.get((HALF_TOPIC, 0), 0), offsets.get((OP_TOPIC, 0), 0), LogFacts(parts),
            )  # fmt: skip
            self._mark_lost_notes(parts, parts.transactions)
        assert isinstance(parts.transactions, TransactionTable)
        return parts.transactions

    @staticmethod
    def _mark_lost_notes(parts: Attachment, table: TransactionTable) -> None:
        """Where notes are lost at the end of their queue, puts a mark behind them, so that half messages that are put
        later are not in doubt."""
        if parts.appender is None:
            return
        table.catch_up()
        if table.needs_mark and not parts.control.flags & FLAG_SLAVE:
            try:
                parts.appender.put_with(parts.appender.policy, [mark()])
            except StoreError as error:
                log.warning("half messages that are put from now on may be set aside: %s", error)

    def open(self, older_than_ms: int = 0) -> list[HalfMessage]:
        """See MessageStore.open_transactions."""
        age_ms = whole("older_than_ms", older_than_ms, 0)
        table, parts = self._table(), self._store._attached()
        table.catch_up()
        until_ms = clock.now_ms(parts.control) - age_ms
        return [half for half in table.open() if half.begun_ms <= until_ms]

    def set_aside(self) -> dict[HalfMessage, str]:
        """See MessageStore.set_aside_transactions."""
        table = self._table()
        table.catch_up()
        return table.all_aside()

    # -------------------------------------------------------------------------------------------- checking

    def check(self, check: Check) -> Checked:
        """See MessageStore.check_transactions."""
        parts, table = self._store._writable(), self._table()
        function("check", check, StoreConfigError)
        counts = dict.fromkeys(Checked._fields, 0)
        table.catch_up()
        end = parts.reader.log_end  # a failover may take back what is behind it: nobody is asked about that
        interval_s = parts.config.transaction_check_interval_ms / 1000
        wrong: TransactionError | None = None
        for half in table.open():
            if half.physical_offset >= end or table.is_aside(half):
                continue
            try:
                stored = parts.commit_log.read(half.physical_offset)
            except (OffsetError, CorruptRecordError) as error:
                log.warning("transaction %s is lost with its half message: %s", half.id, error)
                table.drop(half)
                continue
            try:
                outcome = self._outcome(parts, half, stored, check, counts)
            except TransactionError as error:
                wrong = wrong or error
                table.set_aside(half, SetAside(str(error), monotonic_s() + interval_s))
                continue
            if outcome is None:
                continue
            if outcome == ASKED_AGAIN and lacks_room_for_check(stored):
                counts["failed"] += self._ask_a_full_one_again(half)
                continue
            try:
                ended = self._end_checked(half, outcome)
            except (MessageIllegalError, QueuesFullError, TransactionError) as error:
                table.put_off(half, str(error), interval_s)
                counts["failed"] += 1
                continue
            if ended:
                counts[_COUNTED[outcome]] += 1
        self._save(table)
        if wrong is not None:
            raise wrong
        return Checked(**counts)

    def _end_checked(self, half: HalfMessage, outcome: str) -> bool:
        """Ends a half message if it is still open."""
        return self._append(partial(TransactionTable.still, half=half), outcome) is not None

    def _ask_a_full_one_again(self, half: HalfMessage) -> int:
        """For a half message whose properties have no room for the note of a check: 1. The copy for the next check
        leaves properties of brokers out. If that is no help, the message goes to the discarded ones."""
        for outcome in (ASKED_AGAIN, DISCARDED):
            try:
                self._end_checked(half, outcome)
            except MessageIllegalError as error:
                log.warning("transaction %s cannot be noted as %s: %s", half.id, outcome, error)
                self._table().put_off(half, str(error), FULL_WAIT_S)
            except QueuesFullError as error:
                self._table().put_off(half, str(error), FULL_WAIT_S)
                break
            else:
                log.warning("transaction %s: its properties have no room for the note of a check", half.id)
                break
        return 1

    def _outcome(
        self, parts: Attachment, half: HalfMessage, stored: Message, check: Check, counts: dict[str, int]
    ) -> str | None:
        """The next step of an open transaction; None: it is too young to ask."""
        config, now_ms, times = parts.config, clock.now_ms(parts.control), checks_of(stored)
        reserved_ms = self._store.settings.file_reserved_time_h * HOUR_MS
        if times >= config.transaction_check_max or now_ms - stored.born_timestamp_ms > reserved_ms:
            return DISCARDED
        patience_ms = config.transaction_check_interval_ms if times else config.transaction_timeout_ms
        if now_ms - half.begun_ms < patience_ms:
            return None
        try:
            answer = check(half, stored)
        except Exception:
            log.exception("the check of transaction %s failed; it is asked again later", half.id)
            counts["failed"] += 1
            return ASKED_AGAIN
        if answer is None:
            return ASKED_AGAIN
        if not isinstance(answer, str) or answer not in (COMMITTED, ROLLED_BACK):
            counts["failed"] += 1
            raise TransactionError(
                f"check must give 'commit', 'rollback' or None, not {shown(answer)} for transaction {half.id}, which "
                "stays open; the others were checked"
            )
        return answer

    def _save(self, table: TransactionTable) -> None:
        """Lets the next table begin behind the ended transactions."""
        table.catch_up()  # the ends of this turn
        half_offset, op_offset = table.begins()
        groups = Groups(self._store)
        groups.move(GROUP, HALF_TOPIC, 0, half_offset)
        groups.move(GROUP, OP_TOPIC, 0, op_offset)


_COUNTED = {
    COMMITTED: "committed",
    ROLLED_BACK: "rolled_back",
    ASKED_AGAIN: "asked_again",
    DISCARDED: "discarded",
}


def _id_of(half: HalfMessage | str) -> str:
    if isinstance(half, HalfMessage):
        return half.id
    return any_text("half", half, TransactionError)


def _check_not_inside(parts: Attachment, lock: str, what: str) -> None:
    """Raises StoreLockedError if a signal handler interrupted a call of its own thread that has a lock."""
    if parts.control.turn_owner(lock) == os_threads.native_id():
        raise StoreLockedError(
            f"an interrupted call of this thread {what}: end the transaction when the signal handler has returned",
            path=parts.root,
        )


def _flush_code(parts: Attachment, flush: str | None) -> int:
    """FLUSH_SYNC and FLUSH_REPLICATED, as a put takes them."""
    default = FLUSH_SYNC if parts.config.flush_disk_type == "sync" else 0
    codes = {None: default, "async": 0, "sync": FLUSH_SYNC, "replicated": default | FLUSH_REPLICATED}
    return codes[choice("flush", flush, tuple(codes))]
