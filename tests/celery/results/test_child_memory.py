"""Goal: what billiard counts as a child's memory does not grow with the log, and no process of a fleet grows with it.
Method: processes that store and read a log of many times the bound, and say what `getrusage` says of them; a fleet
whose tasks return 1 GB, with beat in the worker and by itself, a client and a reader."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.celery.conftest import fleet_in
from tests.support.celery import work
from tests.support.process import Process

BEGIN = """
import resource
from celery import Celery
app = Celery("memory", broker="memory://", backend=url, set_as_current=False)
app.conf.result_backend_thread_safe = True
backend = app.backend
text = "x" * 6_000
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def store(begin, end):
    for number in range(begin, end):
        backend.store_result(f"t{number}", text, "SUCCESS")
def read(begin, end):
    for number in range(begin, end):
        assert backend.get_result(f"t{number}") == text
        backend._cache.clear()
"""
RESULTS, BYTES = 30_000, 6_000
BOUND_BYTES = 80 << 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("work", ["store", "read"])
def test_the_peak_of_a_child_stays_flat(url, work):
    """Seen: with 180 MB of results stored, the peak was 180 MB higher, and `--max-memory-per-child` ended the child."""
    with Process() as writer:
        writer.do(BEGIN, url=url)
        if work == "read":
            writer.do(f"store(0, {RESULTS})")
        with Process() as child:
            child.do(BEGIN, url=url)
            if work == "store":
                before = child.do("store(0, 100); peak()")
            else:
                before = child.do("read(0, 100); peak()")
            after = child.do(f"{work}(100, {RESULTS}); peak()")
            assert RESULTS * BYTES > 2 * BOUND_BYTES
            assert after - before < BOUND_BYTES, (before >> 20, after >> 20)


SOAKED, ROUND, LARGE_BYTES = 10_000, 100, 100_000
GROWTH_BYTES = 64 << 20

FOLLOW = """
import cystore
store, at = cystore.open(path, read_only=True), {}
def follow():
    for topic, queues in store.topics().items():
        for queue_id in queues:
            while (found := store.get(topic, queue_id, at.get((topic, queue_id), 0))).messages:
                at[topic, queue_id] = found.next_offset
"""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
def test_no_process_of_a_fleet_grows_with_its_log(tmp_path: Path) -> None:
    """Seen: RSS of 1.40 GB in beat after 25 minutes, 51 MB of it its own."""
    with fleet_in(tmp_path, "?services=all") as fleet, Process() as reader:
        worker = fleet.start("--concurrency=2", "-B", "--schedule", str(tmp_path / "schedule"), quiet=True)
        beat = fleet.start_beat()
        fleet.task(work.add).delay(1, 1).get(timeout=600)  # the worker made the store
        reader.do(FOLLOW, path=str(fleet.store_path))
        text, before, most = fleet.task(work.text_of), {}, {}
        for done in range(0, SOAKED, ROUND):
            results = [text.delay(LARGE_BYTES, str(tmp_path / "runs")) for _ in range(ROUND)]
            assert {len(result.get(timeout=600)) for result in results} == {LARGE_BYTES}
            del results
            gc.collect()  # Celery's results are in cycles, and keep their texts until then
            reader.do("follow()")
            processes = [
                os.getpid(), worker.process.pid, *worker.children(), beat.process.pid, reader.pid,
            ]  # fmt: skip
            for pid in processes:
                size = resident_bytes(pid)
                if done < 5 * ROUND:  # each has imported and opened what it needs by now
                    before[pid] = size
                most[pid] = max(most.get(pid, 0), size - before.get(pid, size))
        assert fleet.backend.store.wrote_position > SOAKED * LARGE_BYTES
        assert {pid: size >> 20 for pid, size in most.items() if size > GROWTH_BYTES} == {}, processes
