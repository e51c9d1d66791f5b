"""Goal: after a failed sync a member reports nothing as durable and acknowledges nothing, whatever later syncs say, and
a group goes on without it. Method: a real group; the syncs of one member's process fail, and then succeed again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cystore.ha.status import read_status
from tests.support.disks.failing_calls import FailingCalls, fail, succeed
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import log_bytes, members, until
from tests.support.process import Process
from tests.support.processes.shifted import COMPILER

pytestmark = [needs_etcd, pytest.mark.skipif(not shutil.which(COMPILER), reason="there is no C compiler")]
OPENED = """
import cystore
store = cystore.open(path, **settings)
def control():
    return store._attached().control
def tried():
    try:
        store.put("T", b"x" * 100, flush="replicated")
    except cystore.StoreError as error:
        return type(error).__name__
    return ""
"""
SYNC = "msync"
FAILED = "control().flags & 1"


class Pair:
    """Two members whose syncs can fail."""

    def __init__(self, folder: Path, etcd: EtcdServer) -> None:
        self.environment = FailingCalls(folder).environment(dict(os.environ))
        times = {"ha_lease_ms": 2_000, "ha_in_sync_lag_ms": 300, "slave_timeout_ms": 1_000}
        self.settings = {name: members(etcd.url, name, **times) for name in ("a", "b")}
        self.folder = folder

    def open(self, process: Process, name: str) -> Process:
        process.do(OPENED, path=str(self.folder / name), settings=self.settings[name])
        return process

    def process(self) -> Process:
        return Process(self.environment)


def facts(process: Process) -> dict[str, Any]:
    names = ["epoch", "in_sync", "flushed", "wrote"]
    return dict(process.do("{name: getattr(control(), name) for name in names}", names=names))


def in_sync(master: Process, count: int) -> None:
    until(lambda: master.do("tried()") == "" and facts(master)["in_sync"] == count)


@pytest.mark.slow  # leases and lags that end
def test_a_member_whose_sync_failed(tmp_path):
    with EtcdServer(tmp_path / "etcd") as etcd:
        pair = Pair(tmp_path, etcd)
        with pair.process() as a, pair.process() as b, pair.process() as next_a, pair.process() as next_b:
            pair.open(a, "a")
            until(lambda: a.do("tried()") == "")
            pair.open(b, "b")
            in_sync(a, 2)

            fail(b, SYNC)
            until(lambda: a.do("tried()") == "" and facts(a)["in_sync"] == 1)
            assert b.do(FAILED)
            at = facts(b)["flushed"]
            succeed(b)
            for _ in range(20):
                assert a.do("tried()") == ""
            until(lambda: "disk failed" in read_status(tmp_path / "b").state)
            there = facts(b)
            assert there["flushed"] == at and facts(a)["in_sync"] == 1, "it has not come back"

            b.kill()
            pair.open(next_b, "b")  # writes what the disk may lack once more
            in_sync(a, 2)

            fail(a, SYNC)
            assert a.do("tried()") in ("FlushFailedError", "NotDurableError")
            succeed(a)
            until(lambda: next_b.do("tried()") == "")
            until(lambda: read_status(tmp_path / "b").state == "master")
            assert not read_status(tmp_path / "b").problem, "of the last master"
            assert a.do("tried()") and not facts(a)["epoch"], "it takes no part"
            assert "disk failed" in read_status(tmp_path / "a").state

            a.kill()
            pair.open(next_a, "a")
            in_sync(next_b, 2)
            end = facts(next_b)["wrote"]
            until(lambda: facts(next_a)["wrote"] == end)
            assert log_bytes(tmp_path / "a", 0, end) == log_bytes(tmp_path / "b", 0, end)
