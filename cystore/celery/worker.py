"""Connects a starting worker with its store, if its result backend is one. The app imports or installs nothing for
this.

This module only listens. The package, the backend and the commands import it, and so does every program of Celery's. So
it imports little: a worker with a store imports the parts when it begins.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import signals

log = logging.getLogger("cystore.celery")


@signals.worker_init.connect(weak=False)
def begin(sender: Any, **_signal: object) -> None:
    """Called before the worker's steps are made."""
    app = sender.app
    if not str(app.backend_cls or app.conf.result_backend or "").startswith("cystore:"):
        return
    from cystore.celery.base.store_watch import StoreWatch
    from cystore.celery.duties.answering import ReadHost
    from cystore.celery.duties.main_process import DutyHost
    from cystore.celery.duties.replica_host import ReplicaHost
    from cystore.celery.results.full_disk import tell_in_one_line

    if app.backend.location.path:
        tell_in_one_line()
        app.steps["consumer"].add(StoreWatch)
        app.steps["consumer"].add(ReadHost)
        DutyHost.take_part(sender)
    ReplicaHost.take_part(app)
