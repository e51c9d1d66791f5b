"""The step of a worker that answers other hosts' requests for results of its store.

Its threads start after the last fork of the boot steps. A later fork, which replaces a pool process, waits until they
end their present work. It does not wait for their sleep: a sleep is one system call and holds no lock that the child
needs.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery.exceptions import ImproperlyConfigured

from cystore import StoreError
from cystore.celery.base import greenlets
from cystore.celery.base.processes import ForkLock
from cystore.celery.duties import duty_runs
from cystore.celery.routing.other_homes import reader_of
from cystore.engine.manifest.manifest import read_facts
from cystore.ha.role import role_of
from cystore.services.threads import ServiceThread

log = logging.getLogger("cystore.celery")

SETTING = "cystore_read_service"
LOOK_S = 2.0  # between two checks whether the answering process is gone
JOIN_S = 5.0

TURN = ForkLock()


class ReadHost:
    """The content of a worker's step `cystore read service` (`worker_steps`)."""

    def __init__(self) -> None:
        self._threads: list[ServiceThread] = []
        self._service: Any = None

    def start(self, parent: Any) -> None:
        """Starts the threads at the first connection to the broker; they stay through all later ones."""
        if self._threads or not parent.app.conf.get(SETTING, True):
            return
        try:
            location = reader_of(parent.app.backend)
            if location is None:
                log.debug("other hosts cannot read results: no Redis is set up for that")
                return
            from cystore.celery.duties.answers import ReadService

            store = duty_runs.store_of(parent.app)
            role = role_of(read_facts(store.path)[0])
            changes = role.is_elected or role.is_slave
            service = ReadService(parent.app.backend, store, location, TURN, replicated=changes)
        except (StoreError, ImproperlyConfigured, ImportError) as error:
            log.error("other hosts cannot read results of this worker's store: %s", error)
            return
        "".encode("idna")  # loads a codec that connections need, in the thread that forks
        self._service = service
        for name, turn in (("reads", service.turn), ("read-waits", service.wait_turn)):
            self._threads.append(
                ServiceThread(name, turn, LOOK_S, thread=greenlets.Thread, flag=threading.Event)
            )

    def shutdown(self, parent: Any) -> None:
        """Ends the threads. Another worker of the store answers."""
        for thread in self._threads:
            thread.stop()
        if self._service is not None:
            self._service.end()
        for thread in self._threads:
            thread.join(JOIN_S)
        if self._service is not None:
            self._service.close()
        self._threads, self._service = [], None
