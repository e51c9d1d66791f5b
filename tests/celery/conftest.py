"""Shared by the Celery tests: apps on a store of their own, and real workers."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from celery import Celery, Task
from celery.bin.celery import celery
from click.testing import CliRunner, Result

from cystore.celery import homes
from cystore.celery.backend import CystoreBackend
from cystore.celery.stores import close_shared
from cystore.clock import monotonic_s
from tests.support.celery import work
from tools.processes import ends_with_us
from tools.redis_server import Redis, redis_server

ROOT = Path(__file__).resolve().parents[2]
# What is awaited takes a second; on a busy machine a worker may need a minute to start or to end. Of a pool process
# that ended a task while its worker was told to stop, Celery may drop the job before it has read that it is done; the
# process then waits 30 s for its message to be read (billiard's _ensure_messages_consumed). With any backend.
PATIENCE_S = 180
WORKER = (
    "worker",
    "--queues",
    work.QUEUE,
    "--loglevel",
    "INFO",
    "--without-gossip",
    "--without-mingle",
)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    """Captures the library's log, whatever another test's module did to its loggers."""
    caplog.set_level(logging.DEBUG, "cystore")


@pytest.fixture(autouse=True)
def _no_homes_known() -> None:
    """Each test is a process of its own to the library: the homes that tests before had for the same ids are gone."""
    homes._foreign.clear()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A `cystore://` URL of a store that is not there yet; closed at the end."""
    yield f"cystore://{tmp_path}/store"
    close_shared()


@pytest.fixture
def make_backend(url: str) -> Callable[..., CystoreBackend]:
    """`make_backend(setting=value)`: the backend of a new app on this test's store."""

    def make(**settings: object) -> CystoreBackend:
        app = Celery("test", broker="memory://", backend=url, set_as_current=False)
        app.conf.update(result_backend_thread_safe=True, **settings)
        assert type(app.backend) is CystoreBackend  # found by the entry point
        return app.backend

    return make


@pytest.fixture
def backend(make_backend: Callable[..., CystoreBackend]) -> CystoreBackend:
    return make_backend()


@pytest.fixture
def run(url: str) -> Callable[..., Result]:
    """`run("history", "--json")`: the command for an app on this test's store."""
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)

    def call(*words: str, code: int | None = 0, app: Celery = app, answer: str = "") -> Result:
        done = CliRunner().invoke(celery, ["cystore", *words], input=answer, default_map={"app": app})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert code in (None, done.exit_code), done.output
        return done

    return call


@pytest.fixture
def rows(run: Callable[..., Result]) -> Callable[..., list[dict[str, Any]]]:
    """The JSON objects that a command writes."""
    return lambda *words: [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]


def wait_until(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """Returns when the condition holds; fails after `limit_s`."""
    until = monotonic_s() + limit_s
    while not condition():
        assert monotonic_s() < until, f"not within {limit_s:.0f} s: {what}"
        threading.Event().wait(0.02)


def take_the_place(of: Redis, new: Redis) -> None:
    """A later connection to a killed server goes to the new one."""
    socket = Path(of.url.removeprefix("unix://"))
    socket.unlink(missing_ok=True)
    socket.symlink_to(new.url.removeprefix("unix://"))


class Worker:
    """A worker of `tests.support.celery.work` as its own process group; or another of Celery's programs, `command`."""

    def __init__(
        self, log: Path, *arguments: str, command: Sequence[str] = WORKER, **environment: str
    ) -> None:
        self.log, self._asked = log, False
        command = [sys.executable, "-m", "celery", "-A", "tests.support.celery.work", *command, *arguments]
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                ends_with_us(command),
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL for the main process and its children at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def children(self) -> list[int]:
        """The ids of the pool processes that live now."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ask_to_stop(self) -> None:
        """Begins a warm shutdown."""
        if self.process.poll() is None and not self._asked:
            self._asked = True
            self.process.terminate()

    def stop(self) -> int:
        """Warm shutdown; the exit code."""
        self.ask_to_stop()
        if self.process.poll() is None:
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


class Fleet:
    """An app in this process, and workers of the same app on the same store and Redis."""

    def __init__(
        self,
        folder: Path,
        broker_url: str,
        options: str = "",
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.folder, self.store_path = folder, folder / "store"
        url = f"cystore://{self.store_path}{options}"
        self.environment = {
            work.BROKER: broker_url,
            work.BACKEND: url,
            work.SETTINGS: json.dumps(dict(settings)),
        }
        self.app = work.make_app(broker_url, url, **settings)
        self._workers: list[Worker] = []

    @property
    def backend(self) -> CystoreBackend:
        return self.app.backend

    def task(self, task: Task) -> Task:
        """A task of `tests.support.celery.work`, bound to this fleet's app."""
        return self.app.tasks[task.name]

    def start(
        self, *arguments: str, pool: str = "prefork", quiet: bool = False, **environment: str
    ) -> Worker:
        log = self.folder / f"worker{len(self._workers)}.log"
        name = f"--hostname=worker{len(self._workers)}@test"
        command = ("--quiet", *WORKER) if quiet else WORKER
        arguments = (name, "--pool", pool, *arguments)
        self._workers.append(Worker(log, *arguments, command=command, **{**self.environment, **environment}))
        return self._workers[-1]

    def start_beat(self, *arguments: str, **environment: str) -> Worker:
        """Beat of the same app, with the store's duties in its schedule."""
        log, schedule = self.folder / "beat.log", self.folder / "celerybeat-schedule"
        command = ["beat", "--schedule", str(schedule), "--pidfile", "", "--loglevel", "INFO"]
        self._workers.append(
            Worker(log, *arguments, command=command, **{**self.environment, work.DUTIES: "1", **environment})
        )
        return self._workers[-1]

    def stop(self) -> None:
        for worker in self._workers:
            worker.ask_to_stop()
        for worker in self._workers:
            worker.stop()
        close_shared()


@contextmanager
def fleet_in(folder: Path, options: str = "", **settings: object) -> Iterator[Fleet]:
    """`options` belong into the URL of the result backend, `settings` into the app of every process."""
    with redis_server(own=True) as redis:
        fleet = Fleet(folder, redis.broker_url, options, settings)
        try:
            yield fleet
        finally:
            fleet.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Redis, a store and one worker with two pool processes, whose main process had the store open before it
    forked."""
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start("--concurrency=2", **{work.OPEN_EARLY: "1"})
        yield fleet


@pytest.fixture
def fresh_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A Redis and a store of this test's own; it starts the workers."""
    with fleet_in(tmp_path) as fleet:
        yield fleet
