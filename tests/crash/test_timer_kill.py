"""Goal: a process may be killed anywhere while it puts, cancels, moves, delivers and carries messages with a time of
their own (I9): each that was not cancelled is delivered once, at its time. Method: the episodes of the fault matrix at
each place; a log outside of the store has every call and its answer."""

from __future__ import annotations

import pytest

from tests.crash.episodes.timer import AGAIN_PLACES, PLACES, again_killed_at, killed_at
from tests.support.processes.places import in_sources

OWN = {place for place in PLACES if place.startswith("withdraw.")}


def test_every_place_of_the_withdrawal_is_killed_at():
    assert {name for name in in_sources() if name.startswith("withdraw.")} == OWN


@pytest.mark.sampled(3)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=() if p in OWN else pytest.mark.slow) for p in PLACES]
)
def test_i9_a_kill_beside_the_timer(in_memory, rng, build_environment, place, survivors):
    killed_at(place, rng, in_memory, build_environment("failpoints"), survivors=survivors)


@pytest.mark.parametrize("survivors", [True, False], ids=["others live", "alone"])
@pytest.mark.parametrize(
    "place",
    [pytest.param(p, marks=() if p == "deliver.appended" else pytest.mark.slow) for p in AGAIN_PLACES],
)
def test_i9_a_kill_beside_a_message_that_comes_again(in_memory, rng, build_environment, place, survivors):
    again_killed_at(place, rng, in_memory, build_environment("failpoints"), survivors=survivors)
