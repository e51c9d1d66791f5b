"""Goal: a process that is killed inside of a put into light queues, or of its dispatch, leaves queues that agree: the
message is in all of them or in none, and no queue offset is given out twice (I2). Method: one process of the build with
failpoints is killed at each step, beside another one and alone; the next put and every queue are looked at."""

from __future__ import annotations

import pytest

from tests.crash.episodes.light_queues import PLACES, killed_at


@pytest.mark.sampled(8)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_i2_a_kill_at(in_memory, rng, build_environment, place, survivors):
    killed_at(place, rng, in_memory, build_environment("failpoints"), survivors=survivors)
