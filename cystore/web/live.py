"""Server-sent events: an append of any process wakes one task for each store, which tells all watchers.

The task sleeps in the store's own wait, and runs only while somebody watches. A watcher that does not read loses
events, never the server's memory: it is told that there was more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from cystore import MessageStore, StoreError
from cystore.celery import history
from cystore.celery.base.events import Event
from cystore.operate.output import one_line, time_text
from cystore.web.answers.open_stores import OpenStores
from cystore.web.problems import Problem

WATCHERS_MOST = 1000
QUEUED_MOST = 16  # events that wait for one watcher
EVENTS_MOST = 100  # of one append that are told one by one
SCANNED_BYTES_MOST = 1 << 20
WAIT_S = 1.0
PAUSE_S = 0.2  # between two events, so that a busy store sends few of them
AWAY_S = 1.0
ALIVE_S = 15.0

Told = tuple[str, dict[str, Any]]


class _Seen:
    """The place in one store up to which watchers were told."""

    def __init__(self, stores: OpenStores, path: Path) -> None:
        self._stores, self._path = stores, path
        self._position: int | None = None
        self._followed = 0

    def grown(self) -> dict[str, Any] | None:
        """Sleeps until the store has grown, at most WAIT_S; what came then. Raises StoreError."""
        store = self._stores.open(self._path)
        if self._position is None or store.followed != self._followed:
            was_away = self._position is not None
            self._position, self._followed = store.wrote_position, store.followed
            if not was_away:
                return None
            return self._told(store, [], more=True)
        if not store.wait_log(self._position, WAIT_S):
            return None
        begin, end = self._position, store.wrote_position
        if store.followed != self._followed:
            return None  # the next look sees it
        self._position = end
        return self._appended(store, begin, end)

    def _appended(self, store: MessageStore, begin: int, end: int) -> dict[str, Any] | None:
        if end - begin > SCANNED_BYTES_MOST:
            return self._told(store, [], more=True)
        found: list[dict[str, Any]] = []
        for message in store.scan(begin, end):
            entry = history.entry_of(message)
            if entry is None:
                continue
            if len(found) == EVENTS_MOST:
                return self._told(store, found, more=True)
            found.append(
                {
                    "id": entry.task_id,
                    "name": entry.name,
                    "kind": "event" if isinstance(entry, Event) else "result",
                    "event": entry.state,
                    "time": time_text(entry.time_ms),
                }
            )
        return self._told(store, found, more=False) if found else None

    def _told(self, store: MessageStore, events: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
        return {"store": str(self._path), "position": self._position, "events": events, "more": more}


class Live:
    """The watchers of one app, in one event loop."""

    def __init__(self, stores: OpenStores) -> None:
        self._stores = stores
        self._queues: set[asyncio.Queue[Told]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: anyio.CapacityLimiter | None = None

    def watch(self) -> AsyncIterator[bytes]:
        """The events for one watcher, as bytes of the stream. Raises Problem 503 for one too many."""
        if len(self._queues) >= WATCHERS_MOST:
            detail = f"{WATCHERS_MOST} watchers are connected: ask again later"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, Retry_After="10")
        return self._stream()

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Told] = asyncio.Queue(QUEUED_MOST)
        self._queues.add(queue)
        if not self._tasks:
            self._threads = anyio.CapacityLimiter(len(self._stores.paths))
            self._tasks = [asyncio.create_task(self._follow(path)) for path in self._stores.paths]
        try:
            yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
            while True:
                try:
                    kind, data = await asyncio.wait_for(queue.get(), ALIVE_S)
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                yield f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
        finally:
            self._queues.discard(queue)
            if not self._queues:
                self.stop()

    def stop(self) -> None:
        """Ends the tasks that follow the stores."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    async def _follow(self, path: Path) -> None:
        seen, away = _Seen(self._stores, path), False
        while True:
            try:
                told = await anyio.to_thread.run_sync(seen.grown, limiter=self._threads)
            except StoreError as error:
                if not away:
                    self._tell("away", {"store": str(path), "error": one_line(str(error))})
                away = True
                await asyncio.sleep(AWAY_S)
                continue
            if away:
                away = False
                self._tell("back", {"store": str(path)})
            if told is not None:
                self._tell("append", told)
                await asyncio.sleep(PAUSE_S)

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        for queue in self._queues:
            if queue.full():  # it does not read: it gets the newest, and knows that there was more
                with contextlib.suppress(asyncio.QueueEmpty):
                    queue.get_nowait()
                data = {**data, "more": True}
            queue.put_nowait((kind, data))
