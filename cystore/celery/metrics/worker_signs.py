"""Signs of life of workers: their events in the log, and their processes on this host.

The log names the processes that ran tasks. On the host of the workers, this process sees which of them still have the
store open. That tells at once that a worker was killed, and that an idle one lives. Elsewhere (a replica on another
host, another PID namespace, another user) a worker counts as alive for `SILENT_MS` after its last event.
"""

from __future__ import annotations

import os
from itertools import pairwise

from cystore import MessageStore
from cystore.engine.inspect.control_head import attached_processes
from cystore.metrics.store_metrics import is_replica
from cystore.metrics.text import label_text
from cystore.services.duty_table import DUTIES
from cystore.system.platform import command_of, parent_of

SILENT_MS = 300_000
FORGOTTEN_MS = 24 * 3_600_000  # a worker that has been dead for so long is not shown any more
WORKERS_MOST, PIDS_MOST = 10_000, 1_024
OPTIONS = (
    "-A",
    "--app",
    "-n",
    "--hostname",
    "-Q",
    "--queues",
    "-b",
    "--broker",
)  # `worker` may be their value


class _Worker:
    __slots__ = ("last_ms", "main", "pids")

    def __init__(self) -> None:
        self.last_ms = 0
        self.main = 0  # its main process, 0: not known
        self.pids: dict[int, None] = {}


class WorkerSigns:
    """The workers of one log."""

    def __init__(self, *, is_worker: bool = False) -> None:
        self._own = {os.getpid()} if is_worker else set()
        self._workers: dict[str, _Worker] = {}
        self._attached: dict[int, str] = {}  # processes with the store open, and their command lines
        self._unnamed: set[int] = set()  # main processes of workers, whatever their names are
        self._has_seen = False  # this process has seen the process of a worker, so it can see those of others
        self._is_alone = False  # no other process has the store open
        self._sees_all = True  # no process of another PID namespace is attached

    def clear(self) -> None:
        """Another log follows."""
        self._workers.clear()

    def saw(self, name: str, pid: int, time_ms: int) -> None:
        """A worker wrote an event; `pid` 0: not known of which process."""
        name = label_text(name)
        worker = self._workers.get(name)
        if worker is None:
            if len(self._workers) >= WORKERS_MOST:
                del self._workers[min(self._workers, key=lambda one: self._workers[one].last_ms)]
            worker = self._workers[name] = _Worker()
        worker.last_ms = time_ms
        if pid and pid not in worker.pids:
            worker.pids[pid] = None
            if len(worker.pids) > PIDS_MOST:
                del worker.pids[next(iter(worker.pids))]

    def look(self, store: MessageStore) -> None:
        """Looks at the processes that have the store open. Call it before the log is read: what an ended process wrote
        is then read, too."""
        if is_replica(store):
            self._attached, self._unnamed = {}, set()
            self._has_seen = self._is_alone = False
            return
        own = os.getpid()
        processes = attached_processes(store.path)
        here = {process.pid: process.command for process in processes if process.pid_namespace is None}
        self._attached = {**here, own: command_of(own) or ""}
        self._sees_all = len(here) == len(processes)
        runs = (store.duties.last(duty) for duty in DUTIES)  # by a worker's main process
        self._unnamed = {run.pid for run in runs if run.pid in self._attached}
        self._unnamed |= {
            self._main_of(pid) for pid, command in self._attached.items() if _is_worker(command)
        }
        self._unnamed |= self._own
        self._is_alone = store._attached().ground is not None  # no process may append

    def settle(self) -> None:
        """Finds each worker among the processes; call it after the log was read."""
        for worker in self._workers.values():
            alive = [pid for pid in worker.pids if pid in self._attached]
            if alive:
                worker.main, self._has_seen = self._main_of(alive[-1]), self._sees_all
        if not self._sees_all:
            self._has_seen = False

    def _main_of(self, pid: int) -> int:
        """The worker that a process belongs to: of a pool's process the one that started it."""
        parent = parent_of(pid)
        if parent is None or parent not in self._attached:
            return pid
        command = self._attached[parent]
        return parent if command == self._attached[pid] or _is_worker(command) else pid

    def is_gone(self, pid: int) -> bool:
        """Whether a process that ran a task is known to have ended."""
        return bool(pid) and (self._has_seen or self._is_alone) and pid not in self._attached

    def alive(self, now_ms: int) -> dict[str, bool]:
        """Each worker's name, and whether it lives. Forgets the ones that have been dead for a day."""
        found = {name: self._is_alive(worker, now_ms) for name, worker in self._workers.items()}
        for name, lives in found.items():
            if not lives and now_ms - self._workers[name].last_ms > FORGOTTEN_MS:
                del self._workers[name]
        return {name: lives for name, lives in found.items() if name in self._workers}

    def last_ms(self, name: str) -> int:
        """The time of a worker's last event."""
        return self._workers[name].last_ms

    def count(self, alive: dict[str, bool]) -> int:
        """The number of workers that live, idle ones without an event included."""
        named = [self._workers[name] for name, lives in alive.items() if lives]
        return max(len(named), len(self._unnamed.union(worker.main for worker in named if worker.main)))

    def _is_alive(self, worker: _Worker, now_ms: int) -> bool:
        if worker.main and (self._has_seen or self._is_alone):
            return worker.main in self._attached or any(pid in self._attached for pid in worker.pids)
        return now_ms - worker.last_ms <= SILENT_MS and not self._is_alone


def _is_worker(command: str) -> bool:
    """Whether the command line of a process is that of a Celery worker, as its own or with a title of setproctitle."""
    words = command.replace("(", " ").split()
    return any("celery" in word for word in words) and any(
        word == "worker" and before not in OPTIONS for before, word in pairwise(words)
    )
