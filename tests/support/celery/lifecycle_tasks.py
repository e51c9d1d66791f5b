"""Tasks that end in every way there is, for the tests of the lifecycle log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

LIMIT_S = 2  # a task must be able to begin within it, on a busy machine too


class HandlerError(Exception):
    """An exception of a task's own handler."""


class BrokenHandler(Task):
    """A task whose failure handler fails."""

    def on_failure(self, *args: object) -> None:
        raise HandlerError("in the handler")


def _redelivered(task: Task) -> bool:
    return bool(task.request.delivery_info.get("redelivered"))


def _block() -> None:
    while True:
        signal.pause()


@shared_task(ignore_result=True, acks_late=False)
def forgettable(*args: object, **kwargs: object) -> None:
    pass


@shared_task
def ignored() -> None:
    raise Ignore("not worth it")


@shared_task
def rejected() -> None:
    raise Reject("not mine", requeue=False)


@shared_task(bind=True)
def requeued(self: Task) -> None:
    if not _redelivered(self):
        raise Reject("later", requeue=True)


@shared_task(soft_time_limit=LIMIT_S)
def too_long() -> None:
    _block()


@shared_task(soft_time_limit=LIMIT_S)
def in_time_after_all() -> str:
    try:
        _block()
    except SoftTimeLimitExceeded:
        return "tidied up"


@shared_task(time_limit=LIMIT_S)
def much_too_long() -> None:
    _block()


@shared_task(acks_late=False)
def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(acks_late=False)
def leaves() -> None:
    raise SystemExit(3)


@shared_task(bind=True)
def dies_once(self: Task) -> None:
    if not _redelivered(self):
        os.kill(os.getpid(), signal.SIGKILL)


@shared_task(bind=True, acks_late=False)
def retries_and(self: Task, how: str) -> str:
    """Ends at its second try, in one of several ways."""
    if self.request.retries == 0:
        raise self.retry(countdown=0, time_limit=LIMIT_S if how == "TIMED_OUT" else None)
    if how == "FAILED":
        raise ValueError("the second time, too")
    if how == "IGNORED":
        raise Ignore("not worth it")
    if how == "REJECTED":
        raise Reject("not mine", requeue=False)
    if how == "CHILD_LOST":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "TIMED_OUT":
        _block()
    return how


@shared_task(base=BrokenHandler)
def fails_twice() -> None:
    raise ValueError("in the task")


@shared_task(acks_late=False)
def blocks(marker: str) -> None:
    Path(marker).touch()
    _block()


@shared_task(bind=True, acks_late=False)
def sends(self: Task) -> str:
    """A child that sends another task, which belongs to the same root."""
    return forgettable.apply_async(ignore_result=True).id
