"""The step of a worker that serves metrics of its store and of the tasks in it to Prometheus.

The worker's main process listens. If several workers have the setting, one of them gets the port; each other one tries
again, so the metrics outlive the worker that serves them. A fork of the main process waits for the end of a look at the
store, and the child closes the port.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from cystore.celery.base import greenlets
from cystore.celery.base.processes import ForkLock
from cystore.celery.duties import duty_runs
from cystore.celery.duties.worker_steps import METRICS_SETTING
from cystore.celery.metrics.log_follower import LogFollower
from cystore.engine.files.progress import Progress
from cystore.errors import StoreConfigError
from cystore.metrics.exporter import Exporter
from cystore.metrics.listener import Listener, address_of, bound
from cystore.metrics.open_stores import OpenStores
from cystore.metrics.text import NAMES_MOST, UNFINISHED_S
from cystore.services.threads import ServiceThread

log = logging.getLogger("cystore.celery")

NAMES_SETTING = "cystore_metrics_max_names"
UNFINISHED_SETTING = "cystore_metrics_unfinished_s"
PORT_AGAIN_S = 5.0  # between two tries for a port that is in use
JOIN_S = 5.0

TURN = ForkLock()


class MetricsHost:
    """The content of a worker's step `cystore metrics` (`worker_steps`)."""

    def __init__(self) -> None:
        self._thread: ServiceThread | None = None
        self._listener: Listener | None = None
        self._told = False

    def start(self, parent: Any) -> None:
        """Starts the thread at the first connection to the broker; it stays through all later ones."""
        conf = parent.app.conf
        if self._thread is not None:
            return
        try:
            self._address = address_of(str(conf.get(METRICS_SETTING)))
            names_most = _number(conf, NAMES_SETTING, NAMES_MOST)
            unfinished_s = _number(conf, UNFINISHED_SETTING, UNFINISHED_S)
        except ValueError as error:
            log.error("this worker serves no metrics: %s", error)
            return

        def follow() -> LogFollower:
            return LogFollower(names_most=int(names_most), unfinished_s=unfinished_s, is_worker=True)

        store = duty_runs.store_of(parent.app)
        self._exporter = Exporter(OpenStores(store, store.config), follow)
        "".encode("idna")  # loads a codec that sockets need, in the thread that forks
        self._thread = ServiceThread(
            "metrics", self._turn, PORT_AGAIN_S, thread=greenlets.Thread, flag=threading.Event
        )

    def _turn(self) -> Progress:
        """Answers for a while; without the port tries to get it."""
        if self._listener is None:
            try:
                listening = bound(*self._address, f"give {METRICS_SETTING} another HOST:PORT")
            except StoreConfigError as error:
                level = logging.DEBUG if self._told else logging.WARNING
                log.log(level, "this worker serves no metrics now, and tries again: %s", error)
                self._told = True
                return Progress(0)
            self._listener = Listener(listening, self._text)
            log.info("metrics are at %s", self._listener.url)
        self._listener.serve_once()
        return Progress(1, more=True)

    def _text(self) -> str:
        with TURN:
            return greenlets.off_the_hub(self._exporter.text)

    def shutdown(self, parent: Any) -> None:
        """Ends the thread, and gives the port to the next worker."""
        if self._thread is not None:
            self._thread.stop()
            if self._listener is not None:
                self._listener.stop()
            self._thread.join(JOIN_S)
        self._thread = self._listener = None


def _number(conf: Any, name: str, default: float) -> float:
    """A setting that is a number of at least 1. Raises ValueError."""
    value = conf.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 1e12:
        raise ValueError(f"{name} must be a number of at least 1, not {value!r}")
    return value
