"""A thread that rings for the one that serves slaves when a put waits for them: that one sleeps on sockets, which no
append can wake."""

from __future__ import annotations

import socket

from cystore._native.memory.control import Control
from cystore.errors import StoreClosedError
from cystore.ha.acknowledged import WANTED
from cystore.ha.link.sockets import ours
from cystore.system.threads import os_threads

SLEEP_MS = 1000


class Bell:
    """`hears` becomes readable when somebody waits for slaves."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._stopping = os_threads.Flag()
        ears, mouth = socket.socketpair()
        self.hears, self._mouth = ours(ears), ours(mouth)
        for one in (self.hears, self._mouth):
            one.setblocking(False)
        self._thread = os_threads.Thread(self._run, "cystore-ha-bell")

    def _run(self) -> None:
        try:
            seen = self._control.key_seq(WANTED)
            while not self._stopping.is_set():
                self._control.wait_key(WANTED, seen, SLEEP_MS)
                now = self._control.key_seq(WANTED)
                if now != seen:
                    seen = now
                    self._ring()
        except StoreClosedError:
            return

    def _ring(self) -> None:
        try:
            self._mouth.send(b"!")
        except BlockingIOError:
            return  # it rings already

    def heard(self) -> None:
        """Becomes silent until somebody waits again."""
        try:
            while self.hears.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._stopping.set()
        if not self._control.closed:
            self._control.wake_key(WANTED)
        self._thread.join()
        self.hears.close()
        self._mouth.close()
