"""Goal: whatever bytes of records of RocketMQ's format change, whose checksum covers the body alone, every undamaged
acknowledged record is served at its own queue offset, and none is called damaged.
Method: lives of a store with puts into several queues and light queues. Records are damaged under live processes and
at rest, processes are killed, queue files deleted. At the end the store is opened, cleaned, rebuilt, verified and
opened again. A record whose place another, damaged record claims is left out: nothing tells which of them is right."""

from __future__ import annotations

import pytest

from tests.support.damage import sessions

pytestmark = pytest.mark.unsanitized  # about stores; the fuzz targets feed the kernels


@pytest.mark.sampled(3)
@pytest.mark.parametrize("faults", [0, 1, 2])
@pytest.mark.parametrize("seed", range(100))
def test_undamaged_records_are_served(seed, faults):
    sessions.run(seed, faults)


@pytest.mark.parametrize(("seed", "faults"), [(11078, 2), (5189, 3), (5248, 3), (30039, 3)])
def test_a_wrong_offset_in_a_light_queue_hides_no_other_record(seed, faults):
    """Seen: recovery believed it, and the queue's intact records behind it had no place."""
    sessions.run(seed, faults)
