"""The page's server as a process of its own, and requests to it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message

from tests.structure.sources import ROOT
from tools.processes import ends_with_us

TIMEOUT_S = 120.0
CYSTORE = (sys.executable, "-m", "cystore", "web")


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def asked(url: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
    """The answer to one request, whatever its status is."""
    request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as got:
            return Answer(got.status, got.headers, got.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


def status_of(app: ASGIApp, address: str) -> int:
    """The status of an app's answer, without a server."""
    sent: list[Message] = []
    scope = {
        "type": "http", "method": "GET", "path": address, "raw_path": address.encode(), "query_string": b"",
        "headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "client": ("c", 1),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await app(scope, receive, send)

    asyncio.run(ask())
    return int(sent[0]["status"])


class WebServer:
    """A server that runs until the end of the context; `url` ends with a slash."""

    def __init__(self, *words: str | Path, command: tuple[str, ...] = CYSTORE, **environment: str) -> None:
        self.process = subprocess.Popen(
            ends_with_us([*command, *map(str, words), "--port", "0"]),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise AssertionError(f"no server: {self.process.communicate(timeout=TIMEOUT_S)}")

    def __enter__(self) -> WebServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> str:
        """Ends the server; what it wrote to standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=TIMEOUT_S)[1]

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: object) -> Answer:
        """The answer for a path below the address."""
        return asked(f"{self.url}{quote(path)}{'?' + urlencode(query) if query else ''}", headers)

    def json(self, path: str, **query: object) -> Any:
        """The same, decoded; it must not be an error."""
        answer = self.get(path, **query)
        assert answer.status == 200, answer.body
        return answer.json

    def ids(self, **query: object) -> list[str]:
        """The ids of all tasks that meet the conditions, page by page."""
        return [task["id"] for task in self.tasks(**query)]

    def tasks(self, **query: object) -> Iterator[dict[str, Any]]:
        """These tasks."""
        after = {}
        while True:
            page = self.json("api/tasks", **query, **after)
            yield from page["tasks"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}
