"""The result backend ``cystore:///path?option=value``: every state of every task is one append to a store on this host.

Source of the contract: celery.backends.base.Backend and celery.backends.asynchronous.AsyncBackendMixin.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import Backend, decompress_payload
from celery.result import GroupResult, ResultSet, result_from_tuple
from kombu.serialization import loads
from kombu.utils.encoding import ensure_bytes

from cystore import Message, MessageStore
from cystore.celery import records
from cystore.celery.consumer import ResultConsumer
from cystore.celery.stores import Location, open_shared

_backends: weakref.WeakSet[CystoreBackend] = weakref.WeakSet()


class CystoreBackend(AsyncBackendMixin, Backend):
    """Stores results in the store that the URL names; opened when first used, once in each process.

    Writing never reads: states are appended as they come, and a reader folds them (`records.fold`). Raises
    ImproperlyConfigured for a URL that makes no sense, `cystore.StoreError` for a store that cannot be used.
    """

    supports_native_join = True
    supports_result_compression = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        self.location = Location.parse(url)
        self.result_consumer = ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )
        _backends.add(self)

    def __reduce__(self, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    @property
    def store(self) -> MessageStore:
        """The open store."""
        return open_shared(self.location)

    # ------------------------------------------------------------------------------------------ writing

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = str(task_id)
        name = getattr(request, "task", None)
        self._append(records.RESULTS, task_id, self.encode(meta), tag=state, name=name)
        return result

    def _forget(self, task_id: str) -> None:
        self._append(records.RESULTS, task_id, b"", tag=records.FORGET)

    def _save_group(self, group_id: str, result: GroupResult) -> GroupResult:
        payload = self.encode({"result": result.as_tuple()})
        self._append(records.GROUPS, group_id, payload, tag=records.SAVED)
        return result

    def _delete_group(self, group_id: str) -> None:
        self._append(records.GROUPS, group_id, b"", tag=records.FORGET)

    def _append(
        self, topic: str, task_id: str, payload: str | bytes, *, tag: str, name: str | None = None
    ) -> None:
        body = ensure_bytes(payload)
        properties = (
            {"content_type": self.content_type, "content_encoding": self.content_encoding} if body else {}
        )
        if name:
            properties["task"] = name
        self.store.put(
            topic,
            body,
            queue_id=records.queue_of(name),
            keys=(records.key_of(task_id),),
            tags=tag,
            properties=properties,
        )

    # ------------------------------------------------------------------------------------------ reading

    def latest(self, task_id: str, topic: str = records.RESULTS) -> Message | None:
        """The record that is valid for an id, None when there is none."""
        return records.fold(records.records_of(self.store, topic, records.key_of(task_id)))

    def meta_of(self, message: Message) -> dict[str, Any]:
        """The meta in a record, as Celery wants it. Raises kombu's ContentDisallowed for a serializer that the app does not
        accept."""
        meta: dict[str, Any] = self.meta_from_decoded(self._content(message))
        return meta

    def _content(self, message: Message) -> dict[str, Any]:
        properties = message.properties
        content: dict[str, Any] = loads(
            decompress_payload(bytes(message.body)),
            content_type=properties.get("content_type", self.content_type),
            content_encoding=properties.get("content_encoding", self.content_encoding),
            accept=self.accept,
        )
        return content

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        message = self.latest(task_id)
        return {"status": states.PENDING, "result": None} if message is None else self.meta_of(message)

    def task_result_exists(self, task_id: str) -> bool:
        """True when the store has heard of the task, and it was not forgotten since."""
        return self.latest(task_id) is not None

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        message = self.latest(group_id, records.GROUPS)
        if message is None:
            return None
        meta = self._content(message)
        meta["result"] = result_from_tuple(meta["result"], self.app)
        return meta

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = None,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], None] | None = None,
        on_interval: Callable[[], None] | None = None,
        max_iterations: int | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(task id, meta) of each task as it gets ready; with `max_iterations` only of those that are ready now."""
        waiting = []
        for task_id in dict.fromkeys(map(str, task_ids)):
            meta = self.get_task_meta(task_id)
            if meta["status"] not in states.READY_STATES:
                waiting.append(self.app.AsyncResult(task_id, backend=self))
                continue
            if on_message is not None:
                on_message(meta)
            yield task_id, meta
        if waiting and not max_iterations:
            yield from ResultSet(waiting, app=self.app).iter_native(
                timeout=timeout, on_message=on_message, on_interval=on_interval
            )

    def _after_fork(self) -> None:
        """The child waits for nothing that its parent waits for."""
        for pending in self._pending_results:
            pending.clear()
        self.result_consumer._after_fork()


def _forked() -> None:
    for backend in list(_backends):
        backend._after_fork()


os.register_at_fork(after_in_child=_forked)
