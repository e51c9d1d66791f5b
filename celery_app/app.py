"""The app: broker and results in one store of this host, or the broker in Redis; the duties in beat's schedule."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from celery import Celery

from cystore.celery import install

BROKER_VARIABLE, STORE_VARIABLE = "CYSTORE_APP_BROKER_URL", "CYSTORE_APP_STORE"
DEFAULT_STORE = Path(__file__).resolve().parent.parent / "run" / "store"
TASK_QUEUE = "celery_app"
# With Redis as the broker another worker gets a killed worker's unfinished tasks after this time; with the store as the
# broker at once.
REDELIVER_AFTER_S = 5


def store_url(path: str | Path) -> str:
    """The broker and the result backend in a store of this app. The owner of the clone could change the app as well as
    the store, so refusing another user's clone would gain nothing."""
    return f"cystore://{quote(str(path))}?allow_any_owner=true"


STORE_URL = store_url(os.environ.get(STORE_VARIABLE, DEFAULT_STORE))
app = Celery("celery_app", include=["celery_app.tasks"])
app.conf.update(
    broker_url=os.environ.get(BROKER_VARIABLE, STORE_URL),
    result_backend=STORE_URL,
    task_default_queue=TASK_QUEUE,
    result_extended=True,  # name, arguments and worker with each result
    task_track_started=True,
    # A task is acknowledged when its result is in the store, so a killed worker's tasks run again.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": REDELIVER_AFTER_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": REDELIVER_AFTER_S,
    },
)
install(app)
