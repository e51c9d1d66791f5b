"""Stores to run commands on: written by the library, left by a killed process, damaged, not writable."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import cystore
from tests.support.cli.command import SMALL, Command
from tests.support.processes.forked_python import Python

TOPICS = ("alpha", "beta")


def messages(count: int, start: int = 0) -> list[cystore.Message]:
    """So many different messages, spread over two topics with two queues each."""
    return [
        cystore.Message(
            topic=TOPICS[number % 2],
            queue_id=number // 2 % 2,
            body=f"body {number} ".encode() * (1 + number % 7),
            keys=(f"key-{number}", f"group-{number % 10}"),
            tags=f"tag{number % 3}",
            properties={"number": str(number)},
            flag=number,
        )
        for number in range(start, start + count)
    ]


def write(path: Path, count: int, start: int = 0, **settings: object) -> list[cystore.PutResult]:
    """Puts messages into a store and closes it."""
    with cystore.open(path, **{**SMALL, **settings}) as store:
        return store.put_many(messages(count, start))


KILLED = """
import os, signal, sys
from tests.support.cli.stores import SMALL, messages
import cystore
store = cystore.open(sys.argv[1], **SMALL)
store.put_many(messages(int(sys.argv[2]), int(sys.argv[3])), flush="sync")
os.kill(os.getpid(), signal.SIGKILL)
"""


def write_and_crash(path: Path, count: int, start: int = 0) -> None:
    """The same from another process, which is killed with the store open; nothing of it was dispatched."""
    command = [sys.executable, "-c", KILLED, str(path), str(count), str(start)]
    with Python(command, env=Command(path.parent).environment) as writer:
        assert writer.wait(60) == -signal.SIGKILL


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Length, time and bytes of each file, and the time of each folder."""
    return {
        str(p.relative_to(path)): (
            p.stat().st_size,
            p.stat().st_mtime_ns,
            b"" if p.is_dir() else p.read_bytes(),
        )
        for p in [path, *path.rglob("*")]
    }


def damage(path: Path, physical_offset: int) -> None:
    """Turns a byte of the log around."""
    base = physical_offset - physical_offset % SMALL["mapped_file_size_commit_log_bytes"]
    fd = os.open(path / "commitlog" / f"{base:020d}", os.O_RDWR)
    try:
        byte = os.pread(fd, 1, physical_offset - base)
        os.pwrite(fd, bytes([byte[0] ^ 0xFF]), physical_offset - base)
    finally:
        os.close(fd)
