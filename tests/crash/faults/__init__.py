"""The rows of the fault matrix, in the order in which they are run and shown."""

from dataclasses import replace

from tests.crash.faults import (
    bit_flips,
    clean_beside_flush,
    clock,
    clock_retention,
    containers,
    damage,
    errors,
    forked,
    full_disk,
    full_disk_clean,
    full_disk_reopen,
    jvm,
    kill,
    live_damage,
    lost_writes,
    many,
    page_order,
    pieces,
    power,
    power_of_pieces,
    resources,
    signals,
    stop,
    taken_away,
)
from tests.crash.matrix import Fault
from tests.crash.shapes import FOLDERS, POOL, Shape

FAULTS: tuple[Fault, ...] = (
    kill.FAULT,
    *power.FAULTS,
    full_disk.FAULT,
    full_disk_clean.FAULT,
    full_disk_reopen.FAULT,
    errors.FAULT,
    page_order.FAULT,
    bit_flips.FAULT,
    damage.FAULT,
    stop.FAULT,
    clock.FAULT,
    clock_retention.FAULT,
    containers.FAULT,
    taken_away.LOCK,
    taken_away.CONTROL,
    forked.FAULT,
    jvm.FAULT,
    lost_writes.FAULT,
    power_of_pieces.TIMER,
    power_of_pieces.CLAIMS,
    signals.FAULT,
    resources.DESCRIPTORS,
    resources.MEMORY,
    live_damage.FAULT,
    clean_beside_flush.FAULT,
    many.MANY_QUEUES,
    many.MANY_SEGMENTS,
)


def _shaped(fault: Fault, shape: Shape, full: int, part: int = 1) -> Fault:
    """The same fault, made on stores of another shape."""
    how = f"{fault.how}; {shape.how}"
    return replace(fault, name=f"{fault.name}-{shape.name}", how=how, full=full, part=part, shape=shape)


# Not among them: rows that change images of a store's files (page-order, bit-flips, damage), which need a store in one
# folder and have no processes; `jvm`, whose store has RocketMQ's settings; `many-queues`, which are not of the log.
_MORE = (
    (kill.FAULT, 1_000),
    *((fault, 400) for fault in power.FAULTS),
    (lost_writes.FAULT, 300),
    (full_disk.FAULT, 40),
    (full_disk_clean.FAULT, 80),
    (errors.FAULT, 300),
    (stop.FAULT, 90),
    (clock.FAULT, 50),
    (clock_retention.FAULT, 40),
    (containers.FAULT, 240),
    (taken_away.LOCK, 12),
    (taken_away.CONTROL, 12),
    (forked.FAULT, 12),
    (signals.FAULT, 10_000),
    (resources.DESCRIPTORS, 600),
    (resources.MEMORY, 600),
    (live_damage.FAULT, 300),
    (clean_beside_flush.FAULT, 400),
    (many.MANY_SEGMENTS, 40),
)
PIECES = pieces.PIECES
SHAPED: tuple[Fault, ...] = tuple(
    _shaped(fault, shape, full) for shape in (FOLDERS, POOL) for fault, full in _MORE
)
