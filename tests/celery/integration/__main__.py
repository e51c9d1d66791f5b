"""Celery's own integration tests beside each other: with our result backend, and with the one of Redis.

    python -m tests.celery.integration [--backend cystore|redis|both] [--shards N] [--only TEXT] [--json FILE]

Prints what failed with which backend. Exit code 1 when a test fails with ours and passes with Redis, unless it is
about the Redis client itself (OWN_TO_REDIS) or about a difference on purpose (DIFFERENT).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.celery.integration.suite import BACKENDS, Outcome, all_tests, run

Found = dict[str, dict[str, Outcome]]  # backend: test: outcome

REDIS = "t/integration/test_redis_backend.py::"
SUBSCRIPTIONS = "t/integration/test_tasks.py::test_task_redis_result_backend::"
CHORD = "t/integration/test_canvas.py::test_chord::"

# Beginnings of node ids: what such a test is about is the Redis client, not a result backend.
OWN_TO_REDIS = {
    f"{REDIS}test_failure_expires": "asks backend.client, a Redis client, for the time to live of a key",
    f"{CHORD}test_chord_on_error": "reads the chord's parts with a Redis client",
    f"{REDIS}test_chord_expires": "asks backend.client for the time to live of a key",
    f"{REDIS}test_chord_part_return_records_each_header_task_once": "counts the members of a Redis set",
    f"{REDIS}test_decode_responses_disables_compression": "gives an option of the Redis client",
    f"{REDIS}test_pubsub_": "counts the server's PUBSUB channels",
    f"{SUBSCRIPTIONS}test_asyncresult_forget_cancels_subscription": "counts the server's PUBSUB channels",
    f"{SUBSCRIPTIONS}test_asyncresult_get_cancels_subscription": "counts the server's PUBSUB channels",
}

# A difference on purpose, which docs/celery-results.md describes.
DIFFERENT = {
    "t/integration/test_tasks.py::test_tasks::test_revoke_keeps_state_of_task_started_elsewhere": "expects REVOKED for "
    "an id that no process sent; here the worker that gets the task's message stores that state",
}


def _listed(test: str, beginnings: Iterable[str]) -> bool:
    return any(test.startswith(beginning) for beginning in beginnings)


def table(found: Found) -> str:
    """Markdown: how many tests ended how with which backend, then every test that failed with one of them."""
    lines = ["| result backend | passed | failed | skipped | seconds of tests |", "|---|---|---|---|---|"]
    for backend, outcomes in found.items():
        counts = [sum(o.result == result for o in outcomes.values()) for result in ("passed", "skipped")]
        failed = sum(o.failed for o in outcomes.values())
        seconds = sum(o.seconds for o in outcomes.values())
        lines.append(f"| {backend} | {counts[0]} | {failed} | {counts[1]} | {seconds:.0f} |")
    failed_somewhere = sorted({o.test for outcomes in found.values() for o in outcomes.values() if o.failed})
    if failed_somewhere:
        lines += ["", f"| test | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for test in failed_somewhere:
        cells = " | ".join(outcomes[test].result for outcomes in found.values())
        lines.append(f"| {test} | {cells} |")
    return "\n".join(lines)


def worse_than_redis(found: Found) -> list[str]:
    """Tests that fail with ours and pass with Redis, beside those of the lists above."""
    ours, redis = found["cystore"], found["redis"]
    worse = [test for test, outcome in ours.items() if outcome.failed and redis[test].result == "passed"]
    return [test for test in worse if not _listed(test, (*OWN_TO_REDIS, *DIFFERENT))]


def compare(tests: Sequence[str], *, shards: int) -> Found:
    """The outcomes with both. What is worse with ours gets a second try by itself, as Celery gives most of its tests
    five: some have a race with the worker in their own process, or a limit of seconds."""
    found: Found = {backend: run(backend, tests, shards=shards) for backend in BACKENDS}
    if worse := worse_than_redis(found):
        print("a second try: " + "  ".join(worse), flush=True)
        found["cystore"] |= run("cystore", worse, shards=1)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.celery.integration", description=__doc__)
    parser.add_argument("--backend", choices=(*BACKENDS, "both"), default="both")
    parser.add_argument("--shards", type=int, default=2, help="so many workers and Redises side by side")
    parser.add_argument("--only", default="", help="tests whose node id contains this")
    parser.add_argument("--json", type=Path, help="writes every outcome into this file")
    options = parser.parse_args(arguments)
    tests = [test for test in all_tests() if options.only in test]
    begin = time.monotonic()
    if options.backend == "both":
        found = compare(tests, shards=options.shards)
    else:
        found = {options.backend: run(options.backend, tests, shards=options.shards)}
    print(f"{len(tests)} tests in {time.monotonic() - begin:.0f} s, {options.shards} shards", flush=True)
    for backend, outcomes in found.items():
        for outcome in outcomes.values():
            if outcome.failed:
                print(
                    f"\n== {backend}: {outcome.test}: {outcome.result}\n{outcome.text.strip()[-2000:]}",
                    flush=True,
                )
    if options.json:
        told = {backend: [asdict(o) for o in outcomes.values()] for backend, outcomes in found.items()}
        options.json.write_text(json.dumps(told, indent=1))
    print(f"\n{table(found)}")
    if len(found) < len(BACKENDS):
        return 0
    if worse := worse_than_redis(found):
        print("\nfails here and passes with Redis:\n" + "\n".join(worse))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
