"""What forked writers do until they are killed, and how they tell what was acknowledged to them. See fork server.py."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import struct
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import cystore
from tests.support.checks import committed

OFD_SETLK = 37  # fcntl's command
BATCH = 3
MANY_QUEUES = 300  # more than the first step of queue slots


class Writer:
    """An attached process that writes each acknowledged put as a line to `out`: topic, queue id, queue offset, key."""

    def __init__(self, out: int, path: str, seed: int, settings: dict[str, Any]) -> None:
        self._out, self._name = out, str(seed)
        self.rng = random.Random(seed)
        self.store = cystore.open(Path(path), **settings)
        self._count = 0

    def acknowledge(self, topic: str, queue_id: int, put: cystore.PutResult, key: str) -> None:
        os.write(self._out, f"{topic} {queue_id} {put.queue_offset} {key}\n".encode())

    def _key(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"

    def become(self, name: str) -> None:
        """Another one from now on: a forked child."""
        self._name = name
        self.rng = random.Random(name)

    def put(self, topic: str, queue_id: int = 0, flush: str = "async") -> str:
        key = self._key()
        body = b"x" * self.rng.randrange(300)
        self.acknowledge(
            topic, queue_id, self.store.put(topic, body, queue_id=queue_id, keys=(key,), flush=flush), key
        )
        return key

    def put_many(self, topic: str, flush: str = "async") -> None:
        """The tag names the batch: a kill leaves all of it or none where it shares a segment."""
        body, tag = b"b" * self.rng.randrange(200), f"{self._name}.{self._count}"
        batch = [
            cystore.Message(topic=topic, body=body, queue_id=n, keys=(self._key(),), tags=tag)
            for n in range(BATCH)
        ]
        for message, put in zip(batch, self.store.put_many(batch, flush=flush), strict=True):
            self.acknowledge(topic, message.queue_id, put, message.keys[0])

    def anything(self) -> None:
        """One step of every kind there is, by chance."""
        what, rng = self.rng.random(), self.rng
        topic = "shared" if rng.random() < 0.8 else f"T{rng.randrange(20)}"
        if what < 0.65:
            self.put(topic, rng.randrange(2))
        elif what < 0.75:
            self.put_many(topic)
        elif what < 0.80:
            self.put(topic, flush="sync")
        elif what < 0.82:
            self.put_many(topic, flush="sync")
        elif what < 0.92:
            self.store.dispatch()
        elif what < 0.95:
            self.store.flush()
        else:
            key = self.put(topic)
            committed(self.store)
            assert [m.keys for m in self.store.query(topic, key)] == [(key,)]


def live(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    """Queues of its own, then whatever there is to do."""
    writer = Writer(out, path, seed, settings)
    writer.put_many(f"own{seed}")
    for _ in range(steps):
        writer.anything()


def live_and_leave(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    writer = Writer(out, path, seed, settings)
    writer.put_many(f"own{seed}")
    for _ in range(min(steps, writer.rng.randrange(30))):
        writer.anything()
    writer.store.close()


def dispatch(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    """Goes on where somebody died."""
    writer = Writer(out, path, seed, settings)
    writer.store.dispatch()


def many_queues(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    writer = Writer(out, path, seed, settings)
    for queue_id in range(MANY_QUEUES):
        writer.put(f"many{seed}", queue_id)


def hold(out: int, path: str, seed: int, settings: dict[str, Any], steps: int, lock: str) -> None:
    """Stops itself with a lock in its hands, and gives it back when it may go on."""
    writer = Writer(out, path, seed, settings)
    with writer.store._attached().control.held(lock):
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops at once
    for _ in range(min(steps, 20)):
        writer.anything()


def live_until_overwritten(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    """Somebody overwrites the control block: then every call is refused, and leaving is possible."""
    writer = Writer(out, path, seed, settings)

    def live() -> None:
        for _ in range(steps):
            writer.anything()

    with pytest.raises(cystore.StoreFormatError, match="overwritten"):
        live()
    writer.store.close()


def live_synced(out: int, path: str, seed: int, settings: dict[str, Any], steps: int) -> None:
    """Only durable puts, until the store takes no more; then stays."""
    writer = Writer(out, path, seed, settings)
    for _ in range(steps):
        try:
            writer.put("shared", flush="sync")
        except (cystore.FlushFailedError, cystore.StoreNotWritableError):
            signal.pause()
        except cystore.StoreFormatError as error:
            if "removed the file while it was being made" in str(error):
                continue  # the next put makes it again
            if "segment to write to is missing" not in str(error):
                raise
            signal.pause()


# A forked child's actions on inherited objects. `descriptors` are those of its parent's locks.


def _close(writer: Writer, descriptors: list[int]) -> None:
    writer.store.close()


def _close_descriptors(writer: Writer, descriptors: list[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):  # closed by the library before
            os.close(fd)


def _unlock(writer: Writer, descriptors: list[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_UNLCK, os.SEEK_SET, 0, 2, 0))


def _unlock_while_attached(writer: Writer, descriptors: list[int]) -> None:
    """Attached by itself by then, perhaps with descriptors of the same numbers: it can only rob itself."""
    writer.put("shared")
    _unlock(writer, descriptors)


def _use(writer: Writer, descriptors: list[int]) -> None:
    for _ in range(10):
        writer.anything()


def _use_and_close(writer: Writer, descriptors: list[int]) -> None:
    _use(writer, descriptors)
    writer.store.close()


def _be_killed(writer: Writer, descriptors: list[int]) -> None:
    _use(writer, descriptors)
    os.kill(os.getpid(), signal.SIGKILL)


def _have_children(writer: Writer, descriptors: list[int]) -> None:
    pid = os.fork()
    if pid == 0:
        _child(writer, _use_and_close, descriptors)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    _use(writer, descriptors)


CHILDREN: dict[str, Callable[[Writer, list[int]], None]] = {
    "close": _close,
    "close descriptors": _close_descriptors,
    "unlock": _unlock,
    "unlock while attached": _unlock_while_attached,
    "use": _use,
    "use and close": _use_and_close,
    "be killed": _be_killed,
    "have children": _have_children,
}


def _child(writer: Writer, do: Callable[[Writer, list[int]], None], descriptors: list[int]) -> NoReturn:
    code = 1
    try:
        writer.become(f"child{os.getpid()}")
        do(writer, descriptors)
        code = 0
    except BaseException:  # noqa: BLE001 - told by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def live_with_children(
    out: int, path: str, seed: int, settings: dict[str, Any], steps: int, does: list[str]
) -> None:
    """Has children, some at once, and lives on."""
    writer = Writer(out, path, seed, settings)
    locks = writer.store._attached().locks
    assert locks is not None
    descriptors = [locks._fd, locks._directory]
    children = {}
    for name in does:
        pid = os.fork()
        if pid == 0:
            _child(writer, CHILDREN[name], descriptors)
        children[pid] = name
        writer.store.put("shared", b"while they live")
    for pid, name in children.items():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == (-signal.SIGKILL if name == "be killed" else 0), (name, code)
    for _ in range(steps):
        writer.anything()


LIVES: dict[str, Callable[..., None]] = {
    life.__name__: life
    for life in (
        live,
        live_and_leave,
        dispatch,
        many_queues,
        hold,
        live_until_overwritten,
        live_synced,
        live_with_children,
    )
}
