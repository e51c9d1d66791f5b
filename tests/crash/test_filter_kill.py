"""Goal: a process that is killed while it registers a filter leaves no bitmap that hides a message. Method: processes
of the build with failpoints, killed at each step beside a process that dispatches before and after; reads by bitmaps
are compared with the messages that match."""

from __future__ import annotations

import pytest

from tests.crash.episodes.filters import PLACES, killed_at


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_inside_of_a_registration_hides_no_message(tmp_path, rng, build_environment, place):
    killed_at(place, rng, tmp_path, build_environment("failpoints"))
