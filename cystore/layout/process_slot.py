"""The slot of an attached writer in the control block.

While the writer is attached it holds the lock on the slot's own byte of `lock`. The kernel gives that lock back when
the process ends, and shows it in every PID namespace. A slot is used again: its incarnation counts its users, so a lock
of an earlier user is never taken for one of the present user.
"""

from __future__ import annotations

from cystore.layout.shapes import Shared

PROCESS_SLOTS = 4096
PROCESS_SLOT_BITS = 12
INCARNATION_BITS = 20  # a lock names its owner in 32 bits
PROCESS_BYTES_AT = 4096  # the first slot's byte of `lock`

# Without `incarnation` and `pid_namespace` of their user's own values no lock names the slot: they are stored first.
PROCESS_SLOT_FIELDS: list[tuple[Shared, int]] = [
    (Shared("incarnation", "uint32_t", "attach", "counts the users of the slot, from 1 on"), 0),
    (
        Shared("pid", "uint32_t", "attach", "process id in its own PID namespace; 0: its last user has left"),
        4,
    ),
    (Shared("pid_namespace", "uint64_t", "attach", "inode of that namespace"), 8),
]
PROCESS_SLOT_BYTES = 16

assert 1 << PROCESS_SLOT_BITS == PROCESS_SLOTS
assert PROCESS_SLOT_BITS + INCARNATION_BITS == 32
