"""Goal: a process that is killed while it takes back the files ahead of the log leaves a store that continues, and
that the next clean close leaves as RocketMQ expects it. Method: one process of the build with failpoints, killed
behind each file; then another one."""

from __future__ import annotations

import signal

import pytest

from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

CLOSE = """
import cystore
store = cystore.open(path, **settings)
store.put("T", b"x" * 100)
store._parts.allocator.run_once()
"""


def log_files(path) -> list[int]:
    return sorted(int(file.name) for file in (path / "commitlog").glob("0*"))


@pytest.mark.parametrize("passes", [1, 2])
def test_a_kill_behind_each_file_that_a_clean_close_takes_back(tmp_path, build_environment, passes):
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"allocate.removed:{passes}"}
    path = tmp_path / "s"
    with Process(environment) as victim:
        victim.do(CLOSE, path=str(path), settings=SETTINGS)
        assert log_files(path) == [number * LOG_BYTES for number in range(5)]
        victim.send("store.close()")
        assert victim.wait() == -signal.SIGKILL
    assert (path / "abort").exists()
    assert log_files(path) == [number * LOG_BYTES for number in range(5 - passes)]
    with open_small(path) as store:
        assert [bytes(m.body) for m in store.scan()] == [b"x" * 100]
        store.put("T", body_for(LOG_BYTES - 8))
        store._parts.allocator.run_once()
        assert len(log_files(path)) > 4
    assert log_files(path) == [number * LOG_BYTES for number in range(4)]
    assert not (path / "abort").exists()
