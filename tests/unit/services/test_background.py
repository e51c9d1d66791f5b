"""Goal: the long steps of a service do not interrupt a put that runs on the same processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cystore
from cystore.system.threads import os_threads

pytestmark = pytest.mark.unsanitized  # Python alone
ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import os, sys
from cystore.errors import StoreClosedError
from cystore.services.threads import ServiceThread

os.sched_setscheduler(0, int(sys.argv[1]), os.sched_param(0))

def run_once():
    print(os.sched_getscheduler(0), flush=True)
    raise StoreClosedError("closed")

for in_background in (True, False):
    ServiceThread("work", run_once, 1.0, in_background=in_background).join()
"""


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (os.SCHED_OTHER, [os.SCHED_BATCH, os.SCHED_OTHER]),
        (os.SCHED_IDLE, [os.SCHED_IDLE, os.SCHED_IDLE]),
    ],
    ids=["not chosen", "chosen"],
)
def test_a_service_in_the_background_is_a_batch_unless_the_process_chose_its_policy(chosen, found):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(chosen)], text=True, capture_output=True, check=True, cwd=ROOT
    )
    assert [int(line) for line in done.stdout.split()] == found


def test_a_policy_that_may_not_be_set_ends_nothing(monkeypatch):
    before = os.sched_getscheduler(0)

    def refused(*_):
        raise PermissionError("not in this sandbox")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    os_threads.work_in_background()
    assert os.sched_getscheduler(0) == before


def test_services_with_long_steps_that_no_sync_put_waits_for_work_in_the_background(tmp_path, monkeypatch):
    """Seen: a service that woke up on a put's processor kept the put waiting for 0.6 ms."""
    asked = []
    monkeypatch.setattr(os_threads, "work_in_background", lambda: asked.append(None))
    for services, count in (("flush", 1), ("allocate", 1), ("clean", 1), ("compact", 1), ("reput", 0)):
        with cystore.open(tmp_path / "s", services=(services,)):
            pass
        assert len(asked) == count, services
        asked.clear()
