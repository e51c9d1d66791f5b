"""A group of members, each a process on a host of its own, and their etcd."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from pathlib import Path
from typing import Any

import cystore
from tests.support.disks.failing_calls import FailingCalls, fail, succeed
from tests.support.ha.checker import Stored, check
from tests.support.ha.disks import Disks
from tests.support.ha.etcd import EtcdCluster
from tests.support.ha.ha_pair import QUICK, every, log_bytes, until
from tests.support.ha.network import Network
from tests.support.ha.node import read_journal, read_seen
from tests.support.process import TIMEOUT_S, Process
from tests.support.processes.shifted import COMPILER, ShiftedClock
from tests.support.small_stores import SETTINGS

NAMES = ("a", "b", "c")
ETCDS = 3
LEASE_MS = 2_000
PORT = 10912
QUIET = {
    "PYTHONWARNINGS": "ignore"
}  # etcd3gw loads eventlet where it is installed, which says that it is old
START = "from tests.support.ha.node import Node; node = Node(name, path, journal, settings)"


class HostProcess(Process):
    """The first process of a host's PID namespace. The command that made the namespace waits for it."""

    def _first(self) -> int:
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def signal(self, number: int) -> None:
        os.kill(self._first(), number)

    def stop(self) -> None:
        first = self._first()
        os.kill(first, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[0] in "tT")

    def kill(self) -> None:
        """SIGKILL to both. Returns when all of the namespace is gone."""
        try:
            first = os.pidfd_open(self._first())
        except (OSError, IndexError):  # it has ended
            super().kill()
            return
        try:
            super().kill()
            select.select([first], [], [], TIMEOUT_S)
        finally:
            os.close(first)


