"""The steps of a worker with a store, and the opening of the store within the worker's start.

A worker forks its pool and its beat, connects to the broker, and then waits a second for its neighbours (Celery's step
Mingle). In that second a thread opens the store, and imports the parts that only the main process needs. So they cost
the start no time. The steps of the consumer wait for the thread. Celery asks the broker for tasks only after these
steps: a worker that cannot use its store ends before it takes one.

The thread needs a worker that forks no process meanwhile. Such is a worker whose main thread has an event loop: it
forks at the loop's turns, which begin after all steps. Any other worker opens its store before it forks its pool
(gevent, eventlet, a broker without an event loop), and so does a worker whose store does not exist yet. A worker that a
program embeds (`celery.contrib.testing`) opens it there, too: the program learns of the error, and does not wait.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from celery import Celery, bootsteps
from celery.apps.worker import Worker as Program
from celery.exceptions import ImproperlyConfigured, WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.consumer.events import Events
from celery.worker.consumer.mingle import Mingle
from kombu.utils.imports import symbol_by_name

from cystore import StoreError
from cystore.celery import stores
from cystore.celery.backend import CystoreBackend
from cystore.celery.base import queues
from cystore.celery.base.green_timers import STARTED_BEFORE
from cystore.celery.base.identity import store_id_of
from cystore.celery.base.processes import ForkLock, without_collections
from cystore.celery.base.store_watch import StoreWatch
from cystore.celery.duties import app_settings
from cystore.celery.results.full_disk import tell_in_one_line
from cystore.celery.routing.other_homes import reader_of, tell_shown_passwords
from cystore.system.threads import os_threads

log = logging.getLogger("cystore.celery")

DUTIES, READS = "cystore.celery.duties.main_process", "cystore.celery.duties.answering"
REPLICAS, ANSWERS = "cystore.celery.duties.replica_host", "cystore.celery.duties.answers"
METRICS = "cystore.celery.duties.metrics_host"
METRICS_SETTING = "cystore_metrics_listen"
CONNECTS_S = 1.0  # the longest time for which the opening waits for a connection to the broker
GREETS_S = 0.05  # for the main thread to greet its neighbours, before it waits for them
LOOK_S = 0.5  # between two checks whether the worker is asked to end

SWITCH_S = 0.000_2  # Python's own interval is 5 ms, and the main thread asks several times while it connects

TURN = ForkLock()


def take_part(worker: Any) -> None:
    """Called before the worker's steps are made. Adds ours. A worker that takes the ticks of installed duties listens
    to its store's queue. A worker that cannot use its store ends when it starts, and says why in one line; one that a
    program embeds raises ImproperlyConfigured here."""
    app = worker.app
    app.steps["worker"].difference_update((OpeningStep,))
    stores.worker_begins(app)
    if worker.use_eventloop and isinstance(worker, Program):
        stores.open_later(app)
    try:
        backend = app.backend
        app_settings.check(app)
    except (ImproperlyConfigured, StoreError) as error:
        if not isinstance(worker, Program):
            raise
        refuse(worker, str(error))
    if not isinstance(backend, CystoreBackend):
        log.debug("no duties: the result backend is not a store")
        return
    if not stores.is_put_off(backend.location):
        stores.put_off(backend.location, app)  # the app made its backend before it had a worker
    tell_shown_passwords(backend)
    for line in app_settings.unknown(app):
        log.warning("%s", line)
    ours: list[type[_Late]] = []
    if backend.location.path:
        tell_in_one_line(backend.location.path)
        ours.append(ReadStep)
        if app.conf.get(METRICS_SETTING):
            ours.append(MetricsStep)
        if _does_duties(app):
            ours.append(DutyStep)
            for name in ("celery.worker.strategy", "celery.app.trace"):
                logging.getLogger(name).addFilter(_no_ticks)
    ours.append(ReplicaStep)
    opening = _openings[app] = Opening(
        backend, [step.module for step in ours], is_embedded=not isinstance(worker, Program)
    )
    app.steps["consumer"].update(ours, [StoreStep] if backend.location.path else [])
    if stores.is_put_off(backend.location):
        app.steps["worker"].add(OpeningStep)
        if GoStep not in Mingle.requires:
            Mingle.requires = (*Mingle.requires, GoStep)  # else Celery may start it later
    else:
        opening.run()


def refuse(worker: Any, reason: str) -> NoReturn:
    """Ends a starting worker with one line in its log. Celery only logs what a handler of its signals raises, and what
    a step raises with a traceback."""
    worker.setup_logging()
    log.critical("%s", reason)
    raise SystemExit(EX_FAILURE) from None


def takes_ticks() -> bool:
    """Whether this worker knows the duties as tasks."""
    return "cystore.celery.tasks" in sys.modules


def _does_duties(app: Any) -> bool:
    """Whether the store, and the settings of installed duties, can be used. If not, the worker logs the reason, and its
    tasks report it again."""
    backend = app.backend
    try:
        if takes_ticks():
            from cystore.celery.duties import duty_runs
            from cystore.ha.home import directory_id

            put_off = stores.is_put_off(backend.location)
            known = directory_id(Path(backend.location.path)) if put_off else ""
            queues.consume_own_queue(app, known or store_id_of(backend.store))
            duty_runs.coordination_for(app)  # reports wrong settings
        elif not stores.is_put_off(backend.location):
            store_id_of(backend.store)
    except (StoreError, ImproperlyConfigured) as error:
        log.error("this worker cannot do duties: %s", error)
        return False
    return True


def _serves_replicas(app: Any) -> bool:
    """Whether a worker may have replicas. A wrong setting is logged."""
    from cystore.celery import replicas

    try:
        folder = replicas.folder_of(app)
    except ImproperlyConfigured as error:
        log.error("this worker serves no replicas: %s", error)
        return False
    own = app.backend.location.path
    return folder is not None or bool(own and replicas.is_replicated(Path(own)))


def _no_ticks(record: logging.LogRecord) -> bool:
    """Keeps Celery's messages about successful ticks, a few lines a second, out of the worker's log."""
    about = record.args if isinstance(record.args, Mapping) else {}
    return record.levelno > logging.INFO or not str(about.get("name", "")).startswith("cystore.")


@contextmanager
def _little_delay() -> Iterator[None]:
    """Wraps the work of a thread that must not delay the main thread: that gets the interpreter sooner when it asks for
    it. Two at once would not find the usual interval again, and a child of a fork would keep the short one: use it
    within a turn."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(min(usual_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


