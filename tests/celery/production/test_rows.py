"""Goal: nothing that a Celery team stumbled over comes back unseen. Method: a table that names for each complaint the
tests with real workers, real commands or real processes; this file looks that they are there."""

from __future__ import annotations

import re

import pytest

from tests.structure.sources import ROOT

# Complaint: tests below tests/, by file and name.
ROWS: dict[str, list[str]] = {
    "nothing frees disk, ends chords or delivers delayed messages without duties": [
        "celery/duties/test_upkeep.py::test_a_worker_that_installed_nothing_cleans_its_store",
        "celery/duties/test_upkeep.py::test_a_worker_that_installed_nothing_delivers_delayed_messages",
        "celery/duties/test_upkeep.py::test_a_worker_that_installed_nothing_ends_a_chord_whose_claim_was_lost",
        "celery/duties/test_upkeep.py::test_cleanup_of_the_backend_cleans",
        "celery/duties/test_upkeep.py::test_celerys_own_cleanup_task_cleans",
        "celery/production/test_page.py::test_the_first_day",
    ],
    "beat is forked while a thread of ours imports": [
        "celery/duties/test_upkeep.py::test_beat_works_in_each_start_quick",
        "celery/duties/test_upkeep.py::test_beat_works_in_each_of_200_starts",
        "celery/duties/test_restarts.py::test_a_worker_starts_again",
        "celery/duties/test_restarts.py::test_a_thousand_restarts",
        "celery/duties/test_green_timers.py::test_a_repeated_call_ends",
        "celery/duties/test_green_timers.py::test_a_warm_shutdown_beside_a_redis_that_answers_heartbeats_late",
    ],
    "states come many times, or not at all": [
        "celery/production/test_small_things.py::test_every_state_comes_once_and_in_order_beside_a_busy_writer",
        "celery/results/test_every_state.py::test_each_state_once_and_in_order_beside_a_busy_writer",
    ],
    "every append wakes every waiter": [
        "celery/results/test_waiting.py::test_appends_for_other_ids_wake_nobody",
        "celery/production/test_web_tier.py::test_an_idle_waiter_costs_nothing_and_a_wait_has_its_timeout",
    ],
    "the store is moved, or its sync fails, under workers": [
        "celery/results/test_store_away.py::test_a_worker_whose_store_was_moved_ends",
        "celery/results/test_store_away.py::test_tasks_that_ran_when_the_store_went_away_go_back_too",
        "celery/results/test_store_away.py::test_a_failed_sync_stops_a_worker_too",
        "celery/results/test_store_away.py::test_a_worker_that_waits_goes_on_when_its_store_is_back",
        "celery/results/test_store_away.py::test_a_worker_with_create_false_refuses_to_start_without_its_store",
        "celery/production/test_other_roles.py::test_a_worker_on_a_slave_takes_no_task_and_names_the_master",
        "celery/production/test_other_roles.py::test_a_worker_that_waits_continues_with_its_store",
    ],
    "other PID namespaces are refused for everything": [
        "celery/production/test_containers.py::test_web_and_workers_in_containers_of_their_own",
        "celery/production/test_containers.py::test_another_namespace_reads",
        "celery/production/test_containers.py::test_a_container_of_workers_restarts_in_a_new_namespace",
        "unit/system/test_pid_namespaces.py::test_commands_read_from_another_pid_namespace",
    ],
    "a result of another home is PENDING for ever": [
        "celery/routing/test_remote.py::test_a_client_without_a_store_reads_results",
        "celery/routing/test_remote.py::test_a_client_that_knows_no_home",
        "celery/routing/test_remote.py::test_what_another_process_sent_elsewhere",
        "celery/routing/test_remote.py::test_an_id_that_this_host_has_never_heard_of",
        "celery/routing/test_remote.py::test_a_large_result_comes_in_parts",
        "celery/routing/test_remote_kill.py::test_the_serving_worker_is_killed_and_redis_is_started_again",
        "celery/routing/test_homes.py::test_a_publisher_without_a_store",
    ],
    "no upgrade path": [
        "celery/duties/test_handover.py::test_a_worker_hands_its_store_over_between_two_tasks",
        "celery/duties/test_handover.py::test_a_task_that_a_pool_process_has_is_not_given_back",
        "celery/production/test_page.py::test_backup_restore_and_the_next_upgrade",
        "unit/attachment/test_old_wheel.py::",
        "unit/attachment/test_versions_attached.py::",
    ],
    "Celery before 5.7 fails with an internal name": [
        "celery/duties/test_versions.py::test_other_versions_are_refused_in_one_line",
        "celery/duties/test_versions.py::test_a_slice_with_older_celery",
    ],
    "an import from an unbuilt source folder": ["unit/system/test_unbuilt.py::"],
    "duties are tasks of the user's pool": [
        "celery/duties/test_ticks.py::test_duties_run_in_the_main_process",
        "celery/duties/test_ticks.py::test_an_idle_fleet_costs_redis_less_than_a_command_a_second",
        "celery/duties/test_ticks.py::test_a_scheduler_that_drops_every_expiry_piles_nothing_up_without_a_worker",
        "celery/duties/test_duty_fleet.py::test_a_busy_pool_has_its_duties_done_by_the_main_process",
    ],
    "the log counts as a child's memory": [
        "celery/production/test_small_things.py::test_a_pool_process_is_not_ended_because_the_log_grew",
        "celery/results/test_child_memory.py::test_the_peak_of_a_child_stays_flat",
    ],
    "delay_level=99 is 18": [
        "celery/production/test_small_things.py::test_a_delay_level_that_does_not_exist_is_an_error"
    ],
    "--state foo, --since 2w, hints": ["celery/production/test_small_things.py::test_states_times_and_hints"],
    "SIGPIPE is exit code 1": [
        "celery/production/test_small_things.py::test_a_reader_of_the_output_that_goes_away",
        "celery/commands/test_command_options.py::test_the_reader_of_the_output_goes_away",
    ],
    "info warns about file sizes": [
        "celery/production/test_small_things.py::test_info_of_a_store_in_use_warns_of_nothing"
    ],
    "a full disk prints tracebacks": [
        "celery/results/test_full_disk.py::test_a_full_disk_is_told_in_one_line_and_no_task_is_lost",
        "celery/results/test_full_disk.py::test_a_result_that_is_lost_is_told",
    ],
    "a worker starts whose store cannot be used": [
        "celery/duties/test_worker_steps.py::test_a_worker_that_cannot_open_its_store_ends_and_takes_no_task",
        "celery/duties/test_worker_steps.py::test_a_worker_whose_store_has_a_damaged_id_ends_and_takes_no_task",
        "celery/duties/test_worker_steps.py::test_a_worker_that_cannot_make_its_store_ends_and_takes_no_task",
        "celery/results/test_full_disk.py::test_a_worker_that_starts_on_a_full_disk_ends_and_takes_no_task",
    ],
    "a result that cannot be decoded ends all later waits": [
        "celery/results/test_waiting.py::test_an_undecodable_result_is_the_error_of_its_own_id_alone",
        "celery/results/test_waiting.py::test_each_wait_for_an_undecodable_result_raises",
    ],
    "status shows no duties without Redis": [
        "celery/production/test_small_things.py::test_status_shows_duties_without_a_redis"
    ],
    "a second URL becomes a path": [
        "celery/production/test_small_things.py::test_a_second_store_is_refused_with_a_reason",
    ],
    "options of Redis stop the app": [
        "celery/production/test_small_things.py::test_options_of_redis_stop_nothing_and_are_named_once",
        "celery/results/test_first_day.py::test_the_duties_keys_have_the_brokers_prefix",
    ],
    "root may not read another user's store": [
        "celery/results/test_other_users_store.py::test_root_reads_results_of_another_users_store"
    ],
    "revoke of a fleet with two homes": [
        "celery/routing/test_homes.py::test_a_revoked_task_is_revoked_at_its_home_alone"
    ],
    "redaction leaves extended results": [
        "celery/production/test_small_things.py::test_redaction_covers_extended_results"
    ],
    "results over 4 MiB fail": [
        "celery/production/test_small_things.py::test_large_results",
        "celery/production/test_small_things.py::test_a_result_beyond_the_limit_names_the_setting",
    ],
    "the page Production is not true": [
        "celery/production/test_page.py::test_the_first_day",
        "celery/production/test_page.py::test_backup_restore_and_the_next_upgrade",
        "celery/production/test_page.py::test_a_task_takes_the_space_that_the_page_says",
        "celery/production/test_web_tier.py::test_beside_the_store_everything_after_a_fork_too",
        "celery/production/test_web_tier.py::test_a_reader_waits_for_results_and_stores_nothing",
        "celery/production/test_migration.py::test_there_and_back",
    ],
}


@pytest.mark.parametrize("complaint", ROWS)
def test_each_complaint_has_its_tests(complaint):
    for test in ROWS[complaint]:
        file, _, name = test.partition("::")
        source = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^def {name or 'test_'}", source, re.MULTILINE), test
