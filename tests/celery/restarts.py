"""Restarts of workers with beat, and of their pool processes: nothing may hang.

    python -m tests.celery.restarts [--restarts N] [--minutes M] [--pools prefork threads ...]

One round starts a worker, in each pool in turn, with the duties and with a Redis that is reached by its host's name.
Beat has to send, and tasks have to come back with results. With prefork each task is the last one of its pool
process, and the processes are killed, too. Then the worker is asked to end, or killed. gevent and eventlet refuse
`-B`: there beat is a process of its own. Every wait has a limit. A restart is the start of a worker, of a beat, or of
a pool process in the place of another one. The counts are printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from celery import group
from redis import Redis

from cystore.clock import monotonic_s
from tests.celery.conftest import Fleet, Worker, wait_until
from tests.support.celery import work
from tests.support.celery.servers import redis_named_by_host

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
GREEN = ("gevent", "eventlet")
LIMIT_S = 120.0
TASKS = 8  # of one round
SENDS = "Scheduler: Sending due task cystore.fan_out"


def is_sent(beat: Worker) -> bool:
    """Whether beat works."""
    return SENDS in beat.log.read_text()


def round_of(fleet: Fleet, pool: str, number: int, counts: Counter[str]) -> None:
    """One worker's life. Fails where something hangs."""
    schedule = str(fleet.folder / f"schedule{number}")
    options = ["--concurrency=2"]
    if pool == "prefork":
        options.append("--max-tasks-per-child=1")
    if pool not in GREEN:
        options += ["-B", "--schedule", schedule]
    worker = fleet.start(*options, pool=pool, **{work.DUTIES: "1"})
    beat = worker if pool not in GREEN else fleet.start_beat("--schedule", schedule)
    counts["beats"] += 1
    counts[f"workers, {pool}"] += 1
    run_tasks(fleet)
    wait_until(lambda: is_sent(beat), f"beat of round {number} ({pool}) sends", LIMIT_S)
    if pool == "prefork":
        counts["pool processes"] += TASKS
        for child in pool_processes(fleet):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                counts["pool processes"] += 1
        run_tasks(fleet)
        counts["pool processes"] += TASKS
    if beat is not worker:
        beat.kill()
    if number % 2:
        worker.kill()
        # Redis hands a message to a worker that was killed until it has noticed. That message is lost, whatever the
        # result backend is.
        with Redis.from_url(fleet.environment[work.BROKER]) as client:
            wait_until(
                lambda: not client.info("clients")["blocked_clients"], "Redis knows that it was killed"
            )
        return
    worker.ask_to_stop()
    wait_until(
        lambda: worker.process.poll() is not None, f"the worker of round {number} ({pool}) ends", LIMIT_S
    )
    assert worker.process.returncode == 0, worker.log.read_text()


def run_tasks(fleet: Fleet) -> None:
    """Sends tasks, and takes their results."""
    results = group(fleet.task(work.add).s(n, 1) for n in range(TASKS)).apply_async()
    assert results.get(timeout=LIMIT_S) == [n + 1 for n in range(TASKS)]


def pool_processes(fleet: Fleet) -> list[int]:
    """Of the one worker that lives; not beat's, which nobody starts again."""
    answers = fleet.app.control.inspect(timeout=LIMIT_S, limit=1).stats() or {}
    return [pid for stats in answers.values() for pid in stats["pool"]["processes"]]


def restart(folder: Path, restarts: int, minutes: float, pools: tuple[str, ...]) -> Counter[str]:
    """Rounds until there were so many restarts, or the time is over; the counts."""
    counts: Counter[str] = Counter()
    until, number = monotonic_s() + 60 * minutes, 0
    with redis_named_by_host() as url:
        fleet = Fleet(folder, url)
        try:
            while counts.total() < restarts and monotonic_s() < until:
                round_of(fleet, pools[number % len(pools)], number, counts)
                number += 1
        finally:
            fleet.stop()
    return counts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.celery.restarts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=1_000, help="(%(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="at most (%(default)s)")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS, help="(all)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="restarts-") as folder:
        counts = restart(Path(folder), options.restarts, options.minutes, tuple(options.pools))
    for name, count in sorted(counts.items()):
        print(f"{name:<20}{count:>8}")
    print(f"{'all, none hung':<20}{counts.total():>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
