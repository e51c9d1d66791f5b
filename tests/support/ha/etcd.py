"""A real etcd for tests: one process with its own folder and ports."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.ha.ha_pair import free_port, until

ETCD = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(ETCD is None, reason="etcd is missing: apt-get install etcd-server")


class EtcdServer:
    """A context manager. `host` is the address that it listens on. `others` are the members of its cluster, which is
    complete before any of them starts."""

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        others: Sequence[EtcdServer] | None = None,
        name: str = "one",
    ) -> None:
        self._folder, self.host, self.name = folder, host, name
        self._cluster = (self,) if others is None else others
        self.port, peer_port = free_port(), free_port()
        self.url, self.peer_url = f"http://{host}:{self.port}", f"http://127.0.0.1:{peer_port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.begin()
        until(self.is_healthy)

    def begin(self) -> None:
        """As `start`, and does not wait for it."""
        assert ETCD is not None
        clients = self.url if self.host == "127.0.0.1" else f"{self.url},http://127.0.0.1:{self.port}"
        cluster = ",".join(f"{one.name}={one.peer_url}" for one in self._cluster)
        self._process = subprocess.Popen(
            [ETCD, "--name", self.name, "--data-dir", str(self._folder),
             "--listen-client-urls", clients,
             "--advertise-client-urls", self.url,
             "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
             "--initial-cluster", cluster, "--log-level", "error", "--unsafe-no-fsync"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class EtcdCluster:
    """Some etcd servers that are one; a context manager. What is done is done to all of them, or to the one that is
    named by its number."""

    def __init__(self, folder: Path, host: str, count: int) -> None:
        self._members: list[EtcdServer] = []
        for number in range(count):
            name = f"e{number}"
            self._members.append(EtcdServer(folder / name, host, self._members, name))
        self.url = ",".join(one.url for one in self._members)

    def _chosen(self, number: int | None) -> list[EtcdServer]:
        return self._members if number is None else [self._members[number]]

    def __len__(self) -> int:
        return len(self._members)

    def start(self, number: int | None = None) -> None:
        for one in self._chosen(number):
            one.begin()
        for one in self._chosen(number):
            until(one.is_healthy)

    def stop(self, number: int | None = None) -> None:
        """SIGSTOP."""
        for one in self._chosen(number):
            one.stop()

    def go_on(self, number: int | None = None) -> None:
        """SIGCONT."""
        for one in self._chosen(number):
            one.go_on()

    def kill(self, number: int | None = None) -> None:
        for one in self._chosen(number):
            one.kill()

    def __enter__(self) -> EtcdCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
