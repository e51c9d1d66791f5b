"""The server of the page: uvicorn around the app, for `cystore web` and `celery -A APP cystore web`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
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


class _Protocol(H11Protocol):
    """HTTP/1.1 in which a client may not take for ever to send a request."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
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
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(SLOW_S, self._close_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


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
    if (key is None) != (certificate is None):
        raise StoreConfigError("--certificate and --key belong together: give both")
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
                http=_Protocol,
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
