"""`python -m benchmarks.celery.calls`: what the plugin adds to Celery's own work for a result. It compares the backend
with Celery's base class over a dict, which has no server and no disk: calls of Python and of C functions, and µs of
processor time. The times of a round are taken in turn; the ratio is the median of the rounds. Counts are the same on a
busy machine. For the lifecycle log there is nothing to compare with: its handlers have only counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from celery import Celery, states, uuid
from celery.backends.base import KeyValueStoreBackend
from celery.worker.request import Request

from cystore.celery.lifecycle import recorder
from cystore.celery.stores import close_shared

RUNS, FIRST = 40, 10  # the first calls import modules and fill caches
RESULT = "x" * 198
TASK = "shop.sum"


class OverADict(KeyValueStoreBackend):
    """The least that a backend of Celery does."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self._kept: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self._kept.get(key)

    def set(self, key: Any, value: Any) -> None:
        self._kept[key] = value


OPERATIONS: dict[str, Callable[[Any, str], object]] = {
    "store_result": lambda backend, task_id: backend.store_result(task_id, RESULT, states.SUCCESS),
    "get_task_meta": lambda backend, task_id: backend.get_task_meta(task_id, cache=False),
    "unknown id": lambda backend, task_id: backend.get_task_meta(f"{task_id}?", cache=False),
}


def calls_of(function: Callable[[Any], object], arguments: Sequence[Any]) -> int:
    """The calls of one invocation of a function: the least, because now and then a cache is filled."""
    counts = []
    for argument in arguments:
        found = [0]

        def count(frame: object, event: str, _: object, found: list[int] = found) -> None:
            if event in ("call", "c_call"):
                found[0] += 1

        sys.setprofile(count)
        try:
            function(argument)
        finally:
            sys.setprofile(None)
        counts.append(found[0])
    return min(counts[FIRST:])


def total(one: int, two: int) -> int:
    """A task."""
    return one + two


def handlers_of(app: Celery) -> dict[str, Callable[[Any], object]]:
    """The lifecycle log's handlers, called as Celery calls them for a task that stands alone."""
    app.task(total, name=TASK)
    app.finalize()
    task = app.tasks[TASK]
    headers = {
        "id": "t", "task": TASK, "root_id": "t", "parent_id": None, "group": None, "retries": 0, "argsrepr": "(1, 2)",
        "kwargsrepr": "{}", "origin": "a@b", "eta": None, "expires": None, "lang": "py",
    }  # fmt: skip
    body: tuple[Any, ...] = ((1, 2), {}, {})
    message = SimpleNamespace(
        headers=headers, properties={"correlation_id": "t"}, payload=body, body=body, decode=lambda: body,
        content_type="application/json", content_encoding="utf-8", delivery_info={"routing_key": "celery"},
    )  # fmt: skip
    received = Request(message, app=app, task=task, hostname="w@h")
    task.push_request(id="t", root_id="t", hostname="w@h", retries=0, is_eager=False)
    handlers = {handler.__name__.strip("_"): handler for _, handler in recorder.HANDLERS}
    given: dict[str, dict[str, Any]] = {
        "sent": {"sender": TASK, "headers": headers, "body": body, "exchange": "", "routing_key": "celery"},
        "received": {"sender": SimpleNamespace(app=app), "request": received},
        "started": {"sender": task, "task_id": "t", "task": task},
        "succeeded": {"sender": task, "result": 3, "runtime": 0.25},
        "ended": {"sender": task, "task_id": "t", "retval": 3, "state": states.SUCCESS},
    }
    return {name: partial(_call, handlers[name], named) for name, named in given.items()}


def _call(handler: Callable[..., None], named: dict[str, Any], _: object) -> None:
    handler(**named)


def taken_us(function: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """µs of this thread's processor time for one invocation."""
    begun = time.thread_time_ns()
    for argument in arguments:
        function(argument)
    return (time.thread_time_ns() - begun) / len(arguments) / 1000


def main(arguments: list[str]) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.calls", description=__doc__)
    parser.add_argument("--ids", type=int, default=1_000, help="of one measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="(%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        app = Celery("bench", broker="memory://", backend=f"cystore://{folder}/store", set_as_current=False)
        both = (app.backend, OverADict(app))
        print("| | calls | of the base | µs | of the base | ratio |")
        print("|---|---:|---:|---:|---:|---:|")
        calls, rounds = {}, []
        counted = [uuid() for _ in range(RUNS)]
        for name, operation in OPERATIONS.items():
            calls[name] = [calls_of(partial(operation, one), counted) for one in both]
        for number in range(options.rounds):
            ids, times = [uuid() for _ in range(options.ids)], {}
            for name, operation in OPERATIONS.items():
                for one in both if number % 2 else both[::-1]:
                    times[name, one] = taken_us(partial(operation, one), ids)
            rounds.append(times)
        for name, (ours, least) in calls.items():
            us = [statistics.median(times[name, one] for times in rounds) for one in both]
            ratio = statistics.median(times[name, both[0]] / times[name, both[1]] for times in rounds)
            print(f"| {name} | {ours} | {least} | {us[0]:.1f} | {us[1]:.1f} | {ratio:.2f} |")
        print("\n| event | calls |\n|---|---:|")
        for name, handler in handlers_of(app).items():
            print(f"| {name} | {calls_of(handler, range(RUNS))} |")
        close_shared()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
