"""Workers and beat as real processes, each in a group of its own so that it can be killed whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from celery_app.app import BROKER_VARIABLE, STORE_VARIABLE, TASK_QUEUE
from tools.processes import ends_with_us

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
STOP_S = 60  # a stopping worker may wait half of that for a job that it dropped
WORKER = ["worker", "--pool", "prefork", "--concurrency", str(PROCESSES), "--queues", TASK_QUEUE]
QUIET = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]


class Fleet:
    """The processes of one run; a context manager that leaves none behind."""

    def __init__(self, broker_url: str, store: Path, logs: Path) -> None:
        self._environment = {**os.environ, BROKER_VARIABLE: broker_url, STORE_VARIABLE: str(store)}
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_worker(self, name: str) -> int:
        """Starts a worker with two pool processes; returns its process id."""
        return self._start(name, [*WORKER, "--hostname", f"{name}@%h", *QUIET])

    def start_beat(self) -> int:
        """Starts beat; returns its process id."""
        schedule = ["--schedule", str(self._logs / "celerybeat-schedule"), "--pidfile", ""]
        return self._start("beat", ["beat", *schedule, "--loglevel", "WARNING"])

    def _start(self, name: str, arguments: list[str]) -> int:
        command = [sys.executable, "-m", "celery", "-A", "celery_app", *arguments]
        with open(self._logs / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                ends_with_us(command),
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """SIGKILL for a worker and its pool processes: no handler runs, nothing is tidied up."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def ended(self) -> dict[str, int]:
        """The processes that ended by themselves, with exit codes. No process should."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self) -> None:
        """Lets all finish their work, and waits for them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
