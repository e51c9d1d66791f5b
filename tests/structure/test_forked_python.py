"""Goal: a test cannot tell a forked Python process from one that began as any other. Method: the same program in both,
which tells all that it sees; ends and signals; the end of whoever has the server."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.structure.sources import ROOT
from tests.support.processes.forked_python import Python

SEEN = """
import json, os, signal, sys, threading
streams = {
    name: [str(stream), stream.errors, stream.line_buffering, stream.write_through, stream.fileno(), stream.isatty()]
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
}
print(json.dumps({
    "words": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ), "path": sys.path, "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(), "parent": os.getppid(), "group": os.getpgrp(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1], "threads": threading.active_count(),
    "signals": {n.name: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.Signals}, "streams": streams,
    "given": sys.stdin.read(),
}))
sys.exit(7)
"""


def seen(start: type[subprocess.Popen[Any]], folder: Path, kept: int) -> Any:
    command = [sys.executable, "-c", SEEN, "one", "two words"]
    environment = {**os.environ, "ONLY_HERE": "ü"}
    pipe = subprocess.PIPE
    with start(
        command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, pass_fds=[kept], text=True
    ) as process:
        out, _ = process.communicate("sent", timeout=60)
    assert process.returncode == 7
    return json.loads(out)


@pytest.fixture
def forked(tmp_path: Path) -> type[Python]:
    """`Python` with a server for this environment."""
    for _ in range(2):
        assert Python([sys.executable, "-c", ""], env={**os.environ, "ONLY_HERE": "ü"}).wait(60) == 0
        assert Python([sys.executable, "-c", ""]).wait(60) == 0
    return Python


def test_a_forked_process_sees_what_any_other_sees(tmp_path, forked):
    with open("/dev/null") as kept:
        assert seen(forked, tmp_path, kept.fileno()) == seen(subprocess.Popen, tmp_path, kept.fileno())


def test_a_forked_process_ends_and_stops_as_any_other(forked):
    code = "import atexit, os, sys; atexit.register(lambda: os.write(1, b'left')); sys.exit('why')"
    with forked([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.communicate(timeout=60) == (b"left", b"why\n")
        assert process.returncode == 1
    with forked([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    with forked([sys.executable, "-m", "cystore.cli", "--version"], stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=60)[0].startswith(b"cystore ")


def test_a_server_outlives_an_interrupt_that_is_for_its_test(forked):
    for server in forked._servers.values():
        server._process.send_signal(signal.SIGINT)
    assert forked([sys.executable, "-c", ""]).wait(60) == 0


def test_the_server_ends_with_the_process_that_has_it():
    code = (
        "import os, signal, sys\n"
        "from tests.support.processes.forked_python import Python\n"
        "for _ in range(2): Python([sys.executable, '-c', '']).wait()\n"
        "(server,) = Python._servers.values()\n"
        "print(server._process.pid, flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as starter:
        server = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        assert select.select([server], [], [], 60)[0]
    finally:
        os.close(server)
