"""An app that writes letters. With `cystore_lifecycle_payload` the store keeps each message, so that it can be sent
again."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

app = Celery(
    "letters",
    broker=os.environ.get("APP_BROKER", "redis://localhost:6379/0"),
    backend=f"cystore://{os.environ.get('APP_STORE', '/tmp/cystore-letters')}",
)
app.conf.cystore_lifecycle_payload = "message"
app.conf.broker_connection_retry_on_startup = True


@app.task
def write(folder, name, text):
    (Path(folder) / name).write_text(text)
    return name
