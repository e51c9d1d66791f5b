"""JVM: RocketMQ opens a store that is in use, or has it open when others come.

Its JVM and we lock the same byte. But RocketMQ loads, and tidies files, before it looks at the lock: then a segment
that lost its name takes no more durable puts, and what was acknowledged as durable is there for the next to open.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import after_check
from tests.support.checks import check
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.rocketmq import Refused, RocketMQ, Unavailable, build
from tests.support.processes.fork_server import ForkServer, environment
from tests.support.processes.writer_group import WriterGroup, check_reopened

WRITERS = 2
PUTS = 400
AHEAD = {"allocate_ahead_bytes": specs.SMALL["mapedFileSizeCommitLog"], "services": "none"}
SETTINGS: dict[str, Any] = {**cystore_config({"config": specs.SMALL}), **AHEAD}


def obstacle() -> str:
    for tool in ("java", "javac", "mvn"):
        if not shutil.which(tool):
            return f"no {tool}"
    try:
        build()
    except (Unavailable, subprocess.TimeoutExpired) as reason:
        return str(reason).splitlines()[0]
    return ""


def run(run: Run) -> None:
    peer = RocketMQ(build())
    try:
        with ForkServer(environment()) as fork_server:
            for case in run.cases():
                with run.case(case), case.in_memory() as folder:
                    fork_server.begin()
                    if case.number % 2:
                        _jvm_first(run, case, fork_server, peer, folder / "store")
                    else:
                        _jvm_late(run, case, fork_server, peer, folder / "store")
    finally:
        peer.close()


def _jvm_late(run: Run, case: Case, fork_server: ForkServer, peer: RocketMQ, path: Path) -> None:
    """Its start is refused; nothing that was durable is lost, whatever its load removed: surely the segment ahead,
    when nobody writes meanwhile."""
    writer_group = WriterGroup(fork_server, path, case.rng, WRITERS, life="live_synced", settings=SETTINGS)
    writer_group.goes_on()
    still = case.rng.random() < 0.5
    with _closing(cystore.open(path, **SETTINGS)) as store:
        if still:
            parts = store._attached()
            parts.allocator.make_room(parts.control.allocated + 1)
            fork_server.stop(*writer_group.members)
        for _ in range(case.rng.randrange(1, 4)):
            with (
                pytest.raises(Refused, match=r"start refused: .*Lock failed"),
                peer.opened(path, specs.SMALL),
            ):
                pass
        if still:
            for pid in writer_group.members:
                fork_server.go_on(pid)
        refused = not _takes_puts(store, fork_server)
    assert writer_group.end() == [-signal.SIGKILL] * WRITERS
    run.tally(acknowledged=check_reopened(path, fork_server, SETTINGS), jvm_late=1, took_no_more_puts=refused)


@contextlib.contextmanager
def _closing(store: cystore.MessageStore) -> Iterator[cystore.MessageStore]:
    """Closes the store. Where RocketMQ's load removed a file under us, nobody can make durable what others appended
    to that file; close says so."""
    try:
        yield store
    finally:
        try:
            store.close()
        except cystore.NotDurableError as error:
            if "Stale file handle" not in str(error):
                raise


def _takes_puts(store: cystore.MessageStore, fork_server: ForkServer) -> bool:
    """Durable puts through more than a segment; False when one is refused."""
    for n in range(PUTS):
        key = f"observer.{n}"
        try:
            put = store.put("shared", bytes(100), keys=(key,), flush="sync")
        except (cystore.FlushFailedError, cystore.StoreNotWritableError, cystore.StoreFormatError):
            return False
        fork_server.acknowledged.append(["shared", "0", str(put.queue_offset), key])
    return True


def _jvm_first(run: Run, case: Case, fork_server: ForkServer, peer: RocketMQ, path: Path) -> None:
    """We are refused and change nothing; when it has closed the store, everything is there."""
    messages = specs.Writer(case.rng)
    with peer.opened(path, specs.SMALL) as there:
        count = len(there.put(list(messages.many(case.rng.randrange(1, 40)))))
        for settings in ({}, {"exclusive": True}, {"read_only": True}):
            assert fork_server.knock(path, **SETTINGS | settings).startswith("StoreLockedError")
        count += len(there.put(list(messages.many(20))))
    with cystore.open(path, **SETTINGS) as store:
        assert sum(1 for _ in store.scan()) == count
    writer_group = WriterGroup(fork_server, path, case.rng, WRITERS, settings=SETTINGS)
    writer_group.goes_on()
    writer_group.end()
    with cystore.open(path, **SETTINGS) as store:
        run.tally(acknowledged=check(store, fork_server.acknowledged), jvm_first=1)
    after_check(path, SETTINGS, fork_server.acknowledged)


FAULT = Fault(
    "jvm",
    "RocketMQ's JVM opens a store that is in use, or has it open when others come",
    50,
    2,
    run,
    obstacle,
)