class Fleet:
    """A context manager. All hosts are reachable, and all members run and write, when it has begun. `environment`: more
    variables of the members' processes, for another build."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...] = NAMES,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.folder, self.names, self._more = folder, names, more
        self._environment = {**QUIET, **(environment or {})}
        self.network = Network(names)
        self.etcd = EtcdCluster(folder / "etcd", self.network.gateway, ETCDS)
        self.disks = Disks(folder, names)
        self.clocks: dict[str, ShiftedClock] = {}  # of the hosts; none without a compiler
        self.calls: FailingCalls | None = None
        self._processes: dict[str, Process] = {}
        self._stack = contextlib.ExitStack()

    def settings(self, name: str) -> dict[str, Any]:
        return {
            **SETTINGS,
            **QUICK,
            "services": "all",
            "broker_role": "elected",
            "ha_group": "fleet",
            "ha_member": name,
            "ha_listen_host": self.network.address(name),
            "ha_listen_port": PORT,
            "ha_allow_plain": True,
            "ha_etcd_endpoints": self.etcd.url,
            "ha_lease_ms": LEASE_MS,
            "ha_in_sync_lag_ms": 1_000,
            "ha_housekeeping_interval_ms": 2_000,
            "slave_timeout_ms": 1_500,
            **self._more,
        }

    def __enter__(self) -> Fleet:
        try:
            self._stack.enter_context(self.disks)
            self._stack.enter_context(self.network)
            self._stack.enter_context(self.etcd)
            if shutil.which(COMPILER):
                self.calls = FailingCalls(self.folder)
                for name in self.names:
                    place = self.folder / f"clock-{name}"
                    place.mkdir()
                    self.clocks[name] = ShiftedClock(place)
            for name in self.names:
                self.start(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)
        self._stack.close()

    def start(self, name: str) -> None:
        environment = {**os.environ, **self._environment}
        if name in self.clocks:
            environment = self.clocks[name].environment(environment)
        if self.calls is not None:
            environment = self.calls.environment(environment)
        process = HostProcess(environment, through=self.network.through(name))
        self._processes[name] = process
        process.do(
            START,
            name=name,
            path=str(self.folder / name),
            journal=str(self.folder / f"{name}.journal"),
            settings=self.settings(name),
        )
        self.write(name)

    def write(self, name: str, on: bool = True) -> None:
        self._processes[name].do("node.write(on)", on=on)

    def running(self) -> list[str]:
        return list(self._processes)

    def do(self, name: str, source: str, **names: Any) -> Any:
        return self._processes[name].do(source, **names)

    def kill(self, name: str) -> None:
        self._processes.pop(name).kill()

    def lose_power(self, how: dict[str, int]) -> None:
        """These hosts lose their power at once, each in its way (POWER_CUTS); then their disks are there again."""
        for name in how:
            self.disks.cut(name, how[name])
        for name in how:
            self.kill(name)
        for name in how:
            self.disks.power_on(name)

    def fail_syncs(self, name: str) -> None:
        """From now on no sync of a host's log succeeds."""
        fail(self._processes[name], "msync")

    def end_failures(self, name: str) -> None:
        """Syncs succeed again; what was lost stays lost."""
        succeed(self._processes[name])

    def stop(self, name: str) -> None:
        self._processes[name].stop()

    def go_on(self, name: str) -> None:
        self._processes[name].go_on()

    def facts(self, name: str) -> dict[str, Any]:
        return dict(self.do(name, "node.facts()"))

    def acknowledged(self) -> list[dict[str, Any]]:
        return [line for name in self.names for line in read_journal(self.folder / f"{name}.journal")]

    def newest(self) -> int:
        """The newest epoch in which something was acknowledged."""
        return max((line["epoch"] for line in self.acknowledged()), default=0)

    def wait_master(self, after: int = 0) -> str:
        """The member that acknowledged in an epoch after that."""

        def found() -> str:
            lines = [line for line in self.acknowledged() if line["epoch"] > after]
            return max(lines, key=lambda line: line["epoch"])["life"].partition(".")[0] if lines else ""

        return str(until(found))

    def wait_more(self, count: int = 20) -> None:
        """Returns when so many more puts were acknowledged."""
        goal = len(self.acknowledged()) + count
        until(lambda: len(self.acknowledged()) >= goal)

    def wait_in_sync(self, count: int) -> None:
        """Returns when the master has so many members in sync."""
        until(
            lambda: any(
                facts["epoch"] and facts["in_sync"] >= count for facts in map(self.facts, self.running())
            )
        )

    def settle(self) -> None:
        """Heals and starts everything, waits until all members are in sync, and ends the writing."""
        self.network.heal()
        for name in self.names:
            if name not in self._processes:
                self.start(name)
        self.wait_in_sync(len(self.names))
        for name in self.names:
            self.write(name, on=False)
        until(lambda: len({self.facts(name)["wrote"] for name in self.names}) == 1)

    def keep(self) -> None:
        """Copies the stores beside the members' disks, which are not there any more when this has ended."""
        for name in self.names:
            shutil.copytree(self.folder / name, self.folder / f"{name}-kept")

    def check(self) -> list[str]:
        """Settles the fleet, ends its processes, and gives the checker's faults."""
        self.settle()
        for name in self.names:
            self.kill(name)
        logs, read, raw = {}, {}, {}
        for name in self.names:
            with cystore.open(self.folder / name, services="none") as store:
                logs[name] = list(map(_stored, store.scan()))
                read[name] = [
                    _stored(message)
                    for topic, queues in store.topics().items()
                    for queue_id in queues
                    for message in every(store, topic, queue_id, 0)
                ]
                raw[name] = log_bytes(store.path, 0, store.stats()["wrote"])
        seen = [one for name in self.names for one in read_seen(self.folder / f"{name}.journal.seen")]
        return check(self.acknowledged(), logs, read, raw, seen)


def _stored(message: cystore.Message) -> Stored:
    body = bytes(message.body).rstrip(b" ").decode()
    return Stored(message.queue_id, message.queue_offset, message.physical_offset, body)
