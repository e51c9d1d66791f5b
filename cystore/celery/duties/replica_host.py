"""The step of a worker that serves replicas of other homes: those in the folder `cystore_replicas`, and its own store
if that is a member of a group.

While a replica follows its master, it only answers for final results of a home that is silent. When it becomes the
master, workers of this host consume the queue of the home, append what comes, end its chords, and answer for it. The
home keeps its name. So publishers, workers and clients notice nothing but a pause.

A thread looks once a second. It closes a replica whose processes are asked to leave, because a log has to be truncated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from celery.exceptions import ImproperlyConfigured

from cystore import StoreError
from cystore.celery import replicas
from cystore.celery.backend import CystoreBackend, ReplicaBackend
from cystore.celery.base import greenlets, queues, store_watch
from cystore.celery.base.identity import is_master, known_home_of
from cystore.celery.base.processes import ForkLock
from cystore.celery.chords import chord_steps
from cystore.celery.duties import answering
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing.other_homes import reader_of
from cystore.celery.stores import opened_at
from cystore.clock import monotonic_s
from cystore.engine.files.progress import Progress
from cystore.ha.home import directory_id
from cystore.services.threads import ServiceThread

log = logging.getLogger("cystore.celery")

LOOK_S = 1.0
SWEEP_S = 5.0
JOIN_S = 5.0

TURN = ForkLock()


class ReplicaHost:
    """The content of a worker's step `cystore replicas` (`worker_steps`)."""

    def __init__(self) -> None:
        self._thread: ServiceThread | None = None
        self._keeper: ReplicaKeeper | None = None

    def start(self, parent: Any) -> None:
        """Starts the thread at the first connection to the broker. A later connection consumes the queues anew."""
        if self._keeper is not None:
            self._keeper.connected()
            return
        location: RedisLocation | None = None
        try:
            if parent.app.conf.get(answering.SETTING, True):
                location = reader_of(parent.app.backend)
            if location is not None:  # imported by the thread that forks
                import cystore.celery.duties.answers  # noqa: F401
        except (ImproperlyConfigured, ImportError) as error:
            location = None
            log.error("other hosts cannot read results of this worker's replicas: %s", error)
        keeper = self._keeper = ReplicaKeeper(parent, location)
        self._thread = ServiceThread(
            "replicas", keeper.turn, LOOK_S, thread=greenlets.Thread, flag=threading.Event
        )

    def shutdown(self, parent: Any) -> None:
        """Ends the thread. Another worker of the host serves the replicas."""
        thread, self._thread = self._thread, None
        keeper, self._keeper = self._keeper, None
        if thread is not None:
            thread.stop()
            thread.join(JOIN_S)
        if keeper is not None:
            keeper.close()


class ReplicaKeeper:
    """Finds the replicas of this host, and serves each of them."""

    def __init__(self, consumer: Any, location: RedisLocation | None) -> None:
        self._consumer, self._location = consumer, location
        self._app = consumer.app
        self._folder = replicas.folder_of(self._app)
        self._own = self._app.backend.location.path
        self._served: dict[Path, ServedReplica] = {}

    def turn(self) -> Progress:
        """One look at each store. A store that cannot be opened is tried again at the next look."""
        with TURN:
            over = self._look()
        for served in over:
            served.close()
        return Progress(0)

    def _look(self) -> list[ServedReplica]:
        """Returns the stores that have to be closed."""
        for path in self._paths():
            if path not in self._served:
                try:
                    self._served[path] = self._begun(path)
                except StoreError as error:
                    log.debug("%s: not served: %s", path, error)
        over = []
        for path, served in list(self._served.items()):
            try:
                there = served.look()
            except StoreError as error:
                log.warning("%s: not served any more: %s", path, error)
                there = False
            if not there:
                over.append(self._served.pop(path))
        return over

    def connected(self) -> None:
        """A new connection to the broker knows nothing of the queues."""
        for served in self._served.values():
            served.consumes = False

    def close(self) -> None:
        """Ends all work."""
        for served in self._served.values():
            served.close()
        self._served.clear()

    def _paths(self) -> list[Path]:
        found = [] if self._folder is None else list(replicas.served_in(self._folder, self._own).values())
        own = opened_at(self._own) if self._own else None
        if own is not None and known_home_of(own) != directory_id(own.path):
            found.append(own.path)
        return found

    def _begun(self, path: Path) -> ServedReplica:
        is_own = str(path) == self._own
        backend = self._app.backend if is_own else ReplicaBackend(self._app, path)
        # The step ReadHost answers for a worker's own store.
        location = None if is_own else self._location
        with ExitStack() as used:
            used.enter_context(backend.for_a_while())
            if backend.store.asked_to_leave():
                raise StoreError("its processes are asked to leave", path=path)
            return ServedReplica(self._consumer, backend, location, used.pop_all(), is_own=is_own)


