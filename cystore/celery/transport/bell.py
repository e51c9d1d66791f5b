"""Wakes a worker's event loop: a thread sleeps until somebody puts a message of the broker, and writes to an event
descriptor. Nothing polls; an idle worker wakes once a second, to look whether an owner of messages has died."""

from __future__ import annotations

import logging
import math
import os
import select
from collections.abc import Callable

from cystore import MessageStore, StoreError
from cystore.system.threads import os_threads

log = logging.getLogger("cystore.celery")

KEY = "celery-broker"  # of `wake_key`: somebody put a message, or gave one back
LOOK_S = 1.0


class Bell:
    """One for each connection. `look()` is called once a second by the thread, and says whether to ring."""

    def __init__(self, store: MessageStore, look: Callable[[], bool]) -> None:
        self._store, self._look, self._closed = store, look, False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pid, self._seen = os.getpid(), 0
        self._armed = os_threads.Lock()
        self._armed.acquire()
        self._thread: os_threads.Thread | None = None

    @property
    def closed(self) -> bool:
        """Whether another thread has closed the bell."""
        return self._closed

    def seen(self) -> int:
        """To be read before a look at the queues, and given to `arm` if that found nothing."""
        return self._store.key_seen(KEY)

    def arm(self, seen: int) -> None:
        """Rings once with the next message that is put after `seen` was read."""
        self._seen = seen
        if self._thread is None:
            self._thread = os_threads.Thread(self._run, "cystore-broker")
        if self._armed.locked():
            self._armed.release()

    def ring(self) -> None:
        """Makes `fd` readable."""
        if not self._closed:
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float | None) -> None:
        """Sleeps until the bell rings."""
        if not hasattr(select, "poll"):  # eventlet has none, and no descriptor above 1,023 either
            select.select([self.fd], [], [], timeout_s)
            return
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))

    def quiet(self) -> None:
        """Makes `fd` unreadable."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def _run(self) -> None:
        while True:
            self._armed.acquire()
            if self.closed:
                break
            try:
                while not self._store.wait_key(KEY, self._seen, LOOK_S) and not self.closed:
                    if self._look():
                        break
            except StoreError as error:
                if not self._store.closed:
                    log.warning(
                        "%s: the broker's messages are looked at once more: %s", self._store.path, error
                    )
            except Exception:  # without this thread the worker would sleep for ever
                log.exception("%s: the broker's messages are looked at once more", self._store.path)
            self.ring()
        os.close(self.fd)

    def close(self) -> None:
        """Ends the thread. A forked child only closes its descriptor."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None or self._pid != os.getpid():
            os.close(self.fd)
            return
        if self._armed.locked():
            self._armed.release()
        if not self._store.closed:
            self._store.wake_key(KEY)
