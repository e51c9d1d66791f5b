"""`python -m benchmarks.celery.many`: the results of many tasks in one look, beside a look for each.

The store has as many results as asked for, in a random order of ids. Each round asks for the same ids in both ways, one
after the other. The ratio compares the processor time of the two; it is the median of the rounds. The second table is
for a read-only handle of a store whose last records are not dispatched: each look for one id reads all of these.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, states
from celery.result import ResultSet

import cystore
from cystore.celery.base import records
from cystore.celery.stores import close_shared


def make_app(path: Path, options: str = "") -> Celery:
    """An app that only reads results."""
    return Celery("bench", broker="memory://", backend=f"cystore://{path}{options}", set_as_current=False)


def fill(app: Celery, count: int) -> list[str]:
    """Results of tasks that began and succeeded; their ids."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for state in (states.STARTED, states.SUCCESS):
        for task_id in ids:
            app.backend.store_result(task_id, 1, state)
    return ids


def timed(function: Callable[[], Any]) -> float:
    """Seconds of processor time of a call, because nothing here waits."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def pairs(app: Celery, ids: list[str]) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The compared calls: (one by one, at once)."""
    backend, store = app.backend, app.backend.store
    keys = [records.key_of(task_id) for task_id in ids]

    def results() -> list[Any]:
        backend._cache.clear()
        return [app.AsyncResult(task_id) for task_id in ids]

    return {
        "store.query / query_many": (
            lambda: [store.query(records.RESULTS, key) for key in keys],
            lambda: store.query_many(records.RESULTS, keys),
        ),
        "backend.get_task_meta / get_many": (
            lambda: [backend.get_task_meta(task_id, cache=False) for task_id in ids],
            lambda: list(backend.get_many(ids)),
        ),
        "AsyncResult.get / ResultSet.get": (
            lambda: [result.get(disable_sync_subtasks=False) for result in results()],
            lambda: ResultSet(results(), app=app).get(disable_sync_subtasks=False),
        ),
    }


def compare(title: str, app: Celery, ids: list[str], rounds: int) -> None:
    """One table."""
    print(f"\n{title}: {len(ids)} ids, {rounds} rounds\n")
    print("| one by one / at once | one by one, µs an id | at once, µs an id | ratio |")
    print("|---|---:|---:|---:|")
    for name, (singly, at_once) in pairs(app, ids).items():
        taken = [(timed(singly), timed(at_once)) for _ in range(rounds)]
        one, many = (statistics.median(half) / len(ids) * 1e6 for half in zip(*taken, strict=True))
        ratio = statistics.median(first / second for first, second in taken)
        print(f"| {name} | {one:.1f} | {many:.1f} | {ratio:.2f} |")


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.many", description=__doc__)
    parser.add_argument("--results", type=int, default=200_000, help="in the store")
    parser.add_argument("--ids", type=int, default=10_000, help="number of ids that one call asks for")
    parser.add_argument("--behind", type=int, default=2_000, help="number of undispatched records")
    parser.add_argument(
        "--behind-ids",
        type=int,
        default=500,
        help="number of ids that one call asks for beside those records",
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        app = make_app(path)
        ids = random.sample(fill(app, given.results), given.ids)
        app.backend.store.dispatch()
        compare(f"{given.results} results", app, ids, given.rounds)
        close_shared()
        # Without services nothing is dispatched: the next puts wait.
        with cystore.open(path, services="none") as store:
            for number in range(given.behind):
                store.put(records.RESULTS, b"{}", keys=(f"late-{number}",), tags=states.STARTED)
            reader = make_app(path, "?read_only=true")
            compare(
                f"{given.behind} records not dispatched, read-only",
                reader,
                ids[: given.behind_ids],
                given.rounds,
            )
            close_shared()
    return 0


if __name__ == "__main__":
    sys.exit(main())
