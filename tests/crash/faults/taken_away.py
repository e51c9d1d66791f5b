"""Taken away: `lock` or `control` is deleted, replaced or overwritten while processes are attached.

Who comes is refused, for he could not know of those who are there; they go on, or (the block that they share was
overwritten) notice it and write nothing more. When all are gone, the next to open finds what was acknowledged.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import cystore
from cystore.layout import CONTROL_BYTES, CONTROL_FIELDS, CONTROL_LOCKS_AT, LOCK_NAMES, TYPE_BYTES
from tests.crash.matrix import Fault, Run
from tests.support.processes.fork_server import ForkServer, environment
from tests.support.processes.writer_group import WriterGroup, check_reopened
from tests.support.small_stores import SETTINGS, open_small

WRITERS = 3
TRIES = 1000


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def replace(path: Path, rng: random.Random) -> None:
    other = path.with_name(path.name + ".other")
    other.write_bytes(rng.choice([b"", b"x" * 100, bytes(100_000), rng.randbytes(100_000)]))
    os.replace(other, path)


def overwrite(path: Path, rng: random.Random, length: int = 100, spared: range = range(0)) -> None:
    """In place; never shorter, for that would end every process that has it mapped. The bytes `spared` stay."""
    data = rng.choice([bytes(length), rng.randbytes(length)])
    with open(path, "r+b") as file:
        file.write(data[: spared.start])
        file.seek(spared.stop)
        file.write(data[spared.stop :])


def overwrite_control(
    path: Path,
    rng: random.Random,
    fork_server: ForkServer,
    writer_group: WriterGroup,
    store: cystore.MessageStore,
) -> None:
    """What all share but the locks, while everybody works; or the locks too, while nobody is inside of one or waits:
    what the C library does to a process over a broken mutex is not ours."""
    if rng.random() < 0.5:
        (lock_at,) = (at for field, at in CONTROL_FIELDS if field.name == "append_lock")
        overwrite(path, rng, CONTROL_LOCKS_AT, range(lock_at, lock_at + TYPE_BYTES["packed_mutex"]))
        return
    control = store._attached().control
    for _ in range(TRIES):
        fork_server.stop(*writer_group.members)
        nobody = not any(control.owner(name) for name in LOCK_NAMES)
        if nobody:
            overwrite(path, rng, CONTROL_BYTES)
        for pid in writer_group.members:
            fork_server.go_on(pid)
        if nobody:
            return
        fork_server.news(1)
    raise TimeoutError(f"somebody was inside a lock {TRIES} times")


def run_lock(run: Run) -> None:
    with ForkServer(environment()) as fork_server:
        fork_server.ask(
            "setattr(__import__('importlib').import_module('cystore.system.store_lock'), '_DIRECTORY_WAIT_S', 0.0)"
        )
        for case in run.cases():
            harm = (delete, replace, overwrite)[case.number % 3]
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                path = folder / "store"
                case.begin(path, SETTINGS)
                writer_group = WriterGroup(fork_server, path, case.rng, WRITERS)
                writer_group.goes_on()
                harm(path / "lock", case.rng)
                for settings in ({}, {"exclusive": True}, {}):
                    met = fork_server.knock(path, **settings)
                    if harm is overwrite and not settings:
                        assert met == "opened", met  # what is in the file matters to nobody
                    else:
                        assert met.startswith("StoreLockedError"), met
                writer_group.goes_on()
                writer_group.lose_one()
                writer_group.goes_on()
                writer_group.end()
                run.tally(acknowledged=check_reopened(path, fork_server), **{harm.__name__: 1})


def run_control(run: Run) -> None:
    with ForkServer(environment()) as fork_server:
        for case in run.cases():
            harm = (delete, replace, overwrite)[case.number % 3]
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                path = folder / "store"
                case.begin(path, SETTINGS)
                life = "live_until_overwritten" if harm is overwrite else "live"
                with open_small(path) as observer:
                    writer_group = WriterGroup(fork_server, path, case.rng, WRITERS, life=life)
                    writer_group.goes_on()
                    if harm is overwrite:
                        overwrite_control(path / "control", case.rng, fork_server, writer_group, observer)
                    else:
                        harm(path / "control", case.rng)
                    met = fork_server.knock(path)
                    assert met.startswith(("StoreLockedError", "StoreFormatError")) and "control" in met, met
                    if harm is overwrite:
                        assert writer_group.ended() == [0] * WRITERS
                        _refused(observer)
                    else:
                        writer_group.goes_on()
                        writer_group.lose_one()
                        writer_group.goes_on()
                        observer.put("shared", b"goes on", flush="sync")
                        writer_group.end()
                run.tally(acknowledged=check_reopened(path, fork_server), **{harm.__name__: 1})


def _refused(store: cystore.MessageStore) -> None:
    for use in (lambda: store.put("shared", b""), lambda: store.get("shared", 0, 0), store.flush):
        with pytest.raises(cystore.StoreFormatError, match="overwritten"):
            use()


LOCK = Fault("lock", "`lock` is deleted, replaced or overwritten under live processes", 50, 6, run_lock)
CONTROL = Fault(
    "control", "`control` is deleted, replaced or overwritten under live processes", 50, 6, run_control
)
