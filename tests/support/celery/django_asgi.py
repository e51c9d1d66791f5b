"""The example's project of Django with the page on tasks below /tasks/, served by uvicorn: a process of its own."""

from __future__ import annotations

import socket
import sys

import django
import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

import cystore.web


def application() -> Starlette:
    """As docs/web.md shows it."""
    page = cystore.web.create_app(
        [settings.CELERY_RESULT_BACKEND.removeprefix("cystore://")], token="a long secret"
    )
    return Starlette(routes=[Mount("/tasks", page), Mount("/", get_asgi_application())])


def main() -> None:
    """Serves until it is ended; writes the address first."""
    django.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        uvicorn.Server(uvicorn.Config(application(), log_level="warning")).run([listening])


if __name__ == "__main__":
    sys.exit(main())
