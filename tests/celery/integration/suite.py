"""Runs Celery's own integration tests, unchanged, with one result backend: each shard is a pytest with a Redis, a
broker and a worker of its own, so several run side by side."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.celery.integration.sources import ROOT, sources
from tools.processes import ends_with_us
from tools.redis_server import RedisUnavailableError, redis_server

TESTS = ["t/integration", "--ignore=t/integration/test_backend.py"]  # that one needs an account at Azure
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "celery.contrib.pytest",
]
NAME = Path(__file__).with_name(
    "redis_name"
)  # a distribution: what its entry point names begins with "redis"
BACKENDS = ("cystore", "redis")
END_S = 30
PORT_TRIES = 10


@dataclass(frozen=True)
class Outcome:
    """Of one test: `result` is passed, failed, error or skipped (an expected failure too)."""

    test: str
    result: str
    seconds: float
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.result in ("failed", "error")


def all_tests() -> list[str]:
    """Node ids of every test, in their order."""
    command = [*PYTEST, "--collect-only", *TESTS]
    done = subprocess.run(
        command,
        cwd=sources(),
        env=_environment("memory://", "cache+memory://", 0),
        text=True,
        capture_output=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not found:
        raise RuntimeError(f"Celery's tests cannot be collected:\n{done.stdout[-3000:]}{done.stderr}")
    return found


def run(
    backend: str, tests: Sequence[str], *, shards: int, limit_s: float | None = None
) -> dict[str, Outcome]:
    """The outcome of each test with a backend of BACKENDS; tests that a killed or hanging pytest did not get to are
    errors."""
    parts = [tests[shard::shards] for shard in range(shards)]
    with tempfile.TemporaryDirectory(prefix="cyi") as folder, ThreadPoolExecutor(shards) as pool:
        outcomes = pool.map(
            lambda part: _shard(backend, part[1], Path(folder) / str(part[0]), limit_s),
            [(number, part) for number, part in enumerate(parts) if part],
        )
        return {outcome.test: outcome for shard in outcomes for outcome in shard}


def _shard(backend: str, tests: Sequence[str], folder: Path, limit_s: float | None) -> list[Outcome]:
    folder.mkdir()
    (folder / "tests").write_text("".join(f"{test}\n" for test in tests))
    with _redis_with_port() as port:
        broker = f"redis://127.0.0.1:{port}/0"
        url = broker if backend == "redis" else f"rediscystore+cystore://{folder}/store"
        command = [
            *PYTEST,
            f"--junitxml={folder}/report.xml",
            "-o",
            "junit_family=xunit1",
            f"@{folder}/tests",
        ]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                ends_with_us(command),
                cwd=sources(),
                env=_environment(broker, url, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                _end(process, signal.SIGINT)  # pytest then writes its report
            finally:
                _end(process, signal.SIGKILL)
    return list(_outcomes(folder, tests))


def _end(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """The session's processes too: an embedded worker's children outlive a pytest that is killed."""
    try:
        os.killpg(process.pid, sign)
        process.wait(END_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def _environment(broker: str, backend: str, port: int) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    places = os.pathsep.join([str(NAME), str(sources()), str(ROOT)])
    more = {
        "TEST_BROKER": broker,
        "TEST_BACKEND": backend,
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": str(port),
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**environment, **more, "PATH": path, "PYTHONPATH": places}


@contextmanager
def _redis_with_port() -> Iterator[int]:
    """Celery's tests want a Redis that listens on TCP. Another process may take the free port first."""
    with ExitStack() as stack:
        for tries_left in reversed(range(PORT_TRIES)):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            try:
                stack.enter_context(redis_server("--port", str(port), "--bind", "127.0.0.1", own=True))
                break
            except RedisUnavailableError:
                if not tries_left:
                    raise
        yield port


def _outcomes(folder: Path, tests: Sequence[str]) -> Iterable[Outcome]:
    log = (folder / "log").read_text(errors="replace")
    report = folder / "report.xml"
    told: dict[str, Outcome] = {}
    for case in ET.parse(report).getroot().iter("testcase") if report.exists() else ():
        outcome = _outcome(case)
        before = told.get(outcome.test)
        if before is None or not before.failed:  # an error of a fixture comes as a second entry
            told[outcome.test] = outcome
    for test in tests:
        yield told.get(test) or Outcome(
            test, "error", 0.0, "not run; the end of pytest's output:\n" + log[-3000:]
        )


def _outcome(case: ET.Element) -> Outcome:
    path = case.get("file", "")
    module = path.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).strip(".").split(".")
    test = "::".join([path, *filter(None, classes), case.get("name", "")])
    for element, result in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        if (found := case.find(element)) is not None:
            return Outcome(
                test,
                result,
                float(case.get("time", 0)),
                (found.get("message") or "") + "\n" + (found.text or ""),
            )
    return Outcome(test, "passed", float(case.get("time", 0)))
