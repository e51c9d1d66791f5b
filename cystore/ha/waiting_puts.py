"""Wakes the thread that serves slaves when a put waits for them.

That thread sleeps on sockets, and a put in another process cannot write to its sockets. So a second thread sleeps on a
word in shared memory, without the interpreter's lock, and writes a byte into a socket that the first thread selects. A
put in this process writes that byte itself (`Control.ring`).
"""

from __future__ import annotations

import socket

from cystore._native.memory.control import Control
from cystore._native.replication import outflow
from cystore.errors import StoreClosedError
from cystore.ha.link.sockets import ours
from cystore.ha.slave_progress import WANTED
from cystore.system.threads import os_threads

SLEEP_MS = 1000


class WaitingPuts:
    """`socket` becomes readable when a put waits for slaves."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._stopping = os_threads.Flag()
        reading, writing = socket.socketpair()
        self.socket, self._writing = ours(reading), ours(writing)
        for one in (self.socket, self._writing):
            one.setblocking(False)
        self._thread = os_threads.Thread(self._run, "cystore-ha-puts")
        control.bell = self._writing.fileno()

    def _run(self) -> None:
        try:
            seen = self._control.key_seq(WANTED)
            while not self._stopping.is_set():
                seen = outflow.relay(self._control, WANTED, seen, SLEEP_MS)
        except StoreClosedError:
            return

    def clear(self) -> None:
        """Makes `socket` unreadable until a put waits again."""
        try:
            while self.socket.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._control.bell = -1
        self._stopping.set()
        if not self._control.closed:
            self._control.wake_key(WANTED)
        self._thread.join()
        self.socket.close()
        self._writing.close()
