"""Goal: what Celery tests of a result backend holds with ours. Method: Celery's own integration tests, unchanged,
with real workers and a Redis as the broker (tests/celery/integration): some about canvas here, all of them beside the
backend of Redis in the slow test."""

from __future__ import annotations

import pytest

from tests.celery.integration import __main__ as command
from tests.celery.integration.suite import all_tests, run

LIMIT_S = 600
CANVAS = """
test_link_error: test_link_error
test_chain: test_simple_chain test_chain_of_group_followed_by_empty_groups test_group_chord_group_chain
test_group: test_nested_group_group test_group_ending_a_chain_in_a_group_gets_its_own_id
test_group: test_task_replace_with_group_preserves_group_order
test_chord: test_group_chain test_chord_header_child_replaced_with_chain_first
test_chord: test_chord_error_in_nested_chain_does_not_crash
test_stamping_mechanism: test_stamps_remain_on_task_retry
"""
MORE_CANVAS = """
test_link_error: test_link_error test_link_error_eager test_link_error_using_signature test_link_error_callback_retries
test_chain: test_single_chain test_simple_chain test_chain_on_error test_chain_of_chain_with_a_single_task
test_chain: test_chain_inside_group_receives_arguments test_replace_chain_with_empty_chain test_nested_chain_group_last
test_chain: test_chain_of_group_followed_by_empty_groups test_chain_skips_empty_groups_before_chord_body
test_chain: test_group_results_in_chain test_groupresult_serialization test_group_result_not_has_cache
test_chain: test_group_chord_group_chain test_chain_of_a_chord_and_a_task_and_a_group
test_result_set: test_result_set_error
test_group: test_empty_group_result test_group_lone test_nested_group_group test_ready_with_exception
test_group: test_group_with_empty_chain_members test_group_child_replaced_with_chain_first
test_group: test_nested_group_chord_counting_simple test_nested_group_chord_body_chain
test_group: test_group_ending_a_chain_in_a_group_gets_its_own_id test_task_replace_with_group_preserves_group_order
test_chord: test_group_chain test_nested_group_chain test_chord_in_chain_with_args test_priority
test_chord: test_chord_header_child_replaced_with_chain_first test_chord_error_in_nested_chain_does_not_crash
test_xmap_xstarmap: test_starmap_keeps_frozen_id_and_link
test_signature_serialization: test_rebuild_nested_chain_chord test_rebuild_nested_group_group
test_stamping_mechanism: test_linking_stamped_sig test_stamps_remain_on_task_retry
"""


def canvas_tests(chosen: str) -> list[str]:
    lines = (line.partition(": ") for line in chosen.strip().splitlines())
    return [
        f"t/integration/test_canvas.py::{name}::{test}" for name, _, tests in lines for test in tests.split()
    ]


@pytest.mark.parametrize(
    "chosen", [CANVAS, pytest.param(MORE_CANVAS, marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_canvas_by_celerys_own_tests(chosen):
    wanted = canvas_tests(chosen)
    outcomes = run("cystore", wanted, shards=3, limit_s=LIMIT_S)
    assert outcomes.keys() == set(wanted)
    assert not {test: outcome.text for test, outcome in outcomes.items() if outcome.result != "passed"}


@pytest.mark.slow
def test_no_test_of_celery_fails_that_passes_with_redis():
    found = command.compare(all_tests(), shards=2)
    print(command.table(found))
    assert command.worse_than_redis(found) == []
