"""Goal: `cystore replicate` makes a slave of nothing, and `cystore ha status` says how far it is. Method: the real
commands beside a master of this process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import cystore
from cystore.metrics import metrics
from tests.support.ha.ha_pair import check_equal, fill, free_port, masters, slaves, until, wait_log, wrote
from tests.support.process import Process

COMMAND = [sys.executable, "-m", "cystore"]


@pytest.fixture
def port() -> int:
    return free_port()


def run(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, *map(str, words)], text=True, capture_output=True, timeout=60, check=False
    )


def test_replicate_makes_a_store_with_the_masters_files(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 300)
        dead = free_port()  # the master is one of two hosts
        hosts = f"127.0.0.1:{dead},127.0.0.1:{port}"
        done = run("replicate", tmp_path / "slave", "--from", hosts, "--once")
        assert done.returncode == 0
        assert done.stderr.startswith(f"cystore: 127.0.0.1:{dead}: ")
        with cystore.open(tmp_path / "slave", services="none") as slave:
            slave.dispatch()
            check_equal(master, slave)
            with pytest.raises(cystore.StoreIsSlaveError):
                slave.put("T", b"x")


def test_replicate_follows_until_it_is_told_to_end(tmp_path, port):
    command = [*COMMAND, "replicate", str(tmp_path / "slave"), "--from", f"127.0.0.1:{port}"]
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 50)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
            assert "follows" in following.stdout.readline()
            fill(master, 50, start=50)
            with cystore.open(tmp_path / "slave", services="none") as slave:
                wait_log(slave, wrote(master))
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 130


def test_replicate_without_a_master_says_so(tmp_path, port):
    done = run("replicate", tmp_path / "slave", "--from", f"127.0.0.1:{port}", "--once")
    assert done.returncode == 2
    assert f"127.0.0.1:{port}: [Errno 111] Connection refused; start a master there" in done.stderr
    done = run("replicate", tmp_path / "slave", "--from", "nowhere.invalid:1", "--once")
    assert done.returncode == 2
    assert "nowhere.invalid:1: " in done.stderr
    done = run("replicate", tmp_path / "slave", "--from", "nowhere", "--once")
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def status(path: object) -> dict:
    done = run("ha", "status", path, "--json")
    assert done.returncode in (0, 1), done.stderr
    return {**json.loads(done.stdout), "code": done.returncode}


def exported(store: cystore.MessageStore) -> dict:
    """The metrics of replication that have a value."""
    found: dict = {}
    for metric in metrics(store):
        name = metric.name.removeprefix("cystore_ha_")
        if name in ("slaves", "slave_lag_bytes", "connected", "lag_bytes"):
            for labels, value in metric.samples:
                found[name] = labels or value
                if labels:
                    found["lag"] = value
    return found


def test_status_names_peers_and_their_lag(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        alone = until(lambda: (s := status(tmp_path / "master"))["listens"] and s)
        assert alone["code"] == 1
        assert alone["slaves"] == []
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            both = until(lambda: (s := status(tmp_path / "master"))["slaves"] and s)
            assert (both["role"], both["code"]) == ("async_master", 0)
            (peer,) = until(lambda: [p for p in status(tmp_path / "master")["slaves"] if p["lag_bytes"] == 0])
            assert (peer["acknowledged"], peer["lag_s"], peer["cystore"]) == (wrote(master), 0.0, True)
            mine = until(lambda: (s := status(tmp_path / "slave"))["connected"] and s)
            assert (mine["role"], mine["master"]) == ("slave", f"127.0.0.1:{port}")
            assert exported(master) == {"slaves": 1, "slave_lag_bytes": {"slave": "127.0.0.1"}, "lag": 0}
            assert exported(slave) == {"connected": 1, "lag_bytes": 0}
        until(lambda: exported(master)["slaves"] == 0)
        with cystore.open(tmp_path / "slave", services="none") as alone:
            assert exported(alone)["connected"] == 0
        with Process() as killed:
            killed.do("import cystore; store = cystore.open(path, **settings)", path=str(tmp_path / "slave"),
                      settings=slaves(port))  # fmt: skip
            until(lambda: status(tmp_path / "slave")["connected"])
            killed.kill()
            mine = status(tmp_path / "slave")
            assert (mine["alive"], mine["connected"]) == (False, False), "the file's time is not over"
        shown = run("ha", "status", tmp_path / "slave")
        assert shown.returncode == 1
        assert "not connected" in shown.stdout
        refused = run("ha", "promote", tmp_path / "slave")
        assert refused.returncode == 2 and "--set broker_role=async_master" in refused.stderr
    plain = run("ha", "status", tmp_path / "master")
    assert plain.returncode == 1
    assert "no process serves slaves" in plain.stdout
