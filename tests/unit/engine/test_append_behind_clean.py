"""Goal: a put continues when a cleaner takes away the segment that it is about to ask for. Method: the policy is
asked for a position that was cleaned meanwhile; seen as an AssertionError out of `put` beside cleaners with a
retention of 0 h."""

from __future__ import annotations

from cystore.engine.log.append_policy import AppendPolicy
from tests.support.cleaning import filled
from tests.support.small_stores import open_small


def test_position_that_was_cleaned_leads_to_the_end_of_the_log(tmp_path):
    with open_small(tmp_path / "store", file_reserved_time_h=0) as store:
        filled(store)
        assert store.clean().segments > 0
        parts = store._attached()
        policy = AppendPolicy(
            parts.control, parts.commit_log, parts.allocator, parts.flusher, None, None, cystore_records=False
        )
        assert policy.segment_at(0).base == parts.commit_log.files.base_of(parts.control.wrote)