class ServedReplica:
    """One store that other hosts replicate, or that is a replica. `consumes`: this worker consumes the home's queue."""

    def __init__(
        self,
        consumer: Any,
        backend: CystoreBackend,
        location: RedisLocation | None,
        used: ExitStack,
        *,
        is_own: bool,
    ) -> None:
        self._consumer, self._backend, self._used, self._is_own = consumer, backend, used, is_own
        self._store = backend.store
        self._own = consumer.app.backend.location.path
        self.home = known_home_of(self._store)
        self.consumes = False
        self._was_replica = True
        self._sweep_at = 0.0
        self._threads: list[ServiceThread] = []
        self._service: Any = None
        if location is not None:
            self._answer_through(location)

    def _answer_through(self, location: RedisLocation) -> None:
        from cystore.celery.duties.answers import ReadService

        service = ReadService(self._backend, self._store, location, answering.TURN, replicated=True)
        self._service = service
        for name, turn in (("reads", service.turn), ("read-waits", service.wait_turn)):
            self._threads.append(
                ServiceThread(name, turn, answering.LOOK_S, thread=greenlets.Thread, flag=threading.Event)
            )

    def look(self) -> bool:
        """Does what the store's present role needs. False if the store has to be closed."""
        self._store.check_usable()
        if not self._is_own and self._store.asked_to_leave():
            log.warning("%s: its processes are asked to leave: this worker closes it", self._store.path)
            return False
        replica = not is_master(self._store)
        if replica != self._was_replica:
            self._was_replica = replica
            chord_steps.begin_again(str(self._store.path))
            log.warning(
                "%s: %s of the home %s", self._store.path, "a replica" if replica else "the master", self.home
            )
        if not replica and not self.consumes and self._may_consume():
            self.consumes = True
            self._in_the_loop(self._consume)
        elif replica and self.consumes:
            self.consumes = False
            self._in_the_loop(self._end_consuming)
        if not replica and not self._is_own and monotonic_s() >= self._sweep_at:
            self._sweep_at = monotonic_s() + SWEEP_S
            chord_steps.sweep_replica(self._backend)
        return True

    def _may_consume(self) -> bool:
        """While the worker's own store is away, it consumes nothing (`StoreWatch`)."""
        return not self._own or (store_watch.away(self._own) is None and store_watch.full(self._own) is None)

    def _in_the_loop(self, call: Callable[[], None]) -> None:
        """The connection to the broker belongs to the worker's loop."""
        self._consumer.call_soon(call)

    def _consume(self) -> None:
        name, known = queues.queue_of_store(self.home), self._consumer.app.amqp.queues
        consumer = self._consumer.task_consumer
        if consumer is None or consumer.consuming_from(name):
            return
        consumer.add_queue(queues.by_name(known.select_add(queues.own_queue(name))))
        consumer.consume()
        log.info("this worker consumes the queue of a home whose master is here, %s", name)

    def _end_consuming(self) -> None:
        name = queues.queue_of_store(self.home)
        if self._consumer.task_consumer is not None and name in self._consumer.app.amqp.queues:
            self._consumer.cancel_task_queue(name)

    def close(self) -> None:
        """Ends the work, and closes the store if it is not the worker's own."""
        if self.consumes:
            self.consumes = False
            self._in_the_loop(self._end_consuming)
        for thread in self._threads:
            thread.stop()
        if self._service is not None:
            self._service.end()
        for thread in self._threads:
            thread.join(JOIN_S)
        if self._service is not None:
            self._service.close()
        self._threads, self._service = [], None
        self._used.close()
