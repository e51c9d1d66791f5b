"""`python -m benchmarks.celery.light_queues`: what the light queues of the lifecycle log cost, and what they save.

append  processor time of the writing thread, bytes of the log, and processor time of dispatch for an event, without
        light queues and with them, in turn.
read    the events of one worker among several, and of one workflow, by light queue and without, in ms.
open    the disk space of light queues with one event each, and the time to open the closed store, beside a store with
        the same events and none of these queues, and beside one whose cleaning removed the files of the queues.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from celery import Celery

import cystore
from cystore import MessageStore
from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.lifecycle import light_queues, recorder
from cystore.celery.stores import close_shared
from cystore.layout import LMQ_PREFIX

KINDS = (light_queues.OFF, "worker", "worker,workflow")
SEGMENT_BYTES = 1 << 20
SMALL = f"?mapped_file_size_commit_log_bytes={SEGMENT_BYTES}&max_message_size_bytes=65536&allocate_ahead_bytes=65536"
NAME, TASKS_OF_A_WORKFLOW = "shop.charge", 10
LIFE = (events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED)


def app_at(folder: Path, kinds: str, options: str = "") -> Celery:
    """An app whose log has these light queues."""
    url = f"cystore://{folder}/store{options}"
    app = Celery("light", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_lifecycle_light_queues=kinds)
    assert app.backend
    return app


def log_tasks(app: Celery, tasks: int, workers: int) -> None:
    """Writes the events of tasks, each tenth of which begins a workflow."""
    log = recorder.log_of(app)
    if log is None:
        raise RuntimeError("the app has no log")
    for number in range(tasks):
        root = number // TASKS_OF_A_WORKFLOW * TASKS_OF_A_WORKFLOW
        task_id, root_id = f"{number:036}", f"{root:036}"
        parent_id = None if number == root else root_id
        for kind in LIFE:
            worker = None if kind == events.SENT else f"celery@worker-{number % workers}"
            log.append(kind, task_id, NAME, root_id, None, worker=worker, parent_id=parent_id, queue="celery")
    if log.lost:
        raise RuntimeError(f"{log.lost} events are lost")


def append(folder: Path, kinds: str, tasks: int, workers: int) -> tuple[float, float, float]:
    """(µs of an append, bytes of the log, µs of dispatch) for an event."""
    app = app_at(folder, kinds)
    store, count = app.backend.store, tasks * len(LIFE)
    log_tasks(app, max(tasks // 10, workers), workers)
    store.dispatch()
    wrote, begin = store.wrote_position, time.thread_time()
    log_tasks(app, tasks, workers)
    appended = time.thread_time()
    store.dispatch()
    dispatched = time.thread_time()
    size = (store.wrote_position - wrote) / count
    close_shared()
    return (appended - begin) / count * 1e6, size, (dispatched - appended) / count * 1e6


def timed(path: Path, read: Callable[[MessageStore], int]) -> tuple[float, int]:
    """(ms, what `read` counts) of a read in a store that is opened for it."""
    with cystore.open(path, read_only=True) as store:
        store.catch_up()
        begin = time.perf_counter()
        found = read(store)
        return (time.perf_counter() - begin) * 1e3, found


def reads(folder: Path, tasks: int, workers: int) -> None:
    """Prints the times of reads by light queue and without."""
    app = app_at(folder, "worker,workflow")
    log_tasks(app, tasks, workers)
    close_shared()
    path = folder / "store"
    root_id, worker = f"{tasks // 2 // TASKS_OF_A_WORKFLOW * TASKS_OF_A_WORKFLOW:036}", "celery@worker-0"
    questions = {
        "a worker": lambda store: sum(1 for _ in history.events(store, worker=worker)),
        "a worker's newest 100": lambda store: len(
            [event for _, event in zip(range(100), history.events(store, worker=worker), strict=False)]
        ),
        "a workflow": lambda store: sum(1 for _ in history.events(store, root_id=root_id)),
    }
    by_queue = {name: [timed(path, read) for _ in range(3)] for name, read in questions.items()}
    with cystore.open(path) as store:
        store.configure(enable_lmq=False, enable_multi_dispatch=False)
    print(f"\nread: {tasks * len(LIFE):,} events of {workers} workers")
    print(f"{'':<24} {'events':>8} {'by queue, ms':>14} {'without, ms':>14}")
    for name, read in questions.items():
        without = [timed(path, read) for _ in range(3)]
        counts = {count for _, count in (*without, *by_queue[name])}
        if len(counts) != 1:
            raise RuntimeError(f"{name}: {counts} events")
        least = [min(ms for ms, _ in found) for found in (by_queue[name], without)]
        print(f"{name:<24} {counts.pop():>8,} {least[0]:>14.2f} {least[1]:>14.2f}")


def opens(folder: Path, kinds: str, queues: int, *, cleaned: bool = False) -> tuple[int, float, float]:
    """(light queues with files, MB of disk in queues, ms of an open) of a closed store with an event for each of so
    many workers; `cleaned`: these events have expired."""
    app = app_at(folder, kinds, SMALL)
    log_tasks(app, queues, queues)
    store, path = app.backend.store, folder / "store"
    end = store.wrote_position + SEGMENT_BYTES
    while cleaned and store.wrote_position < end:
        log_tasks(app, 1, 1)
    if cleaned:
        store.configure(file_reserved_time_h=0)
        store.clean()
    close_shared()
    with cystore.open(path) as store:
        store.catch_up()
        store.clean()  # the first one looks at each queue that has no files
    files = [*(path / "consumequeue").rglob("*")]
    count = sum(file.is_file() and LMQ_PREFIX in str(file) for file in files)
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        with cystore.open(path):
            took.append((time.perf_counter() - begin) * 1e3)
    return count, sum(one.stat().st_blocks * 512 for one in files) / 1e6, min(took)


def main(arguments: list[str]) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.light_queues", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, help="four events each (%(default)s)")
    parser.add_argument("--workers", type=int, default=10, help="(%(default)s)")
    parser.add_argument(
        "--queues", type=int, default=1_000, help="light queues of the part `open` (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)

    def fresh() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(dir=options.folder, prefix="light-")

    found: dict[str, list[tuple[float, float, float]]] = {kinds: [] for kinds in KINDS}
    for _ in range(options.rounds):
        for kinds in KINDS:
            with fresh() as folder:
                found[kinds].append(append(Path(folder), kinds, options.tasks, options.workers))
    print(f"append: {options.tasks * len(LIFE):,} events, {options.rounds} rounds")
    print(f"{'light queues':<24} {'µs an event':>12} {'least':>8} {'log bytes':>10} {'dispatch µs':>12}")
    for kinds, rounds in found.items():
        took, sizes, dispatches = zip(*rounds, strict=True)
        print(
            f"{kinds:<24} {statistics.median(took):>12.1f} {min(took):>8.1f} {statistics.median(sizes):>10.0f} "
            f"{statistics.median(dispatches):>12.2f}"
        )
    with fresh() as folder:
        reads(Path(folder), options.tasks, options.workers)
    print(f"\nopen: {options.queues:,} tasks of as many workers")
    print(f"{'':<24} {'light queues':>12} {'disk, MB':>10} {'open, ms':>10}")
    for kinds, cleaned in ((light_queues.OFF, False), ("worker", False), ("worker", True)):
        with fresh() as folder:
            count, disk, took_ms = opens(Path(folder), kinds, options.queues, cleaned=cleaned)
        print(f"{kinds + ', cleaned' * cleaned:<24} {count:>12,} {disk:>10.1f} {took_ms:>10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
