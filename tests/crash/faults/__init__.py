"""The rows of the fault matrix, in the order in which they are run and shown."""

from tests.crash.faults import (
    bit_flips,
    clean_beside_flush,
    clock,
    damage,
    errors,
    forked,
    full_disk,
    jvm,
    kill,
    live_damage,
    lost_writes,
    namespace,
    page_order,
    power,
    resources,
    stop,
    taken_away,
)
from tests.crash.matrix import Fault

FAULTS: tuple[Fault, ...] = (
    kill.FAULT,
    *power.FAULTS,
    full_disk.FAULT,
    errors.FAULT,
    page_order.FAULT,
    bit_flips.FAULT,
    damage.FAULT,
    stop.FAULT,
    clock.FAULT,
    namespace.FAULT,
    taken_away.LOCK,
    taken_away.CONTROL,
    forked.FAULT,
    jvm.FAULT,
    lost_writes.FAULT,
    resources.DESCRIPTORS,
    resources.MEMORY,
    live_damage.FAULT,
    clean_beside_flush.FAULT,
)
