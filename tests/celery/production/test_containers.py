"""Goal: Celery in containers as docs/containers.md says: web, workers and readers share a volume and nothing else.
Method: real workers and clients in PID namespaces of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from celery import states

from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, ROOT, WORKER, fleet_in, wait_until
from tests.celery.results.test_store_away import ready
from tests.crash.faults.containers import obstacle
from tests.support.celery import work
from tests.unit.system.test_pid_namespaces import ELSEWHERE
from tools.processes import ends_with_us

CELERY = [*ELSEWHERE, sys.executable, "-m", "celery", "-A", "tests.support.celery.work"]
READER = """
import os, sys
from tests.support.celery import work
app = work.make_app(os.environ[work.BROKER], os.environ[work.BACKEND] + "?read_only=true")
print(app.AsyncResult(sys.argv[1]).get(timeout=60), flush=True)
print(app.AsyncResult("later").get(timeout=60), flush=True)
"""

# A web container: it sends, waits, and ends a chord whose steps ran in other containers.
WEB = """
import os
from celery import chord
from tests.support.celery import work
app = work.make_app(os.environ[work.BROKER], os.environ[work.BACKEND])
add, total = app.tasks[work.add.name], app.tasks[work.total.name]
print(add.delay(20, 22).get(timeout=60), flush=True)
print(chord([add.s(n, n) for n in range(20)])(total.s()).get(timeout=60), flush=True)
"""

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.may_skip("no PID namespace can be made"),
    pytest.mark.may_skip("no unshare"),
]


@contextmanager
def container(tmp_path, fleet, name):
    """A worker in a namespace of its own."""
    log = tmp_path / f"{name}.log"
    with open(log, "wb") as output, subprocess.Popen(
        ends_with_us([*CELERY, *WORKER, "--concurrency=2", f"--hostname={name}@container"]),
        cwd=ROOT, env={**os.environ, **fleet.environment}, stdout=output, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: " ready." in log.read_text(), "the worker of the container is ready")
            yield process
        finally:
            process.kill()


def test_web_and_workers_in_containers_of_their_own(tmp_path):
    """Seen: the second container that wrote was refused. One of the workers dies with its namespace; this
    process goes on at once."""
    with fleet_in(tmp_path) as fleet:
        with container(tmp_path, fleet, "first") as dies, container(tmp_path, fleet, "second"):
            environment = {**os.environ, **fleet.environment}
            web = subprocess.run(
                [*ELSEWHERE, sys.executable, "-c", WEB],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert web.stdout.split() == ["42", "380"], web.stderr
            assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
            dies.kill()
            dies.wait()
            for number in range(10):
                fleet.app.backend.store_result(f"after{number}", number, states.SUCCESS)
                assert fleet.app.AsyncResult(f"after{number}").get(timeout=PATIENCE_S) == number
        close_shared()
        fleet.app.set_current()


def test_another_namespace_reads(tmp_path):
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1")
        first = fleet.task(work.add).delay(1, 2)
        assert first.get(timeout=PATIENCE_S) == 3
        environment = {**os.environ, **fleet.environment}

        reader = [*ELSEWHERE, sys.executable, "-c", READER, first.id]
        with subprocess.Popen(
            ends_with_us(reader), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "3\n"
            fleet.task(work.add).apply_async((2, 2), task_id="later")  # wakes it across namespaces
            assert process.stdout.readline() == "4\n"
        assert process.returncode == 0

        status = subprocess.run(
            [*CELERY, "cystore", "history", "--task-id", first.id],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert status.returncode == 0 and states.SUCCESS in status.stdout, status.stderr
        assert worker.process.poll() is None


def test_a_container_of_workers_restarts_in_a_new_namespace(tmp_path):
    """The last writer of the old one is gone; a reader of this one stays attached."""
    with fleet_in(tmp_path) as fleet:
        first = fleet.start("--concurrency=1")
        ready(first)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        close_shared()
        assert first.stop() == 0
        reader = work.make_app(
            fleet.environment[work.BROKER], fleet.environment[work.BACKEND] + "?read_only=true"
        )
        assert reader.AsyncResult("none").state == states.PENDING
        with container(tmp_path, fleet, "container"):
            sent = reader.tasks[work.add.name].delay(20, 22)
            assert sent.get(timeout=PATIENCE_S) == 42
        close_shared()
        fleet.app.set_current()
