"""Goal: what billiard counts as a child's memory does not grow with the log. Method: processes that store and read a
log of many times the bound, and say what `getrusage` says of them."""

from __future__ import annotations

import pytest

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
