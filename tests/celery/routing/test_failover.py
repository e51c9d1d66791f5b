"""Goal: a fleet goes on when the host of its home dies: results, waits and chords at the replica, publishers and
workers without a new setting. Method: two hosts as folders, a real etcd and Redis, real workers; every process of the
master's host is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, states
from celery.result import AsyncResult

import cystore
from cystore.celery.base.identity import known_home_of
from cystore.celery.stores import DEFAULTS, Location, close_shared
from cystore.clock import monotonic_s
from cystore.ha.election.etcd import Etcd
from cystore.ha.election.group import Group, View
from tests.celery.conftest import PATIENCE_S, ROOT, Worker, wait_until
from tests.support.celery import work
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import free_port
from tools.processes import ends_with_us
from tools.redis_server import Redis, redis_server

pytestmark = [needs_etcd, pytest.mark.slow, pytest.mark.celery]
GROUP = "home-a"
LEASE_MS = int(os.environ.get("CYSTORE_TEST_LEASE_MS", 2_000))
SECOND = "second"  # the queue that the worker of the other host consumes


class Hosts:
    """Host a has the home; host b has a store of its own, and the replica."""

    def __init__(self, folder: Path, redis: Redis, etcd: EtcdServer) -> None:
        self._folder, self._redis, self._etcd = folder, redis, etcd
        self.home_path, self.replica_path = folder / "a" / "store", folder / "b" / "replicas" / "a"
        self.replica_path.parent.mkdir(parents=True)
        self._ended = ExitStack()

    def keep(self, path: Path, member: str) -> subprocess.Popen[bytes]:
        """The process that replicates a store: `cystore ha run`."""
        settings = {
            "broker_role": "elected", "ha_group": GROUP, "ha_member": member, "ha_listen_port": free_port(),
            "ha_allow_plain": "true",
            "ha_etcd_endpoints": self._etcd.url, "ha_lease_ms": LEASE_MS, "ha_in_sync_lag_ms": 500,
            "mapped_file_size_commit_log_bytes": DEFAULTS["mapped_file_size_commit_log_bytes"],
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = ends_with_us([sys.executable, "-m", "cystore", "ha", "run", str(path), *words])
        with open(self._folder / f"{member}.log", "ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        self._ended.callback(killed, process)
        return process

    def worker(self, name: str, host: str, *words: str, **environment: str) -> Worker:
        """On host b it has the folder of replicas, and waits while its own store is a replica."""
        settings = {}
        if host == "b":
            settings = {"cystore_replicas": str(self.replica_path.parent), "cystore_store_away": "wait"}
        worker = Worker(
            self._folder / f"{name}.log", f"--hostname={name}@{host}", "--concurrency=2", *words,
            **{
                work.BROKER: self._redis.broker_url, work.BACKEND: f"cystore://{self._folder / host / 'store'}",
                work.SETTINGS: json.dumps(settings), **environment,
            },
        )  # fmt: skip
        self._ended.callback(killed, worker.process)
        return worker

    def app(self, backend: str, **settings: Any) -> Celery:
        return work.make_app(self._redis.broker_url, backend, **settings)

    def seen(self) -> View:
        group = Group(Etcd(cystore.StoreConfig(), self._etcd.url, 2.0), GROUP)
        try:
            return group.look()
        finally:
            group.close()

    def master(self) -> str:
        found = self.seen().master
        return "" if found is None else found.member

    def in_sync(self) -> set[str]:
        state = self.seen().state
        return set() if state is None else set(state.in_sync)

    def close(self) -> None:
        self._ended.close()
        close_shared()


def killed(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def hosts_in(folder: Path) -> Iterator[Hosts]:
    with redis_server(own=True) as redis, EtcdServer(folder / "etcd") as etcd:
        hosts = Hosts(folder, redis, etcd)
        try:
            yield hosts
        finally:
            hosts.close()


def begun(hosts: Hosts, replica_path: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """The home, which has a master on host a and a replica on host b; and the process that keeps the master."""
    config = Location.parse(f"cystore://{hosts.home_path}").config()
    with cystore.open(hosts.home_path, config=config) as store:
        home = known_home_of(store)
    home_keeper = hosts.keep(hosts.home_path, "a")
    wait_until(lambda: hosts.master() == "a", "a is the master")
    hosts.keep(replica_path, "b")
    wait_until(lambda: hosts.in_sync() == {"a", "b"}, "b is in sync")
    return home, home_keeper


def test_a_standby_takes_over_with_its_store(tmp_path):
    """The own store of each worker is a member of the group."""
    with hosts_in(tmp_path) as hosts:
        home, home_keeper = begun(hosts, tmp_path / "b" / "store")
        at_a, standby = hosts.worker("w", "a"), hosts.worker("standby", "b")
        web = hosts.app("cystore+remote://", cystore_home=home)
        add = web.tasks[work.add.name]
        early = add.delay(1, 2)
        assert early.get(timeout=PATIENCE_S) == 3
        wait_until(lambda: "waits until its store is back" in standby.log.read_text(), "it is a standby")
        killed(home_keeper)
        at_a.kill()
        assert add.delay(20, 3).get(timeout=PATIENCE_S) == 23
        assert AsyncResult(early.id, app=web).get(timeout=PATIENCE_S) == 3
        body = chord([add.s(1, 1), add.s(2, 2)], web.tasks[work.total.name].s()).apply_async()
        assert body.get(timeout=PATIENCE_S) == 6
        assert hosts.master() == "b"


def test_the_host_of_a_home_dies(tmp_path):
    with hosts_in(tmp_path) as hosts:
        home, home_keeper = begun(hosts, hosts.replica_path)
        at_a = hosts.worker("w", "a")
        hosts.worker("w", "b", "--queues", SECOND)

        web = hosts.app("cystore+remote://", cystore_home=home)
        add, same = web.tasks[work.add.name], web.tasks[work.same.name]
        early = add.delay(1, 2)
        assert early.get(timeout=PATIENCE_S) == 3
        marker = tmp_path / "began"
        os.mkfifo(tmp_path / "fifo")
        blocked = web.tasks[work.wait_unless_redelivered.name].s(str(marker), str(tmp_path / "fifo"))
        body = chord([add.s(1, 1), blocked], same.s()).apply_async()
        wait_until(marker.exists, "the second part began")
        wait_until(lambda: AsyncResult(body.parent.results[0].id, app=web).ready(), "the first part ended")
        waited: list[object] = []
        waiting = threading.Thread(target=lambda: waited.append(body.get(timeout=PATIENCE_S)))
        waiting.start()

        killed(home_keeper)
        at_a.kill()
        began_s = monotonic_s()
        later = add.apply_async((20, 3), queue=SECOND)
        assert later.get(timeout=PATIENCE_S) == 23
        print(f"a result {monotonic_s() - began_s:.1f} s after the kill, with a lease of {LEASE_MS} ms")
        assert hosts.master() == "b"
        assert AsyncResult(early.id, app=web).get(timeout=PATIENCE_S) == 3
        assert AsyncResult(body.id, app=web).state == states.PENDING

        hosts.worker("w2", "b", "--queues", work.QUEUE, **work.SOON)
        waiting.join(PATIENCE_S)
        assert waited == [[2, "second time"]]

        hosts.keep(hosts.home_path, "a")
        wait_until(lambda: hosts.in_sync() == {"a", "b"}, "a came back as a replica")
        with cystore.open(hosts.home_path, read_only=True) as old:
            wait_until(lambda: len(old.query("celery_results", body.id, 9)) >= 1, "a has what it missed")
            assert known_home_of(old) == home
