"""Goal: what the plugin adds to Celery's own work for a result stays as small as it is. Method: counts the calls, of
Python and of C functions, beside those of Celery's own base class over a dict in the same process. Counts, unlike
times, are the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from celery import Celery, states, uuid
from celery.backends.base import KeyValueStoreBackend

from cystore.celery.stores import close_shared
from tools.redis_server import redis_server

RUNS, FIRST = 40, 10  # the first calls import modules and fill caches
RESULT = "x" * 198


class OverADict(KeyValueStoreBackend):
    """What no backend can do without."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self._kept: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self._kept.get(key)

    def set(self, key: Any, value: Any) -> None:
        self._kept[key] = value


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


OPERATIONS: dict[str, Callable[[Any, str], object]] = {
    "unknown": lambda backend, task_id: backend.get_task_meta(uuid(), cache=False),
}
# The most calls more than Celery's base class over a dict makes for the same. Lower them when the plugin gets lighter.
MORE = {"unknown": 8}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_calls_beside_the_base_class(backend, operation):
    act, ids = OPERATIONS[operation], [uuid() for _ in range(RUNS)]
    base = OverADict(backend.app)
    ours, least = (calls_of(partial(act, one), ids) for one in (backend, base))
    assert ours - least <= MORE[operation], f"{operation}: {ours} calls, Celery's base class {least}"


def test_an_unknown_id_with_a_redis_and_no_other_home(tmp_path):
    """Seen: each unknown id was looked for twice more in the store, and cost more than ten times the base class's
    time."""
    with redis_server(own=True) as redis:
        app = Celery(
            "test", broker=redis.broker_url, backend=f"cystore://{tmp_path}/store", set_as_current=False
        )
        backend, base = app.backend, OverADict(app)
        look = OPERATIONS["unknown"]
        ours, least = (calls_of(partial(look, one), range(RUNS)) for one in (backend, base))
        assert backend.get_task_meta(uuid())["status"] == states.PENDING
        close_shared()
    assert ours - least <= MORE["unknown"] + 4, f"{ours} calls, Celery's base class {least}"