class Opening:
    """The opening of a worker's store, and the imports that only its main process needs."""

    def __init__(self, backend: CystoreBackend, modules: list[str], *, is_embedded: bool = True) -> None:
        self._backend: CystoreBackend | None = backend
        self._modules, self._is_embedded = modules, is_embedded
        self._go, self._wanted, self._done = threading.Event(), threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._told = False
        self.has_thread = False
        self.left_out: set[str] = set()  # modules whose steps have nothing to do

    def run(self) -> None:
        """Imports and opens, in this thread. Forks of this process wait for that."""
        with TURN, without_collections():
            backend, self._backend = self._backend, None  # it knows its app, whose end must end this object
            if backend is None:  # two workers of one app
                return
            try:
                for name in self._modules:
                    if name == REPLICAS and not _serves_replicas(backend.app):
                        self.left_out.add(name)
                    else:
                        importlib.import_module(name)
                if READS in self._modules:
                    with suppress(ImproperlyConfigured, ImportError):  # the step itself reports them
                        if reader_of(backend) is not None:
                            importlib.import_module(ANSWERS)
                if backend.location.path:
                    backend.open_for_worker()
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self._error = error
        self._done.set()

    def begin(self) -> None:
        """Starts the thread, which opens the store when the worker is connected to its broker, or a while later. If it
        fails while the worker waits for its broker, the worker ends, too."""

        def opens() -> None:
            self._go.wait(CONNECTS_S)
            self._wanted.wait(GREETS_S)
            with TURN, _little_delay():
                self.run()
            if self._error is not None and not self._wanted.is_set():  # else `wait` raises it
                state.should_stop = EX_FAILURE

        self.has_thread = True
        os_threads.begin(opens, "cystore-opening")

    def go(self) -> None:
        """The main thread is going to wait for neighbours."""
        self._go.set()

    def wait(self) -> None:
        """Waits for the end of the opening. Raises Celery's WorkerShutdown if the worker is asked to end meanwhile, or
        cannot use its store. A worker that a program embeds gets the error itself."""
        self._go.set()
        self._wanted.set()
        while not self._done.wait(LOOK_S):
            state.maybe_shutdown()
        if self._error is None:
            return
        if isinstance(self._error, ImproperlyConfigured) and not self._is_embedded:
            self.tell()
            raise WorkerShutdown(EX_FAILURE)
        self._told = True
        raise self._error

    def tell(self) -> None:
        """Logs the error, unless `wait` raised it."""
        if self._error is not None and not self._told:
            self._told = True
            log.critical("%s", self._error)


