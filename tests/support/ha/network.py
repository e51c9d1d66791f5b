"""Hosts on one machine: each is a network namespace with an address, and the way between any two of them can be cut, in
one direction too.

A way is cut by a false hardware address of the neighbour: packets leave, and nobody takes them. Nobody gets an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

import pytest

NOWHERE = "02:00:00:00:00:01"
NEW_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "slave")


def _has_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    probe = f"cyprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False).returncode == 0


def _plain() -> dict[str, str]:
    """The environment without libraries that are for an interpreter, for example the address sanitizer's."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


needs_namespaces = pytest.mark.skipif(
    not _has_namespaces(), reason="no network namespaces: needs root, ip of iproute2, and unshare"
)


class Network:
    """A bridge and hosts on it; a context manager. `names` of hosts have addresses 2, 3, ... of a network of this
    process's own; 1 is this machine."""

    def __init__(self, names: tuple[str, ...]) -> None:
        number = os.getpid() % 60000
        self._tag = f"{number:x}"
        self._bridge = f"cyb{self._tag}"
        self._net = f"10.{64 + number // 250 % 190}.{number % 250}"
        self._names = names

    @property
    def gateway(self) -> str:
        """This machine's address."""
        return f"{self._net}.1"

    def address(self, name: str) -> str:
        return f"{self._net}.{2 + self._names.index(name)}"

    def through(self, name: str) -> tuple[str, ...]:
        """The command that starts another one on the host, as the first process of a PID namespace."""
        return ("ip", "netns", "exec", self._space(name), *NEW_PIDS)

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` ("" is this machine) is lost."""
        to = self.address(target) if target else self.gateway
        self._ip(
            "-n",
            self._space(source),
            "neigh",
            "replace",
            to,
            "lladdr",
            NOWHERE,
            "dev",
            "eth0",
            "nud",
            "permanent",
        )

    def heal(self) -> None:
        """No way is cut any more."""
        for name in self._names:
            self._ip("-n", self._space(name), "neigh", "flush", "dev", "eth0", "nud", "permanent")

    def slow(self, name: str, kbit: int) -> None:
        """So many kbit of what is sent to the host come in a second; 0 ends that."""
        change = ["replace"] if kbit else ["del"]
        rate = ["tbf", "rate", f"{kbit}kbit", "burst", "4kb", "latency", "400ms"] if kbit else []
        device = f"cyv{self._tag}{self._names.index(name)}"
        command = ["tc", "qdisc", *change, "dev", device, "root", *rate]
        subprocess.run(command, check=True, capture_output=True, env=_plain())

    def __enter__(self) -> Network:
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
            for number, name in enumerate(self._names):
                space, outside = self._space(name), f"cyv{self._tag}{number}"
                self._ip("netns", "add", space)
                self._ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
                self._ip("link", "set", outside, "master", self._bridge, "up")
                self._ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
                self._ip("-n", space, "link", "set", "eth0", "up")
                self._ip("-n", space, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for number, name in enumerate(self._names):
            # A namespace that goes takes its device away later.
            for what in (("link", "del", f"cyv{self._tag}{number}"), ("netns", "del", self._space(name))):
                subprocess.run(["ip", *what], capture_output=True, check=False, env=_plain())
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False, env=_plain())

    def _space(self, name: str) -> str:
        return f"cy{self._tag}{name}"

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, env=_plain())
        if done.returncode:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
