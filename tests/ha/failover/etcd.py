"""A real etcd for tests: one process with its own folder and ports."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

import pytest

from tests.ha.pair import free_port, until

ETCD = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(ETCD is None, reason="etcd is missing: apt-get install etcd-server")


class EtcdServer:
    """A context manager. `host` is the address that it listens on, `through` a command that starts it somewhere
    else."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", *, through: tuple[str, ...] = ()) -> None:
        self._folder, self.host, self._through = folder, host, through
        self.port, self._peer_port = free_port(), free_port()
        self.url = f"http://{host}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert ETCD is not None
        clients = self.url if self.host == "127.0.0.1" else f"{self.url},http://127.0.0.1:{self.port}"
        peers = f"http://127.0.0.1:{self._peer_port}"
        self._process = subprocess.Popen(
            [*self._through, ETCD, "--name", "one", "--data-dir", str(self._folder),
             "--listen-client-urls", clients,
             "--advertise-client-urls", self.url,
             "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
             "--initial-cluster", f"one={peers}", "--log-level", "error", "--unsafe-no-fsync"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(self._is_healthy)

    def _is_healthy(self) -> bool:
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
