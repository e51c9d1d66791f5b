"""Python processes that begin in milliseconds: a server has the library imported and forks them.

`Python` takes the place of `subprocess.Popen` for `python -c CODE` and `python -m MODULE`. The first process of an
environment begins as any other; the next ones are forked. A forked process becomes a child of the test, so signals,
stops and exit codes are those of any child. It has its own descriptors, environment, folder, arguments and standard
streams. It shares with the server what was imported, and the seed of Python's hashes.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LATER = {"PYTEST_CURRENT_TEST", "CYSTORE_FAILPOINT"}  # read when they are needed, not when the process begins
REQUEST_BYTES_MAX = 100_000
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


class Server:
    """A process that forks others. It ends when its test process has closed the socket, or is dead."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = {name: value for name, value in environment.items() if name not in LATER}
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [given.get("PYTHONPATH", ""), str(ROOT)]))
        code = f"from {__name__} import serve, become\nbecome(serve({theirs.fileno()}))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=given,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def fork(self, request: bytes, descriptors: list[int]) -> int:
        """The id of a new child of this process."""
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the new one loses its parent and gets us
        try:
            socket.send_fds(self._line, [request], descriptors)
            answer = self._line.recv(100)
        finally:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise EOFError("the server that forks Python processes is dead")
        return int(answer)


class Python(subprocess.Popen[Any]):
    """A Python process, forked if its environment was used before."""

    _of: int = 0  # the process whose servers these are: a forked one is not their parent
    _servers: dict[frozenset[tuple[str, str]], Server] = {}
    _asked: Counter[frozenset[tuple[str, str]]] = Counter()
    _lock = threading.Lock()

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):  # type: ignore
        environment = dict(os.environ if env is None else env)
        request = {
            "words": args[1:],
            "cwd": str(cwd or os.getcwd()),
            "environment": environment,
            "numbers": [0, 1, 2, *pass_fds],
        }
        text = json.dumps(request).encode()
        pipes = more[3:9]  # of each standard stream the ends for reading and for writing; -1: it has ours
        streams = [number if end == -1 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        with self._lock:
            server = self._server_for(environment) if len(text) < REQUEST_BYTES_MAX else None
            if server is None:
                super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)
                return
            try:
                self.pid = server.fork(text, [*streams, *pass_fds])
                self._child_created = True
            finally:
                self._close_pipe_fds(*pipes)

    @classmethod
    def _server_for(cls, environment: dict[str, str]) -> Server | None:
        if cls._of != os.getpid():
            cls._of = os.getpid()
            cls._servers, cls._asked = {}, Counter()
        key = frozenset((name, value) for name, value in environment.items() if name not in LATER)
        cls._asked[key] += 1
        if key not in cls._servers and cls._asked[key] > 1:
            cls._servers[key] = Server(environment)
        return cls._servers.get(key)


# ------------------------------------------------------------------------------------------- in the server's process


def serve(number: int) -> dict[str, Any]:
    """Forks a process for each request. Returns in the forked process, with what it shall become."""
    import cystore.cli.program
    import cystore.store  # noqa: F401 - whoever is forked needs it

    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test's process
    gc.collect()
    gc.freeze()
    line = socket.socket(fileno=number)
    while True:
        text, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 50)
        if not text:
            os._exit(0)
        reading, writing = os.pipe()
        waiting, ended = os.pipe()
        between = os.fork()  # ends at once, so that the kernel gives its child to the test's process
        if not between:
            if child := os.fork():
                os.write(writing, b"%d" % child)
                os._exit(0)
            os.close(ended)
            os.read(waiting, 1)  # the end of the pipe: this process has its new parent
            for mine in (reading, writing, waiting):
                os.close(mine)
            line.close()
            signal.signal(signal.SIGINT, interrupted)
            request = json.loads(text)
            _take(descriptors, request["numbers"])
            return request
        os.close(writing)
        os.waitpid(between, 0)
        os.close(ended)
        line.send(os.read(reading, 100))
        for given in (reading, waiting, *descriptors):
            os.close(given)


def _take(descriptors: array.array[int], numbers: list[int]) -> None:
    """Gives the descriptors the numbers that they have in the test's process."""
    above = max(*numbers, *descriptors) + 1
    copies = [fcntl.fcntl(given, fcntl.F_DUPFD, above) for given in descriptors]
    for given in descriptors:
        os.close(given)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
        os.close(copy)


def become(request: dict[str, Any]) -> None:
    """Runs a command line's program as the interpreter does."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _standard_stream(number, f"<{name}>", getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    kind, program, *arguments = request["words"]
    if str(ROOT) not in request["environment"].get("PYTHONPATH", "").split(os.pathsep):
        sys.path.remove(str(ROOT))  # only the server needed it
    if not sys.flags.safe_path:
        sys.path[0] = "" if kind == "-c" else request["cwd"]
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), main.__dict__)


def _standard_stream(number: int, name: str, old: Any) -> io.TextIOWrapper:
    """As the interpreter makes them: Py_Initialize, create_stdio."""
    at_once = old.write_through  # PYTHONUNBUFFERED
    file = open(number, "wb" if number else "rb", 0 if number and at_once else -1, closefd=False)  # noqa: SIM115
    getattr(file, "raw", file).name = name
    by_line = not at_once and (number == 2 or file.isatty())
    stream = io.TextIOWrapper(file, old.encoding, old.errors, "\n" if number else None, by_line, at_once)
    stream.mode = old.mode
    return stream
