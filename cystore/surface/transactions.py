"""The transactions of a store, as methods of MessageStore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cystore._native.record.message import PutResult
from cystore.attachment.attachment import StoreHandle

if TYPE_CHECKING:
    from cystore.transactions.half import HalfMessage
    from cystore.transactions.transactions import Check, Checked


class StoreTransactions(StoreHandle):
    """The methods of `MessageStore` for transactions. Its modules are imported at their first use."""

    __slots__ = ()

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
        producer_group: str = "cystore",
        flush: str | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> HalfMessage:
        """Puts a *half message*. Readers of its topic get it only after `commit`, and never after `rollback`.

        The arguments are those of `put`; there are no delay levels. With `deliver_at_ms` (ms since the epoch) or
        `delay_ms` (from now on) the committed message waits until then. The answer is the handle of the transaction.
        It can be pickled, and any process of the store may end the transaction. Source:
        TransactionalMessageBridge.putHalfMessage. Raises the errors of `put`.
        """
        from cystore.transactions.transactions import Transactions

        return Transactions(self).begin(
            topic, body, queue_id=queue_id, keys=keys, tags=tags, properties=properties, flag=flag,
            producer_group=producer_group, flush=flush, deliver_at_ms=deliver_at_ms, delay_ms=delay_ms,
        )  # fmt: skip

    def commit(self, half: HalfMessage | str, *, flush: str | None = None) -> PutResult:
        """Puts the message of a transaction (a handle, or its id) to its own topic, and ends the transaction; returns
        the message's place. If `begin` gave it a time that is not over, it waits until then.

        A kill leaves both or none, so the message appears once. Raises TransactionError when the transaction is ended
        already or unknown, PageCacheBusyError, and the errors of `put`. While other ends may be unknown, because the
        log is not dispatched, it raises StoreFullError or StoreTimeoutError. Source: EndTransactionProcessor.
        """
        from cystore.transactions.transactions import Transactions

        return Transactions(self).commit(half, flush=flush)

    def rollback(self, half: HalfMessage | str, *, flush: str | None = None) -> None:
        """Ends a transaction (a handle, or its id) without its message. Raises the errors of `commit`."""
        from cystore.transactions.transactions import Transactions

        Transactions(self).rollback(half, flush=flush)

    def open_transactions(self, *, older_than_ms: int = 0) -> list[HalfMessage]:
        """The transactions that are not ended, the oldest half message first; with `older_than_ms` only those that are
        older."""
        from cystore.transactions.transactions import Transactions

        return Transactions(self).open(older_than_ms)

    def set_aside_transactions(self) -> dict[HalfMessage, str]:
        """The open transactions that `check_transactions` asks nobody about now, with the reason of each.

        Either the note of an end cannot be read, so the transaction may be ended already: then only `commit` or
        `rollback` ends it. Or its last step could not be done, and it is tried again later.
        """
        from cystore.transactions.transactions import Transactions

        return Transactions(self).set_aside()

    def check_transactions(self, check: Check) -> Checked:
        """Asks for the outcome of each transaction that is open for longer than transaction_timeout_ms; call it now and
        then.

        `check(half, message)` gives ``"commit"``, ``"rollback"``, or None for "not known yet". Such a transaction is
        asked about again after transaction_check_interval_ms, at most transaction_check_max times. Then, and when it
        is older than file_reserved_time_h, its message goes to TRANS_CHECK_MAX_TIME_TOPIC. An error of `check` is
        logged and counts as None. A wrong answer leaves its own transaction open, and raises TransactionError when the
        others were checked. A transaction whose step cannot be done is set aside (`set_aside_transactions`) and tried
        again later, at most transaction_check_interval_ms. Several processes may check at once: each transaction has
        one end. Source: TransactionalMessageServiceImpl.check.
        """
        from cystore.transactions.transactions import Transactions

        return Transactions(self).check(check)
