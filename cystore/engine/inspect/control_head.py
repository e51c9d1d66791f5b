"""The head of the control block, at the same places in every layout.

It lets a process recognise and name another version, and ask it to leave: `handover` is the only word that a process
may set in a block of another version. A block from before layout 2 has zeros instead of its release.

The word is 0, or a request. An earlier release takes each request for one to everybody.

| word | for which processes | ends |
|---|---|---|
| ASKED_EVERYBODY | all, also those that attach later | when it is cleared |
| with the bit ASKED_UNTIL_CANCELLED | those that are attached already | when it is cleared |
| any other number | those that are attached already | at that second of CLOCK_BOOTTIME |

Each request ends when no process is attached: the next one makes the block anew.
"""

from __future__ import annotations

import math
import shlex
import struct
from pathlib import Path
from typing import NamedTuple

from cystore import clock
from cystore._native.memory.control import ASKED_EVERYBODY, ASKED_UNTIL_CANCELLED, FINGERPRINT
from cystore.engine.inspect.control_words import FIRST_LAYOUT
from cystore.engine.log.allocate import CONTROL_NAME
from cystore.layout import (
    CONTROL_FIELDS,
    CONTROL_MAGIC,
    CONTROL_PROCESSES_AT,
    LAYOUT_VERSION,
    PROCESS_SLOT_BYTES,
    PROCESS_SLOTS,
    RELEASE,
)
from cystore.system import files, platform
from cystore.system.ranges import file_ranges
from cystore.system.store_lock import LOCK_NAME, held_slots

HEAD_BYTES = 192
PROCESSES_NAMED = 12  # in an error
SEEN_S = 2.0  # a worker looks once a second
_SLOT = struct.Struct("=IIQ")
_AT = {field.name: at for field, at in CONTROL_FIELDS}


class ControlHead(NamedTuple):
    """The facts that a control block contains about the version that made it."""

    fingerprint: int
    layout_version: int  # 0 if the block does not contain it
    release: str
    request: int  # the word `handover`

    @property
    def handover(self) -> bool:
        """Whether a request stands: attached processes are asked to leave."""
        word = self.request
        return word == ASKED_EVERYBODY or bool(word & ASKED_UNTIL_CANCELLED) or self.left_s > 0

    @property
    def left_s(self) -> float:
        """The time until the request ends by itself; 0 if it is over, or has no end."""
        return max(self.request - clock.boottime_ms() / 1000, 0.0) if self._ends else 0.0

    @property
    def _ends(self) -> bool:
        return self.request > ASKED_EVERYBODY and not self.request & ASKED_UNTIL_CANCELLED

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


OURS = ControlHead(FINGERPRINT, LAYOUT_VERSION, RELEASE, request=0)


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
        _number(data, "handover", "I"),
    )


def request_until(wait_s: float | None) -> int:
    """A request to the processes that are attached now, for a time, but long enough for each to see it; None: until it
    is cleared."""
    now_s = clock.boottime_ms() // 1000
    if wait_s is None:
        return now_s | ASKED_UNTIL_CANCELLED
    return now_s + 1 + math.ceil(max(wait_s, SEEN_S))


def ask_to_leave(root: Path, asked: bool = True, request: int = ASKED_EVERYBODY) -> None:
    """Sets the word that attached processes of any version look at, or clears it."""
    path = root / CONTROL_NAME
    file_ranges.write_at(path, [(_AT["handover"], struct.pack("=I", request if asked else 0))])


class AttachedProcess(NamedTuple):
    """A process that has the store open. Without `pid_namespace`, `pid` is its id here; otherwise this process cannot
    see it, and `pid` is its id in that namespace."""

    pid: int
    command: str
    pid_namespace: int | None = None

    @property
    def key(self) -> tuple[int, int | None]:
        return self.pid, self.pid_namespace


def attached_processes(root: Path) -> list[AttachedProcess]:
    """The processes that have the store open, but this one. Those that this process sees come first: of its own PID
    namespace and those below, and, unless it runs as root, of its own user. Then the writers in other namespaces, by
    their slots in the control block."""
    seen = [AttachedProcess(pid, command) for pid, command in platform.processes_with(root / LOCK_NAME)]
    return [*seen, *_elsewhere(root, {platform.own_ids_of(process.pid) for process in seen})]


def _elsewhere(root: Path, seen: set[tuple[int, int] | None]) -> list[AttachedProcess]:
    head = read_head(root)
    if head is None or not head.is_ours:
        return []
    size = PROCESS_SLOT_BYTES * PROCESS_SLOTS
    data = files.read_if_there(root / CONTROL_NAME, first=CONTROL_PROCESSES_AT + size)
    if data is None or len(data) < CONTROL_PROCESSES_AT + size:
        return []
    own, found = platform.pid_namespace(), []
    for slot, (_, pid, namespace) in enumerate(_SLOT.iter_unpack(data[CONTROL_PROCESSES_AT:])):
        if pid and namespace != own and (pid, namespace) not in seen:
            found.append((slot, AttachedProcess(pid, f"in PID namespace {namespace}", namespace)))
    held = held_slots(root, [slot for slot, _ in found])
    return [process for slot, process in found if slot in held]


def another_version(root: Path, head: ControlHead) -> str:
    """The error text for a process that cannot attach beside those of another layout."""
    found = attached_processes(root)
    processes = (
        "; ".join(f"{process.pid} {process.command}" for process in found[:PROCESSES_NAMED])
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
