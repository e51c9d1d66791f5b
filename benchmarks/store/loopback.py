"""A master and its slave on loopback, as the benchmarks of replication use them: the slave is a process of its own.

The space of their logs is reserved when they begin. RocketMQ reserves none, so a full disk ends it with a signal.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cystore
from cystore.config import INT_MAX
from cystore.engine.inspect.control_words import read_words

BODY_BYTES = 1024
RECORD_BYTES = BODY_BYTES + 91 + 10 + 64  # rounded up
BODY = b"0123456789abcdef" * (BODY_BYTES // 16)
KEYS = [(f"key-{number}",) for number in range(1024)]
LOOK_S = 0.0002
MIB = 1 << 20
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out own.pem"
)
FOLLOW = """
import sys, cystore
with cystore.open(sys.argv[1], services="all", broker_role="slave", ha_master_address=sys.argv[2],
                  mapped_file_size_commit_log_bytes=int(sys.argv[3]), allocate_ahead_bytes=int(sys.argv[3]),
                  ha_tls_ca_file=sys.argv[4]):
    sys.stdin.read()
"""


class Loopback:
    """An open master, and its slave after `follow`."""

    def __init__(self, folder: Path, port: int, master: cystore.MessageStore, trusted: str) -> None:
        self._folder, self._port, self._trusted = folder, port, trusted
        self.master = master
        self.control = master._attached().control
        self.slave: subprocess.Popen[bytes] | None = None

    def follow(self) -> None:
        """Starts the slave, and waits until it reports that it has something."""
        name = f"localhost:{self._port}"
        size = self.master._attached().config.mapped_file_size_commit_log_bytes
        command = [sys.executable, "-c", FOLLOW, str(self._folder / "slave"), name, str(size), self._trusted]
        self.slave = subprocess.Popen(command, stdin=subprocess.PIPE)
        while not self.control.replicas:
            time.sleep(LOOK_S)

    def reach(self, position: int) -> int:
        """The end of the slave's log by its last report, when it is at least `position`."""
        while self.control.replicated < position:
            time.sleep(LOOK_S)
        return int(self.control.replicated)

    def settle(self) -> None:
        """Waits until the slave has all, and both have dispatched it."""
        wrote = self.control.wrote
        if self.slave is not None:
            self.reach(wrote)
            while (words := read_words(self._folder / "slave")) is None or words.dispatched < wrote:
                time.sleep(LOOK_S)
        while self.control.dispatched < wrote:
            time.sleep(LOOK_S)

    def make_pages(self, bytes_: int) -> None:
        """Brings the pages of the next appends into memory, which the service would do while they are made."""
        while self.master._attached().allocator.populate_ahead(bytes_):
            pass


@contextmanager
def loopback(folder: Path, file_bytes: int, **settings: Any) -> Iterator[Loopback]:
    """A master whose log has files of this length, and are there when it begins."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    file_bytes = max(64 * MIB, -(-file_bytes // MIB) * MIB)
    with cystore.open(
        folder / "master",
        services="all",
        ha_listen_port=port,
        ha_allow_plain=True,
        mapped_file_size_commit_log_bytes=file_bytes,
        allocate_ahead_bytes=file_bytes,
        **settings,
    ) as master:
        pair = Loopback(folder, port, master, settings.get("ha_tls_certificate_file", ""))
        try:
            yield pair
        finally:
            if pair.slave is not None:
                pair.slave.communicate(timeout=60)


def most_puts(rounds: int) -> int:
    """How many puts each round may have, so that one log file holds so many rounds."""
    return INT_MAX // MIB * MIB // (rounds * RECORD_BYTES)


def puts(store: cystore.MessageStore, count: int) -> float:
    """Seconds of so many puts of one thread, as fast as they go."""
    put, begun = store.put, time.perf_counter()
    for number in range(count):
        put("BenchTopic", BODY, keys=KEYS[number % 1024], tags="TagA")
    return time.perf_counter() - begun


def certificate(folder: Path) -> dict[str, str]:
    """A new one, as settings of a master."""
    subprocess.run(
        [*CERTIFICATE.split(), "-addext", "subjectAltName=DNS:localhost"],
        check=True,
        cwd=folder,
        capture_output=True,
    )
    return {
        "ha_tls_certificate_file": str(folder / "own.pem"),
        "ha_tls_key_file": str(folder / "key.pem"),
    }
