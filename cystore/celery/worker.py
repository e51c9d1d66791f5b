"""Connects a starting worker with its store, if its result backend is one. The app imports or installs nothing for
this.

This module only listens. The package, the backend and the commands import it, and so does every program of Celery's. So
it imports little: a worker with a store imports the parts when it begins.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.app.backends import BACKEND_ALIASES

from cystore.celery.base.processes import without_collections

SCHEME = "cystore"


@signals.worker_init.connect(weak=False)
def begin(sender: Any, **_signal: object) -> None:
    """Called before the worker's steps are made."""
    app = sender.app
    url = str(app.backend_cls or app.conf.result_backend or "")
    if not url.startswith(f"{SCHEME}:"):
        _refuse_misspelt(sender, url.partition(":")[0].partition("+")[0])
        return
    with without_collections():
        from cystore.celery.duties.worker_steps import take_part

        take_part(sender)


def _refuse_misspelt(worker: Any, scheme: str) -> None:
    """Ends a worker whose backend has nearly this plugin's name, and that of no other backend."""
    if scheme == SCHEME or scheme in BACKEND_ALIASES or scheme in worker.app.loader.override_backends:
        return
    from celery.apps.worker import Worker as Program

    from cystore.errors import did_you_mean

    near = did_you_mean(scheme, (SCHEME,))
    if near and isinstance(worker, Program):
        from cystore.celery.duties.worker_steps import refuse

        refuse(worker, f"result_backend: there is no backend {scheme!r}{near}")
