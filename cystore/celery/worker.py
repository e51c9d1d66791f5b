"""Connects a starting worker with its store, if its result backend is one. The app imports or installs nothing for
this.

This module only listens. The package, the backend and the commands import it, and so does every program of Celery's. So
it imports little: a worker with a store imports the parts when it begins.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from cystore.celery.base.processes import without_collections


@signals.worker_init.connect(weak=False)
def begin(sender: Any, **_signal: object) -> None:
    """Called before the worker's steps are made."""
    app = sender.app
    if not str(app.backend_cls or app.conf.result_backend or "").startswith("cystore:"):
        return
    with without_collections():
        from cystore.celery.duties.worker_steps import take_part

        take_part(sender)
