"""A small HTTP server that answers `GET /metrics`. It needs the standard library alone, so a worker can have it.

A client that is slow, or says nothing, loses its connection after `HEAD_S`. When `CONNECTIONS_MOST` are connected, the
client that the server has waited for the longest loses it at once. So such clients, however many, keep nobody out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from cystore.clock import monotonic_s
from cystore.errors import StoreConfigError, StoreResourceError
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

CONNECTIONS_MOST = 32
BACKLOG = 2048
HEAD_S, HEAD_BYTES = 5.0, 8192
SEND_S = 30.0
ACCEPT_S = 0.5  # between two looks whether the server is to end
PORT_MOST = 65_535
TEXT = "text/plain; version=0.0.4; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"


def address_of(text: str) -> tuple[str, int]:
    """The host and port of HOST:PORT, [HOST]:PORT or PORT, which is of this host alone. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= PORT_MOST):
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to {PORT_MOST}")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    return host or "127.0.0.1", int(port)


def bound(host: str, port: int, remedy: str) -> socket.socket:
    """A socket that listens there. Raises StoreConfigError, which ends with the remedy."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(BACKLOG)
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreConfigError(f"cannot listen on {host} port {port}: {reason}: {remedy}") from error
    return made


class Listener:
    """Listens on an address, and answers in threads of `threading`, a few at once. `text` gives the metrics."""

    def __init__(self, listening: socket.socket, text: Callable[[], str]) -> None:
        self._socket, self._text = listening, text
        self._socket.settimeout(ACCEPT_S)
        self._free = threading.BoundedSemaphore(CONNECTIONS_MOST)
        # The clients that must send or read on, the longest wait first.
        self._awaited: dict[socket.socket, None] = {}
        self._awaited_lock = threading.Lock()
        self._ends = False
        self._trouble = Trouble()
        host, port = listening.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        _listeners.add(self)

    def serve(self) -> None:
        """Answers until `stop`."""
        while not self._ends:
            self.serve_once()

    def serve_once(self) -> None:
        """Waits a while for a client, and begins its answer."""
        if not self._free.acquire(blocking=False):
            self._drop_slowest()
            if not self._free.acquire(timeout=ACCEPT_S):
                return
        try:
            client, _ = self._socket.accept()
        except (TimeoutError, ConnectionError):  # nobody came, or the client is gone again
            self._free.release()
            return
        except OSError as error:
            self._free.release()
            if not self._ends:  # no descriptor is free: the client waits
                self._trouble.tell(log, logging.WARNING, error, "a client of the metrics waits")
                os_threads.pause(ACCEPT_S)
            return
        try:
            os_threads.begin(lambda: self._answer(client), "cystore-metrics-answer")
        except StoreResourceError as error:
            log.warning("a client of the metrics got no answer: %s", error)
            client.close()
            self._free.release()

    def stop(self) -> None:
        """Ends `serve`, and gives the port back."""
        self._ends = True
        self.close()

    def close(self) -> None:
        """Closes the port in this process; called in a forked child, it stays open in the parent."""
        _listeners.discard(self)
        self._socket.close()

    def _drop_slowest(self) -> None:
        """Ends the connection of the client that the server has waited for the longest."""
        with self._awaited_lock:
            for client in self._awaited:
                with contextlib.suppress(OSError):  # the client has ended it
                    client.shutdown(socket.SHUT_RDWR)
                del self._awaited[client]
                return

    @contextmanager
    def _awaiting(self, client: socket.socket) -> Iterator[None]:
        """While the block waits for a client, its connection may be dropped for another one."""
        with self._awaited_lock:
            self._awaited[client] = None
        try:
            yield
        finally:
            with self._awaited_lock:
                self._awaited.pop(client, None)

    def _answer(self, client: socket.socket) -> None:
        try:
            with client:
                with self._awaiting(client):
                    head = _head(client)
                status, media, text = self._answered(head)
                body = text.encode()
                lines = (
                    f"HTTP/1.1 {status.value} {status.phrase}",
                    f"Content-Type: {media}",
                    f"Content-Length: {len(body)}",
                    *(("Allow: GET",) if status is HTTPStatus.METHOD_NOT_ALLOWED else ()),
                    "Connection: close",
                    "",
                    "",
                )
                client.settimeout(SEND_S)
                with self._awaiting(client):
                    client.sendall("\r\n".join(lines).encode() + body)
                client.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("a client of the metrics left: %s", error)
        finally:
            self._free.release()

    def _answered(self, head: bytes) -> tuple[HTTPStatus, str, str]:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return HTTPStatus.BAD_REQUEST, PLAIN, "this is no request of HTTP/1.1\n"
        if words[0] != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, "only GET is answered here\n"
        if words[1].partition("?")[0] != "/metrics":
            return HTTPStatus.NOT_FOUND, PLAIN, "the metrics are at /metrics\n"
        try:
            return HTTPStatus.OK, TEXT, self._text()
        except Exception as error:  # the server must go on
            log.exception("the metrics cannot be read")
            return HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, f"the metrics cannot be read: {error}\n"


def _head(client: socket.socket) -> bytes:
    """The head of a request, or as much of it as came in time. Raises OSError."""
    until_s, head = monotonic_s() + HEAD_S, b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
        client.settimeout(max(until_s - monotonic_s(), 0.001))
        data = client.recv(HEAD_BYTES)
        if not data:
            break
        head += data
    return head


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forked() -> None:
    """The port is the parent's: a child that lives longer would keep it."""
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_forked)
