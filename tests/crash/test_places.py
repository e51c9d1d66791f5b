"""Goal: no failpoint is forgotten by the fault matrix. Method: the names in the sources beside those that the row `kill` uses."""

from __future__ import annotations

from tests.crash.places import PLACES, in_sources


def test_the_kill_row_uses_every_failpoint_of_the_sources():
    """But those of cleaning, which removes messages on purpose (test_clean_kill.py kills there), and of delivery, which needs messages
    that wait (test_deliver_kill.py), and of Spark's sink (test_sink_commit.py)."""
    elsewhere = ("clean.", "deliver.", "sink.")
    assert set(PLACES) == {name for name in in_sources() if not name.startswith(elsewhere)}
    assert len(PLACES) >= 40


def test_what_must_be_killed_before_is_a_place_too():
    assert {name for place in PLACES.values() for name in place.before} <= set(PLACES)
