"""Goal: no failpoint is forgotten by the fault matrix, and a process that was meant to have failpoints has them.
Method: the names in the sources beside those that the row `kill` uses; the build that others import from, built
again."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.process import Process
from tests.support.processes.places import PLACES, in_sources
from tests.support.processes.writers import arm
from tools import build


def test_the_kill_row_uses_every_failpoint_of_the_sources():
    """But those of cleaning, which removes messages on purpose (test_clean_kill.py kills there), and of delivery, which
    needs messages that wait (test_deliver_kill.py, test_carry_kill.py), of Spark's sink (test_sink_commit.py), of the
    removal of queues (test_topic_removal.py), of the scrub (test_duty_fleet.py), of consumers (test_consumer_kill.py),
    of named dispatchers (test_dispatcher_kill.py), of the timer (test_timer_kill.py), of messages that are put once
    (test_once_kill.py), of transactions (test_transaction_kill.py), of compaction (test_compact_kill.py), of light
    queues (test_light_kill.py), of the files ahead of a store that is closed (test_close_kill.py), of a log that is
    copied from a master (tests/ha/test_follow.py), of a pool of buffers (test_pool_kill.py), of registered filters
    (test_filter_kill.py), of claims (test_claims_kill.py), of a move into another broker (test_queues.py), and of a
    handle that only reads and is alone (test_reader_follows.py)."""
    elsewhere = (
        "clean.",
        "deliver.",
        "carry.",
        "sink.",
        "remove.",
        "queue.",
        "scrub.",
        "attach.private",
        "consumers.",
        "dispatcher.",
        "once.",
        "transaction.",
        "copied.",
        "cut.",
        "allocate.removed",
        "compact.",
        "append.light_",
        "commit.",
        "pool.",
        "filters.",
        "manifest.",
        "withdraw.",
        "claims.",
        "move.",
    )
    assert set(PLACES) == {name for name in in_sources() if not name.startswith(elsewhere)}
    assert len(PLACES) >= 40


def test_what_must_be_killed_before_is_a_place_too():
    assert {name for place in PLACES.values() for name in place.before} <= set(PLACES)


def test_a_build_that_is_up_to_date_takes_no_module_from_who_imports_it(build_environment):
    """Tests in several pytest processes share the tree: a module that is gone for a moment would come from the
    repository instead."""
    build_environment("failpoints")
    tree = build.tree("failpoints")

    def modules() -> dict[str, tuple[int, int]]:
        """Inode and time of change: a file that was away has another inode, one written in place another time."""
        files = [path for suffix in ("*.py", "*.so") for path in tree.rglob(suffix)]
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    # So that a copy made again cannot be given the inode of the one that it replaces.
    before = modules()
    with contextlib.ExitStack() as stack:
        for path in before:
            stack.enter_context(open(path, "rb"))
        build.build("failpoints")
    assert len(before) > 50
    assert modules() == before


def test_a_process_without_failpoints_cannot_be_armed():
    with Process() as process, pytest.raises(AssertionError, match="nothing can be armed in"):
        arm(process, "append.intent")
