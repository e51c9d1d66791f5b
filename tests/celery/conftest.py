"""What the Celery tests share: apps on a store of their own, and real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery, Task

from cystore.celery.backend import CystoreBackend
from cystore.celery.stores import close_shared
from tests.celery import work
from tools.processes import ends_with_us
from tools.redis_server import redis_server

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 30


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


class Worker:
    """A worker of `tests.celery.work` as a process group of its own."""

    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.work", "worker", "--pool", "prefork"]
        command += [
            "--queues",
            work.QUEUE,
            "--loglevel",
            "INFO",
            "--without-gossip",
            "--without-mingle",
            *arguments,
        ]
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

    def stop(self) -> int:
        """Warm shutdown; the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


class Fleet:
    """An app in this process, and workers of the same app on the same store and Redis."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder, self.store_path = folder, folder / "store"
        self.environment = {work.BROKER: broker_url, work.BACKEND: f"cystore://{self.store_path}"}
        self.app = work.make_app(broker_url, self.environment[work.BACKEND])
        self._workers: list[Worker] = []

    @property
    def backend(self) -> CystoreBackend:
        return self.app.backend

    def task(self, task: Task) -> Task:
        """A task of `tests.celery.work`, bound to this fleet's app."""
        return self.app.tasks[task.name]

    def start(self, *arguments: str, **environment: str) -> Worker:
        log = self.folder / f"worker{len(self._workers)}.log"
        name = f"--hostname=worker{len(self._workers)}@test"
        self._workers.append(Worker(log, name, *arguments, **{**self.environment, **environment}))
        return self._workers[-1]

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        close_shared()


@contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    with redis_server(own=True) as redis:
        fleet = Fleet(folder, redis.broker_url)
        try:
            yield fleet
        finally:
            fleet.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Redis, a store and one worker with two pool processes, whose main process had the store open before it forked."""
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start("--concurrency=2", **{work.OPEN_EARLY: "1"})
        yield fleet


@pytest.fixture
def fresh_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A Redis and a store of this test's own; it starts the workers."""
    with fleet_in(tmp_path) as fleet:
        yield fleet
