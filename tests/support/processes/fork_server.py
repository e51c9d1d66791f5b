"""Writers by the dozen: one process has everything imported and forks them, so that a victim costs milliseconds.

`ForkServer` is the side of the one who leads; `fork`, `reap` and `wait_stopped` run in the fork server's process
(they are sent to it).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import signal
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import cystore
from tests.support.process import Process
from tools import build

WAIT_S = 60.0  # writers that acknowledge nothing for so long hang
PIPE_BYTES = 1 << 20  # nobody is held up by the one who reads
_PR_SET_PDEATHSIG = 1


def environment(variant: str = "") -> dict[str, str]:
    """The whole environment of a process that imports a build variant, which is built first."""
    if not variant:
        return dict(os.environ)
    build.build_once(variant)
    return {**os.environ, **build.environment(variant)}


def no_compiler() -> str:
    """Why no build with failpoints can be made."""
    return "" if any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc"))) else "no C compiler"


class ForkServer:
    """A process that forks writers, and the pipe through which those acknowledge. A context manager; nobody outlives
    it."""

    def __init__(self, given: dict[str, str], *, through: Sequence[str] = ()) -> None:
        self._reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._reading, False)
        self._process = Process(given, keep=(writing,), through=through)
        self._out, self._unfinished = writing, b""
        self.living: list[int] = []
        self.acknowledged: list[list[str]] = []
        os.close(writing)
        self._process.do(
            "import gc, logging, cystore, tests.support.processes.forked_writers\n"
            "from tests.support.processes.fork_server import fork, kill, knock, reap, wait_stopped\n"
            "logging.getLogger('cystore').addHandler(logging.NullHandler()); gc.freeze()"
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        os.close(self._reading)

    def begin(self) -> None:
        """Another store: ends who still lives (a case failed) and forgets what was acknowledged."""
        self.kill(*self.living)
        self.reap(*self.living)
        self._read()
        self.acknowledged, self._unfinished = [], b""

    def fork(self, life: str, failpoint: str = "", **names: Any) -> int:
        """A new writer with one of the lives of lives.py."""
        names["out"] = self._out
        pid = self._process.do("fork(life, failpoint, names)", life=life, failpoint=failpoint, names=names)
        self.living.append(pid)
        return pid

    def ask(self, source: str) -> Any:
        """The value of an expression in the fork server's own process."""
        return self._process.do(source)

    def knock(self, path: Path, **settings: Any) -> str:
        """The result of an open of the store: the error with its kind, or "opened"."""
        return self._process.do("knock(path, settings)", path=str(path), settings=settings)

    def go_on(self, pid: int) -> None:
        """SIGCONT."""
        self._process.do("kill(pids, number)", pids=[pid], number=signal.SIGCONT)

    def stop(self, *pids: int) -> None:
        """SIGSTOP; returns when they stand still."""
        self._process.do("kill(pids, number)", pids=pids, number=signal.SIGSTOP)
        for pid in pids:
            assert self.wait_stopped(pid), f"process {pid} ended"

    def send(self, number: int, *pids: int) -> None:
        """Does not wait for what the signal does."""
        self._process.do("kill(pids, number)", pids=pids, number=number)

    def end(self) -> None:
        """Everybody dies at once: of a fork server in a PID namespace of its own. Takes in what was acknowledged."""
        self._process.kill()
        os.set_blocking(self._reading, True)
        while self._read_once():
            pass
        self.living = []

    def kill(self, *pids: int) -> None:
        """SIGKILL. By their parent: to others their ids may mean nothing, or somebody else."""
        self._process.do("kill(pids, number)", pids=pids, number=signal.SIGKILL)

    def reap(self, *pids: int) -> list[int]:
        """Exit codes, once they have ended."""
        codes = self._process.do("reap(pids)", pids=pids)
        self.living = [pid for pid in self.living if pid not in pids]
        self.news()
        return codes

    def wait_stopped(self, pid: int) -> bool:
        """Returns when the process has stopped itself; False when it ended instead."""
        return self._process.do("wait_stopped(pid)", pid=pid)

    def news(self, count: int = 0) -> None:
        """Takes in what was acknowledged by now, and waits until `count` more puts were."""
        self._read()
        wanted, until = len(self.acknowledged) + count, time.monotonic() + WAIT_S
        while len(self.acknowledged) < wanted:
            if not select.select([self._reading], [], [], max(until - time.monotonic(), 0))[0]:
                raise TimeoutError(f"no put was acknowledged within {WAIT_S:.0f} s")
            self._read()

    def _read(self) -> None:
        while True:
            try:
                if not self._read_once():
                    raise EOFError("the herd is dead")
            except BlockingIOError:
                break

    def _read_once(self) -> bool:
        """False when nobody can write any more. Raises BlockingIOError while there is nothing new."""
        data = os.read(self._reading, PIPE_BYTES)
        self._unfinished += data
        *lines, self._unfinished = self._unfinished.split(b"\n")
        for line in lines:
            text = line.decode()
            assert not text.startswith("!"), text.replace("\0", "\n")
            self.acknowledged.append(text.split())
        return bool(data)


# ------------------------------------------------------------------------------------ in the fork server's process


def fork(life: str, failpoint: str, names: dict[str, Any]) -> int:
    """Forks a writer that lives one of the lives and then exits."""
    from tests.support.processes.forked_writers import LIVES

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if failpoint:
            os.environ["CYSTORE_FAILPOINT"] = failpoint
        LIVES[life](**names)
        code = 0
    except BaseException:  # noqa: BLE001 - told to the one who leads
        text = "!" + traceback.format_exc()[-3000:].replace("\n", "\0")
        os.write(names["out"], text.encode() + b"\n")
    finally:
        os._exit(code)


def kill(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def knock(path: str, settings: dict[str, Any]) -> str:
    try:
        cystore.open(path, **settings).close()
    except cystore.StoreError as error:
        return f"{type(error).__name__}: {error}"
    return "opened"


def reap(pids: Sequence[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def wait_stopped(pid: int) -> bool:
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


_LIBC = ctypes.CDLL(None)
