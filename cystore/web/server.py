"""The server of the page: uvicorn around the app, for `cystore web` and `celery -A APP cystore web`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
import ssl
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from celery import Celery
from uvicorn.protocols.http.h11_impl import H11Protocol

from cystore import StoreConfig
from cystore.errors import StoreConfigError
from cystore.metrics.listener import bound
from cystore.web.access import LOOPBACK
from cystore.web.answers.task_rows import Texts
from cystore.web.app import create_app

HOST, PORT = "127.0.0.1", 5556
TOKEN_VARIABLE = "CYSTORE_WEB_TOKEN"
SLOW_S = 20.0  # for the whole head of a request: a client that hangs loses its connection
IDLE_S = 15
LEAVE_S = 2  # for answers that are still being sent when the server ends
FILES_MOST = 65_536  # the server raises its limit of open files to this, where the system lets it
ACCEPTED_AT_ONCE = 256
OWN_FILES = 256  # beside connections


class _Room:
    """The open connections, as many as the limit of open files has room for. A further one takes the place of the one
    that has been waiting longest for a request to come: so clients that hang keep nobody out."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._waiting: dict[_Protocol, None] = {}

    @classmethod
    def of_this_process(cls) -> _Room:
        """Raises the limit of open files as far as it may be."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        files = FILES_MOST if soft == resource.RLIM_INFINITY else soft
        return cls(max(files - ACCEPTED_AT_ONCE - OWN_FILES, files // 4))

    def enter(self, connection: _Protocol) -> None:
        """A connection was made."""
        self._count += 1
        if self._count > self._most:
            oldest = next(iter(self._waiting), connection)
            self.stop_waiting(oldest)
            oldest.transport.abort()

    def leave(self, connection: _Protocol) -> None:
        """A connection has ended."""
        self._count -= 1
        self.stop_waiting(connection)

    def wait(self, connection: _Protocol) -> None:
        """A connection waits for a request."""
        self._waiting[connection] = None

    def stop_waiting(self, connection: _Protocol) -> None:
        """Its request is there."""
        self._waiting.pop(connection, None)


class _Protocol(H11Protocol):
    """HTTP/1.1 in which a client may not take for ever to send a request."""

    _room: _Room  # of the server
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._room.enter(self)
        if not transport.is_closing():
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin the next request at once
        if self.cycle.response_complete:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._room.leave(self)
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(SLOW_S, self._close_late)
        self._room.wait(self)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._room.stop_waiting(self)

    def _close_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def _protocol_in(room: _Room) -> type[_Protocol]:
    class Protocol(_Protocol):
        _room = room

    return Protocol


class _Server(uvicorn.Server):
    """Says its address once it can be asked."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(f"{self._url}\n")
            sys.stdout.flush()


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address. A name counts as such if it is `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Raises StoreConfigError for files that TLS cannot be served with."""
    if certificate is None:
        if key is not None:
            raise StoreConfigError("--key is the key of --certificate: give both")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        what = f"--certificate {certificate}" + ("" if key is None else f", --key {key}")
        hint = " (without --key the file must have the key, too)" if key is None else ""
        raise StoreConfigError(f"{what}: TLS cannot be served with it{hint}: {error}") from error


def serve(
    stores: Sequence[Path],
    *,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    url_prefix: str = "",
    allowed_hosts: Iterable[str] = (),
    rate_per_s: float | None,
    certificate: Path | None = None,
    key: Path | None = None,
    config: StoreConfig | None = None,
    texts: Texts | None = None,
    celery: Celery | None = None,
) -> None:
    """Serves the page until Ctrl-C or SIGTERM; writes its address when it can be asked. With `celery`, clients with the
    token may act on the tasks of that app. Raises StoreConfigError for what may not be served and for a port in use,
    StoreError for a store that cannot be read."""
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not is_loopback(host):
        raise StoreConfigError(
            f"--host {host} is reached from other hosts: give --token TOKEN, or set {TOKEN_VARIABLE}"
        )
    if token is None and celery is not None:
        raise StoreConfigError(f"--allow-actions needs --token TOKEN, or {TOKEN_VARIABLE}")
    _check_certificate(certificate, key)
    app = create_app(
        stores,
        token=token,
        url_prefix=url_prefix,
        allowed_hosts=(*LOOPBACK, host, *allowed_hosts),
        rate_per_s=rate_per_s,
        config=config,
        texts=texts,
        allow_actions=celery is not None,
        celery=celery,
    )
    opened = app.state.stores
    try:
        for path in opened.paths:
            opened.open(path)
        with bound(host, port, "give another --host or --port") as listening:
            shown = f"[{host}]" if ":" in host else host
            scheme = "http" if certificate is None else "https"
            url = f"{scheme}://{shown}:{listening.getsockname()[1]}{app.state.prefix}/"
            options = uvicorn.Config(
                app,
                http=_protocol_in(_Room.of_this_process()),
                backlog=ACCEPTED_AT_ONCE,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=LEAVE_S,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
            _Server(options, url).run([listening])
    finally:
        opened.close()
