"""The head of the control block, at the same places in every layout.

It lets a process recognise and name another version, and ask it to leave: `handover` is the only word that a process
may set in a block of another version. A block from before layout 2 has zeros instead of its release.
"""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.control import FINGERPRINT
from cystore.engine.inspect.control_words import FIRST_LAYOUT
from cystore.engine.log.allocate import CONTROL_NAME
from cystore.layout import CONTROL_FIELDS, CONTROL_MAGIC, LAYOUT_VERSION, RELEASE
from cystore.system import files, platform
from cystore.system.ranges import file_ranges
from cystore.system.store_lock import LOCK_NAME

HEAD_BYTES = 192
PROCESSES_NAMED = 12  # in an error
_AT = {field.name: at for field, at in CONTROL_FIELDS}


class ControlHead(NamedTuple):
    """The facts that a control block contains about the version that made it."""

    fingerprint: int
    layout_version: int  # 0 if the block does not contain it
    release: str
    handover: bool

    @property
    def can_be_followed(self) -> bool:
        """Whether a reader can follow the files of the processes that are attached to the block
        (cystore/attachment/other_layout.py)."""
        return self.layout_version >= FIRST_LAYOUT

    @property
    def is_ours(self) -> bool:
        """Whether this process can attach to the block."""
        return self.fingerprint == FINGERPRINT

    def __str__(self) -> str:
        if not self.release:
            return f"an older cystore, layout {self.fingerprint:016x}"
        return f"cystore {self.release}, layout {self.layout_version} ({self.fingerprint:016x})"


OURS = ControlHead(FINGERPRINT, LAYOUT_VERSION, RELEASE, handover=False)


def read_head(root: Path) -> ControlHead | None:
    """The head of a store's control block; None if there is none, or only foreign bytes."""
    data = files.read_if_there(root / CONTROL_NAME, first=HEAD_BYTES)
    if data is None or len(data) < HEAD_BYTES or _number(data, "magic", "Q") != CONTROL_MAGIC:
        return None
    text = data[_AT["release"] : HEAD_BYTES].split(b"\0")[0]
    return ControlHead(
        _number(data, "fingerprint", "Q"),
        _number(data, "layout_version", "I"),
        text.decode("ascii", "backslashreplace"),
        _number(data, "handover", "I") != 0,
    )


def ask_to_leave(root: Path, asked: bool = True) -> None:
    """Sets the word that attached processes of any version look at, or clears it."""
    path = root / CONTROL_NAME
    file_ranges.write_at(path, [(_AT["handover"], struct.pack("=I", asked))])


def attached_processes(root: Path) -> list[tuple[int, str]]:
    """(pid, command) of each process that has the store open. This process sees only its own PID namespace and, unless
    it runs as root, only processes of its own user."""
    return platform.processes_with(root / LOCK_NAME)


def another_version(root: Path, head: ControlHead) -> str:
    """The error text for a process that cannot attach beside those of another layout."""
    found = attached_processes(root)
    processes = (
        "; ".join(f"{pid} {command}" for pid, command in found[:PROCESSES_NAMED])
        or "this process cannot see them"
    )
    more = f" and {len(found) - PROCESSES_NAMED} more" if len(found) > PROCESSES_NAMED else ""
    return (
        f"the store is in use by another version: attached is {head}, this is {OURS}. Upgrade or end the "
        "attached processes "
        f"(`cystore handover {shlex.quote(str(root))}` asks them to leave). Attached: {processes}{more}"
    )


def _number(data: bytes, name: str, kind: str) -> int:
    (value,) = struct.unpack_from(f"={kind}", data, _AT[name])
    return int(value)
