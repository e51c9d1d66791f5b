"""Goal: owners of claims may be killed anywhere: each message is settled, and none that was settled comes again.
Method: the episodes of the fault matrix at each place; a log outside of the store has every call and its answer. Then
the file of claims goes, and the log alone says what is settled."""

from __future__ import annotations

import pytest

from tests.crash.episodes.claims import PLACES, killed_at
from tests.support.processes.places import in_sources

OWN = {place for place in PLACES if place.startswith("claims.")}


def test_these_are_all_places():
    assert {name for name in in_sources() if name.startswith("claims.")} == OWN


@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=() if p in OWN else pytest.mark.slow) for p in PLACES]
)
def test_killed_at_a_place(in_memory, rng, build_environment, place, survivors):
    killed_at(place, rng, in_memory, build_environment("failpoints"), survivors=survivors)
