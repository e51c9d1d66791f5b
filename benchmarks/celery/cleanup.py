"""`python -m benchmarks.celery.cleanup [--results N]`: removing expired results, beside
`celery.backend_cleanup` of the SQL backend on SQLite.

Both hold the same results, all of them expired. The benchmark measures each backend's removal: the store unlinks the
segments that hold them (`MessageStore.clean`), the SQL backend deletes their rows (`DatabaseBackend.cleanup`). A store
removes whole segments. So it is filled until the N results lie in full segments, and may remove more than N; the time
is that of all removed results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from celery import Celery, states
from kombu.utils.encoding import ensure_bytes

import cystore
from cystore.celery.stores import close_shared

RESULT = {"order": 17, "status": "paid", "items": ["tea", "milk"], "note": "x" * 100}


def ours(folder: Path, count: int) -> tuple[float, int]:
    """(seconds, results gone) of cleaning a store."""
    path = folder / "store"
    app = Celery("cleanup", broker="memory://", backend=f"cystore://{path}", set_as_current=False)
    app.conf.result_backend_thread_safe = True
    store, backend, stored, end = app.backend.store, app.backend, 0, 0
    segment_bytes = store._attached().commit_log.file_bytes
    while stored < count or store.wrote_position // segment_bytes * segment_bytes < end:
        backend.store_result(str(uuid4()), RESULT, states.SUCCESS)
        stored += 1
        if stored == count:
            end = store.wrote_position
    close_shared()
    with cystore.open(path, file_reserved_time_h=0) as store:
        store.dispatch()
        store.flush()
        os.sync()
        begun = time.perf_counter()
        cleaned = store.clean()
        seconds = time.perf_counter() - begun
        left = sum(1 for _ in store.scan())
    if cleaned.min_physical_offset < end:
        raise RuntimeError(
            f"cleaning removed the log below {cleaned.min_physical_offset} only, not {count} results"
        )
    return seconds, stored - left


def sql(folder: Path, count: int) -> tuple[float, int]:
    """(seconds, results gone) of the SQL backend's cleanup on a SQLite file."""
    from celery.backends.database.models import Task

    app = Celery(
        "cleanup", broker="memory://", backend=f"db+sqlite:///{folder}/results.db", set_as_current=False
    )
    backend = app.backend
    done = (datetime.now(UTC) - timedelta(days=30)).replace(tzinfo=None)
    text = ensure_bytes(backend.encode(RESULT))
    session = backend.ResultSession()
    session.bulk_insert_mappings(
        Task,
        [
            {"task_id": str(uuid4()), "status": states.SUCCESS, "result": text, "date_done": done}
            for _ in range(count)
        ],
    )
    session.commit()
    session.close()
    os.sync()
    begun = time.perf_counter()
    backend.cleanup()
    seconds = time.perf_counter() - begun
    session = backend.ResultSession()
    left = session.query(Task).count()
    session.close()
    return seconds, count - left


def main(arguments: list[str]) -> int:
    """Prints the times and the ratio; 1 when expired results were left."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.cleanup", description=__doc__)
    parser.add_argument("--results", type=int, default=100_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    medians = {}
    for name, peer in (("cystore", ours), ("db+sqlite", sql)):
        found = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                seconds, gone = peer(Path(folder), options.results)
            if gone < options.results:
                print(f"{name}: only {gone:,} results are gone", file=sys.stderr)
                return 1
            found.append((seconds * options.results / gone, gone))
        medians[name] = statistics.median(seconds for seconds, _ in found)
        print(
            f"{name:<10} {medians[name] * 1000:>10.2f} ms for {options.results:,} expired results "
            f"({found[0][1]:,} removed in one call)"
        )
    print(f"ratio      {medians['db+sqlite'] / medians['cystore']:>10.0f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
