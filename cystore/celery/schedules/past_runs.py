"""The history of a schedule: what became of each of its due times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cystore.celery.base import records
from cystore.celery.lifecycle import task_lives
from cystore.celery.schedules.entries import RUNS

if TYPE_CHECKING:
    from cystore import MessageStore


def past_runs(store: MessageStore, name: str, most: int) -> Iterator[dict[str, Any]]:
    """The due times of a schedule that are over, newest first: the fields of the line, `sent_ms`, `run` (SENT,
    MISSED or FAILED), and `outcome`, the newest event of its task; empty without one."""
    for message in store.query(RUNS, records.key_of(name), most):
        fields = json.loads(bytes(message.body))
        task_id = fields.get("task_id")
        life = None if task_id is None else task_lives.life_of(store, task_id)
        outcome = "" if life is None else life.outcome or life.stage or ""
        yield {**fields, "sent_ms": message.store_timestamp_ms, "run": message.tags or "", "outcome": outcome}
