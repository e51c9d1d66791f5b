"""Actions on a task, each by its name: send it again, or keep it from running. For programs that act for people."""

from __future__ import annotations

from typing import Any

from celery import Celery

from cystore.celery.base.reading import Source
from cystore.celery.lifecycle import reruns
from cystore.celery.lifecycle.reruns import RerunError
from cystore.celery.lifecycle.task_lives import Life

RERUN, REVOKE, CANCEL = "rerun", "revoke", "cancel"
ACTIONS = (RERUN, REVOKE, CANCEL)
SIGNAL = "SIGTERM"


class ActionError(Exception):
    """An action that makes no sense for this task; the text has the reason."""


def possible(life: Life) -> list[str]:
    """The actions that make sense for a task: one that has ended cannot be stopped."""
    return [RERUN] if life.has_ended else list(ACTIONS)


def act(app: Celery, source: Source, life: Life, action: str) -> dict[str, Any]:
    """Does it, and gives facts for the answer. `rerun` sends the kept message again under a new id; `revoke` keeps a
    task from beginning; `cancel` also ends it where it runs. Raises ActionError, and the broker's errors."""
    if action not in possible(life):
        raise ActionError(
            f"{life.task_id} has ended ({life.outcome or life.result_state}): it cannot be stopped"
        )
    if action == RERUN:
        try:
            rerun = reruns.prepare(source, life, same_id=False)
        except RerunError as error:
            raise ActionError(str(error)) from error
        reruns.send(app, rerun)
        return {"new_id": rerun.task_id, "notes": rerun.notes}
    app.control.revoke(life.task_id, terminate=action == CANCEL, signal=SIGNAL)
    return {}