_openings: weakref.WeakKeyDictionary[Celery, Opening] = weakref.WeakKeyDictionary()


class OpeningStep(bootsteps.StartStopStep):
    """A step of the worker itself. It starts after the steps that fork processes, and before the consumer's."""

    label = "cystore opening"
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def start(self, parent: Any) -> None:
        """Begins to open the store."""
        _openings[parent.app].begin()

    def stop(self, parent: Any) -> None:
        """The worker ends."""
        _openings[parent.app].tell()

    terminate = stop


class GoStep(bootsteps.StartStopStep):
    """A step of the worker's consumer between its connection and Mingle. The opening begins here, because while the
    worker connects, the thread would delay it."""

    label = "cystore go"
    requires = (Events,)  # not its name: Celery finds this step through Mingle, and resolves no names there

    def start(self, parent: Any) -> None:
        """Lets the thread open the store."""
        opening = _openings.get(parent.app)  # None: an app of this process without a store
        if opening is not None:
            opening.go()


class StoreStep(StoreWatch):
    """The step of a worker's consumer that watches the store, once it is open."""

    def start(self, parent: Any) -> None:
        """Celery calls this each time the worker is connected to its broker."""
        _openings[parent.app].wait()
        super().start(parent)


class _Late(bootsteps.StartStopStep):
    """A step of the worker's consumer whose content is in a module that `Opening` imports. Where a thread opens the
    store, the content starts at the first turn of the event loop. So its threads take no time from the other steps.
    """

    requires = STARTED_BEFORE
    module, content = "", ""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._content: Any = None
        self._is_over = False

    def start(self, parent: Any) -> None:
        """Starts the content at the first connection to the broker. It stays through all later ones."""
        opening = _openings[parent.app]
        opening.wait()
        if self.module in opening.left_out:
            return
        if opening.has_thread:
            parent.call_soon(self._start_content, parent)
        else:
            self._start_content(parent)

    def _start_content(self, parent: Any) -> None:
        if self._is_over:  # the event loop makes its waiting calls at its end, too
            return
        self._made().start(parent)

    def _made(self) -> Any:
        if self._content is None:
            self._content = symbol_by_name(f"{self.module}:{self.content}")()
        return self._content

    def stop(self, parent: Any) -> None:
        """A connection to the broker ended. The content goes on."""

    def shutdown(self, parent: Any) -> None:
        """Ends the content."""
        self._is_over = True
        content, self._content = self._content, None
        if content is not None:
            content.shutdown(parent)


class DutyStep(_Late):
    """Does the store's duties."""

    label = "cystore duties"
    module, content = DUTIES, "DutyHost"

    def start(self, parent: Any) -> None:
        """Takes ticks at once: some brokers send messages before the first turn of the event loop."""
        _openings[parent.app].wait()
        try:
            self._made().listen(parent)
        except StoreError as error:  # the id of the store's directory is damaged
            log.error("this worker cannot do duties: %s", error)
        else:
            super().start(parent)


class ReadStep(_Late):
    """Answers other hosts' requests for results of the store."""

    label = "cystore read service"
    module, content = READS, "ReadHost"


class ReplicaStep(_Late):
    """Serves replicas of other homes."""

    label = "cystore replicas"
    module, content = REPLICAS, "ReplicaHost"


class MetricsStep(_Late):
    """Serves metrics to Prometheus."""

    label = "cystore metrics"
    module, content = METRICS, "MetricsHost"
