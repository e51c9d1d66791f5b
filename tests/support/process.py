"""Other processes that a test leads by the hand: each runs the statements it is sent and answers with the value of
the last one.

A process is of the build under test, or of another one when it is given that build's environment. It may be killed or
stopped at any time; what it answered before is known to have happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes.forked_python import Python

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90.0  # a process that says nothing for so long hangs

# Runs in the child. Its standard output becomes standard error, so that nothing else gets between the answers.
LOOP = """
import ast, json, os, sys
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
def as_json(value):
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray, memoryview)) else repr(value)
names = {"__name__": "__main__"}
for line in sys.stdin:
    source, given = json.loads(line)
    names.update(given)
    try:
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<sent>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<sent>", "eval"), names) if last else None
        answer = {"value": value}
    except Exception as error:
        answer = {"kind": type(error).__name__, "text": str(error)}
    answers.write(json.dumps(answer, default=as_json) + "\\n")
"""


class Failed(Exception):
    """The other process raised: `kind` is the exception's class name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Process:
    """A Python process beside the test; it inherits the descriptors `keep`. A context manager: it is killed at the
    end unless it ended by itself. `through` is a command that starts it somewhere else, and dies with it. Only a
    `fresh` one has nothing imported: others may be forked (see forked_python.py)."""

    def __init__(
        self,
        environment: dict[str, str] | None = None,
        *,
        keep: Sequence[int] = (),
        through: Sequence[str] = (),
        fresh: bool = False,
    ) -> None:
        given = {**os.environ} if environment is None else dict(environment)
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [given.get("PYTHONPATH", ""), str(ROOT)]))
        if through and "LD_PRELOAD" in given:  # that is for the interpreter, not for the command before it
            through = (*through, "env", f"LD_PRELOAD={given.pop('LD_PRELOAD')}")
        start = subprocess.Popen if through or fresh else Python
        self._process = start(
            [*through, sys.executable, "-c", LOOP],
            cwd=ROOT,
            env=given,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=keep,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def send(self, source: str, **names: Any) -> None:
        """Sends statements, with names that they may use; does not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([source, names]) + "\n")

    @property
    def answers(self) -> int:
        """The descriptor that can be read when there is an answer, or the process is dead."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def answer(self) -> Any:
        """The value of the last expression of what was sent longest ago. Raises Failed, EOFError when the process is
        dead."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
            self.signal(signal.SIGABRT)
            raise TimeoutError(f"process {self.pid} did not answer within {TIMEOUT_S:.0f} s")
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise EOFError(f"process {self.pid} is dead")
        answer = json.loads(line)
        if "kind" in answer:
            raise Failed(answer["kind"], answer["text"])
        return answer["value"]

    def do(self, source: str, **names: Any) -> Any:
        """Sends statements and waits for the answer."""
        self.send(source, **names)
        return self.answer()

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def wait(self) -> int:
        """The exit code, below 0 for a signal, once the process has ended."""
        return self._process.wait(TIMEOUT_S)

    def wait_stopped(self) -> None:
        """Returns when the process has stopped itself."""
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is not None:
                assert found.si_code == os.CLD_STOPPED, f"process {self.pid} ended instead"
                return
            select.select([], [], [], 0.002)
        raise TimeoutError(f"process {self.pid} did not stop")

    def end(self) -> None:
        """Lets the process leave by itself and checks that it did so well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self.wait()
        assert code == 0, f"process {self.pid} ended with {code}"
        self._close()

    def kill(self) -> None:
        """SIGKILL, unless it ended before."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def processes(count: int, environment: dict[str, str] | None = None) -> Iterator[list[Process]]:
    """So many processes, started at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Process(environment)) for _ in range(count)]
