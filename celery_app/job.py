"""The main job: index Python's own library with a Celery fleet whose results go into a store, and lose a worker
half-way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery_app import sources
from celery_app.app import REDELIVER_AFTER_S, app, store_url
from celery_app.collect import CollectError, Collection, Meta
from celery_app.fleet import PROCESSES, ROOT, Fleet
from celery_app.folder import RunFolder
from celery_app.tasks import index_file
from celery_app.tell import bar, say
from celery_app.verify import Verdict, write_acknowledged
from cystore import MessageStore
from cystore.celery.base.duty_leases import last_token, redis_of
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties.duty_runs import REPUT
from cystore.celery.redis_urls import redis_location_of
from cystore.celery.stores import close_shared
from tools.redis_server import redis_server

LIMIT_S = 600.0  # a busy machine takes a multiple of the usual minute
BROKERS = ("store", "redis")


class JobError(RuntimeError):
    """The run failed; the text says how."""


@dataclass(frozen=True)
class Run:
    """The facts of an ended run for the report. `turns`: the number of leases of the dispatch duty; `leases`: where
    these were."""

    folder: RunFolder
    metas: dict[str, Meta]
    sent_again: int
    seconds: float
    killed_ms: int
    turns: int
    leases: str
    behind_bytes: int


@contextmanager
def _broker(kind: str, folder: RunFolder) -> Iterator[tuple[str, str]]:
    """The URL of the broker for a with block, and words about it. Raises the errors of starting a Redis."""
    if kind == BROKERS[0]:
        yield store_url(folder.store), "and no server: the store is the broker, too"
        return
    with redis_server() as redis:
        whose = "started for this run" if redis.started_by_us else "yours"
        yield redis.broker_url, f"and Redis as the broker, {whose}, which has the leases of duties, too"


def _turns(store: MessageStore) -> tuple[int, str]:
    """The number of leases of the dispatch duty, which is their last token; and where they are."""
    if redis_location_of(app) is None:
        return store.duties.highest_token(REPUT.name), "in the store"
    return last_token(redis_of(app), store_id_of(store), REPUT.name), "in Redis"


def run_job(folder: RunFolder, count: int | None, broker: str = BROKERS[0]) -> Run:
    """Runs the whole job. Raises JobError, and the errors of starting a Redis."""
    everything = sources.python_files()
    failing = sources.failing(everything)
    added = [] if failing else sources.write_broken(folder.broken)
    files = sources.chosen(everything, added or failing, count)
    with _broker(broker, folder) as (url, words), Fleet(url, folder.store, folder.logs) as fleet:
        app.conf.update(broker_url=url, result_backend=store_url(folder.store))
        app.control.purge()  # messages of an earlier run in a Redis that outlives it
        version = sys.version.split()[0]
        say(f"input   {len(files):,} Python files: standard library and site-packages of Python {version}")
        for path in added:
            say(f"        {path.name} is added to the input, because every file of the library parses")
        say(f"fleet   a worker with {PROCESSES} processes, beat, {words}")
        say(f"store   {folder.store}")
        begin = time.monotonic()
        worker = fleet.start_worker("worker1")
        fleet.start_beat()
        sent = _send(files)
        collection = Collection(sent, fleet, LIMIT_S - (time.monotonic() - begin))
        try:
            collection.take(len(sent) // 2)
            killed_ms = time.time_ns() // 1_000_000
            fleet.kill("worker1")
            say(
                f"kill    half of the results are in: SIGKILL for worker1 (process {worker}) and its "
                f"{PROCESSES} processes;"
            )
            when = "at once" if broker == BROKERS[0] else f"after {REDELIVER_AFTER_S} s"
            say(f"        worker2 continues, and gets the unfinished tasks of worker1 {when} (acks_late)")
            fleet.start_worker("worker2")
            collection.take(len(sent))
        except CollectError as error:
            raise JobError(str(error)) from error
        finally:
            write_acknowledged(folder.acknowledged, collection.metas.values())
        seconds = time.monotonic() - begin
        store = app.backend.store
        turns, leases = _turns(store)
        behind_bytes = store.stats()["dispatch_behind_bytes"]
        fleet.stop()
        close_shared()
    return Run(
        folder, collection.metas, collection.sent_again, seconds, killed_ms, turns, leases, behind_bytes
    )


def _send(files: list[Path]) -> dict[str, str]:
    """A task for each file: task id and path."""
    sent: dict[str, str] = {}
    with bar("sending", len(files)) as report:
        for path in files:
            sent[index_file.delay(str(path)).id] = str(path)
            report(len(sent))
    return sent


def verify_in_a_fresh_process(folder: RunFolder) -> Verdict:
    """Reads every acknowledged result in a process without any memory of this run."""
    command = [sys.executable, "-m", "celery_app", "--verify", "--path", str(folder.root)]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    try:
        return Verdict(**json.loads(done.stdout))
    except (ValueError, TypeError) as error:
        raise JobError(f"reading back failed with exit code {done.returncode}: {done.stdout}") from error
