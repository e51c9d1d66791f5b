"""What runs on a host of the fleet: a member of the group, and a writer that writes down what was acknowledged.

It opens its store again when it is asked to leave it. The journal is outside of the store; each line is written after
the put, so a line says what certainly happened. A kill costs at most the last line: then nobody was told.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import cystore

QUEUES = 3
SLICE_S = 0.02
READ_S, SEEN_OF = 0.05, 5
PAUSE = threading.Event()  # never set


class Node:
    """`name` is the member. The threads end with the process."""

    def __init__(self, name: str, path: str, journal: str, settings: dict[str, Any]) -> None:
        logging.basicConfig(filename=f"{journal}.log", format="%(asctime)s %(message)s", level=logging.INFO)
        logging.getLogger("urllib3").setLevel(logging.WARNING)
        self.name, self._path, self._settings = name, path, settings
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._writes = threading.Event()
        self._life, self._number = f"{name}.{os.getpid()}.{time.time_ns()}", 0
        self.store = cystore.open(path, **settings)
        self._seen = os.open(f"{journal}.seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for work in (self._reopen, self._write, self._read):
            threading.Thread(target=work, daemon=True).start()

    def _reopen(self) -> None:
        while True:
            PAUSE.wait(SLICE_S)
            if self.store.asked_to_leave():
                with self._lock:
                    self.store.close()
                    self.store = cystore.open(self._path, **self._settings)

    def write(self, on: bool) -> None:
        """Whether the writer writes."""
        self._writes.set() if on else self._writes.clear()

    def _write(self) -> None:
        while True:
            self._writes.wait()
            with self._lock:
                self._put()

    def _put(self) -> None:
        number, queue_id = self._number, self._number % QUEUES
        body = f"{self._life} {number}".encode()
        size = number * 37 % 900
        control = self.store._attached().control
        epoch = control.epoch
        try:
            put = self.store.put(
                "T", body + b" " * size, queue_id=queue_id, keys=(f"k{number}",), flush="replicated"
            )
        except cystore.StoreNotWritableError:
            PAUSE.wait(SLICE_S)
            return
        except (
            cystore.StoreTimeoutError,  # of the members, too
            cystore.StoreFullError,
            cystore.StoreIOError,  # the disk has lost its power
            cystore.FlushFailedError,
            cystore.NotDurableError,
        ):
            self._number += 1  # it may be there, and it may be cut
            PAUSE.wait(SLICE_S)
            return
        self._number += 1
        line = {
            "life": self._life,
            "number": number,
            "queue": queue_id,
            "offset": put.queue_offset,
            "at": put.physical_offset,
            "epoch": epoch,
            "ms": time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        }
        os.write(self._journal, json.dumps(line).encode() + b"\n")

    def _read(self) -> None:
        """Notes some records that a reader of this member saw, whatever its role: none of them may be taken back."""
        position = 0
        while True:
            PAUSE.wait(READ_S)
            with self._lock:
                end = self.store.wrote_position
                if position >= end:
                    continue
                lines = [
                    f"{message.physical_offset} {bytes(message.body).decode()}".rstrip(" ")
                    for message in self.store.scan(position, end)
                    if message.physical_offset // 64 % SEEN_OF == 0
                ]
                position = end
            os.write(self._seen, "".join(f"{line}\n" for line in lines).encode())

    def facts(self) -> dict[str, Any]:
        """Where this member stands."""
        with self._lock:
            control = self.store._attached().control
            return {
                "epoch": control.epoch,
                "in_sync": control.in_sync,
                "wrote": control.wrote,
                "replicated": control.replicated,
                "flushed": control.flushed,
            }

    def acknowledge_all(self) -> None:
        """A planted fault: no put of this master waits for a member."""
        parts = self.store._attached()
        parts.flusher.commits.enabled = False  # the kernel waits for the members by itself
        parts.appender.policy._replicated = lambda end, waited_ms: None


def read_seen(path: Path) -> list[tuple[int, str]]:
    """The places and bodies that a member's reader saw."""
    data = path.read_bytes() if path.exists() else b""
    split = (line.decode().partition(" ") for line in data.split(b"\n")[:-1])
    return [(int(at), body) for at, _, body in split]


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]
