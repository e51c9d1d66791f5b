"""Connects a starting worker with its store, if its result backend is one. The app imports or installs nothing for
this.

This module only listens. The package, the backend and the commands import it, and so does every program of Celery's. So
it imports little: a worker with a store imports the parts when it begins.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import signals

log = logging.getLogger("cystore.celery")


@signals.worker_init.connect(weak=False)
def begin(sender: Any, **_signal: object) -> None:
    """Called before the worker's steps are made."""
    app = sender.app
    if not str(app.backend_cls or app.conf.result_backend or "").startswith("cystore:"):
        return
    with _without_collections():
        _take_part(sender, app)


def _take_part(worker: Any, app: Any) -> None:
    from cystore.celery.base.store_watch import StoreWatch
    from cystore.celery.duties.answering import ReadHost
    from cystore.celery.duties.main_process import DutyHost
    from cystore.celery.duties.replica_host import ReplicaHost
    from cystore.celery.results.full_disk import tell_in_one_line

    if app.backend.location.path:
        tell_in_one_line()
        app.steps["consumer"].add(StoreWatch)
        app.steps["consumer"].add(ReadHost)
        DutyHost.take_part(worker)
    ReplicaHost.take_part(app)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Wraps imports and the opening of a store: the collector would look through all objects of the worker several
    times, and what an import makes stays."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
