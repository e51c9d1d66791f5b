"""A project of Django in a folder: its commands, its server as a process of its own, and people who visit it.

`python -m tests.support.celery.django_site` is that server.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.structure.sources import ROOT
from tests.support.celery.web import TIMEOUT_S, Answer, WebServer

SERVER = (sys.executable, "-m", "tests.support.celery.django_site")
MANAGE = (sys.executable, "-m", "examples.django.manage")
PASSWORD = "only for a test"


class Site:
    """The example's project, with a database and a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "tests.support.celery.django_settings",
            "APP_DATABASE": f"{folder}/db.sqlite3",
            "APP_STORE": str(self.store),
        }

    def manage(self, *words: str, code: int | None = 0, **settings: Any) -> subprocess.CompletedProcess[str]:
        """A command of `manage.py`, with settings of its own."""
        done = subprocess.run(
            [*MANAGE, *words], cwd=ROOT, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, **self.environment, "MORE_SETTINGS": json.dumps(settings)},
        )  # fmt: skip
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def shell(self, source: str) -> Any:
        """What a script in the project writes, as JSON."""
        return json.loads(self.manage("shell", "-c", source).stdout.splitlines()[-1])

    def tables(self) -> None:
        """Makes the tables, once for each process of pytest."""
        self.manage("migrate", "--run-syncdb", "--verbosity=0")

    def server(self) -> WebServer:
        """The project's server."""
        return WebServer(command=SERVER, **self.environment)


class Visitor:
    """Somebody with a browser, logged in or not."""

    def __init__(self, url: str, name: str = "") -> None:
        self._url, self._cookies = url, CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self._cookies), urllib.request.ProxyHandler({})
        )
        if name:
            self.get("admin/login/")
            fields = {"username": name, "password": PASSWORD, "next": "/admin/"}
            assert self.post("admin/login/", fields).status == 200

    def get(self, path: str, **query: str) -> Answer:
        """A page, behind its redirects."""
        return self._asked(
            urllib.request.Request(f"{self._url}{path}{'?' + urlencode(query) if query else ''}")
        )

    def post(self, path: str, fields: dict[str, str], *, token: bool = True) -> Answer:
        """A form of a page; without its token, as a page of another site would send it."""
        given = dict(fields)
        if token:
            given["csrfmiddlewaretoken"] = next(
                one.value or "" for one in self._cookies if one.name == "csrftoken"
            )
        return self._asked(urllib.request.Request(f"{self._url}{path}", urlencode(given).encode()))

    def _asked(self, request: urllib.request.Request) -> Answer:
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as got:
                return Answer(got.status, got.headers, got.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


def shown(answer: Answer) -> str:
    """The text of a page."""
    return unescape(re.sub(r"<[^>]*>", " ", answer.body.decode()))


def main() -> None:
    """Serves the project until it is ended; writes the address first."""
    import django

    django.setup()
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
