"""The surroundings of an example: a folder with its store, a Redis, a worker. All of them end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.processes import ends_with_us
from tools.redis_server import redis_server

PATIENCE_S = 120  # for a busy machine; an example takes a few seconds


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder and a Redis. Import the app inside of the block: it reads APP_BROKER and APP_STORE."""
    with tempfile.TemporaryDirectory(prefix="cystore-example-") as folder, redis_server(own=True) as redis:
        os.environ |= {"APP_BROKER": redis.broker_url, "APP_STORE": f"{folder}/store"}
        try:
            yield Path(folder)
        finally:
            from cystore.celery.stores import close_shared

            close_shared()  # of this process, before the folder is removed


@contextlib.contextmanager
def worker(app: str, folder: Path) -> Iterator[None]:
    """A worker of an app (a module, as for `celery -A`), which ends in order. Shows its log if the block fails."""
    with open(folder / "worker.log", "a") as log:
        process = subprocess.Popen(
            ends_with_us([*celery(app), "worker", "--concurrency=2", "--hostname=a@example"]),
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment(),
        )
    try:
        yield
    except BaseException:
        sys.stderr.write((folder / "worker.log").read_text())
        raise
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def celery(app: str) -> list[str]:
    """The command `celery -A APP`."""
    return [sys.executable, "-m", "celery", "-A", app]


def environment() -> dict[str, str]:
    """The environment of a command that runs in another folder than the clone."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *_given()])}


def _given() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def shown(app: str, *words: str) -> None:
    """Runs `celery -A APP cystore ...`, with the line that a user would type above its output."""
    print(f"\n$ celery -A {app.rpartition('.')[2]} cystore {' '.join(words)}", flush=True)
    subprocess.run([*celery(app), "cystore", *words], env=environment(), timeout=PATIENCE_S, check=True)
