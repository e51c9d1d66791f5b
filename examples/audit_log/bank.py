"""The app of a bank. Each state of each task, with its arguments, is in the store; the PIN is not."""

from __future__ import annotations

import os

from celery import Celery

app = Celery(
    "bank",
    broker=os.environ.get("APP_BROKER", "redis://localhost:6379/0"),
    backend=f"cystore://{os.environ.get('APP_STORE', '/tmp/cystore-bank')}",
)
app.conf.cystore_lifecycle_redact = ["pin"]
app.conf.broker_connection_retry_on_startup = True
LIMIT = 1_000


@app.task
def transfer(clerk, source, target, amount, pin):
    if amount > LIMIT:
        raise PermissionError(f"{clerk} may not move more than {LIMIT}")
    return f"{amount} from {source} to {target}"


@app.task
def close_account(clerk, account):
    return f"{account} closed by {clerk}"
