"""The status of replication: the replicating process writes it into a file, for people and monitoring."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cystore import clock
from cystore.errors import StoreFullError, StoreIOError
from cystore.ha.lock import is_replicated
from cystore.system import checked_json, files
from cystore.value_class import value_class

PATH = ("config", "replication.json")
ROOM_BYTES = 16 << 10
NOBODY = "no process replicates"
OLD_MS = 10_000  # after that, the writing process has ended or stands still


@value_class(frozen=True)
class ReplicationStatus:
    """`listens`: HOST:PORT of a master that serves. `slaves`: name, reported end of the log (-1: none yet), whether the
    slave is a cystore. A slave has `master`, `connected` and `masters_end` (-1: not known). A member of a group with an
    elected master has `epoch`, `in_sync`, `state` and `problem`, and `confirmed`: no failover takes back the log below
    it. `wrote` is the end of a master's log at the moment of `slaves`."""

    listens: str = ""
    slaves: tuple[tuple[str, int, bool], ...] = ()
    master: str = ""
    connected: bool = False
    masters_end: int = -1
    at_ms: int = 0
    pid: int = 0
    epoch: int = 0
    in_sync: tuple[str, ...] = ()
    state: str = ""
    problem: str = ""
    confirmed: int = 0
    wrote: int = -1

    def with_facts(self, **facts: Any) -> ReplicationStatus:
        """A copy with other values."""
        return replace(self, **facts)

    @property
    def is_old(self) -> bool:
        """Whether the status was written more than OLD_MS ago, or in the future."""
        return not 0 <= clock.now_ms() - self.at_ms <= OLD_MS


def present_status(root: Path) -> ReplicationStatus:
    """The last written status, without peers and state if no process replicates now, or if it stands still."""
    last = read_status(root)
    if last.is_old or not is_replicated(root):
        return last.with_facts(
            listens="", slaves=(), connected=False, epoch=0, in_sync=(), state=NOBODY, problem=""
        )
    return last


def write_status(root: Path, status: ReplicationStatus) -> None:
    """Overwrites the file in place, and does not wait for the disk: the status has no use after a crash. On a disk that
    is full, or has become read-only, there may be no status; what replicates goes on."""
    whole = checked_json.render({**asdict(status), "at_ms": clock.now_ms(), "pid": os.getpid()})
    if len(whole) > ROOM_BYTES:
        return
    path = root.joinpath(*PATH)
    with contextlib.suppress(StoreFullError, StoreIOError):
        files.make_directory(path.parent)
        with files.opened(path, os.O_RDWR | os.O_CREAT) as fd, files.translated(path):
            os.pwrite(fd, whole.ljust(ROOM_BYTES), 0)


def read_status(root: Path) -> ReplicationStatus:
    """The last written status; an empty one if the file cannot be read, for example while a process writes it."""
    data = files.read_if_there(root.joinpath(*PATH)) or b""
    try:
        fields = checked_json.parse(data)
        fields["slaves"] = tuple((str(name), int(end), bool(ours)) for name, end, ours in fields["slaves"])
        fields["in_sync"] = tuple(str(name) for name in fields.get("in_sync", ()))
        return ReplicationStatus(**fields)
    except (ValueError, KeyError, TypeError):
        return ReplicationStatus()
