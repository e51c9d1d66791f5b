"""The ASGI app: addresses, and what each answers.

Every read of a store runs in a thread, a few at a time, so that a slow disk or a long search stops nobody's page.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from celery import Celery
from kombu.exceptions import OperationalError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cystore import MessageStore, StoreConfig, StoreError
from cystore.celery.lifecycle import actions, task_lives
from cystore.celery.metrics.log_follower import LogFollower
from cystore.metrics.exporter import Exporter
from cystore.metrics.listener import TEXT
from cystore.web import fleet_numbers, openapi, parameters, store_health, task_pages
from cystore.web.access import Access, Rates
from cystore.web.live import Live
from cystore.web.open_stores import OpenStores
from cystore.web.problems import Problem, bad, unavailable, unknown_task
from cystore.web.task_pages import Asked
from cystore.web.task_rows import KNOWN_STATES, Texts

log = logging.getLogger(__name__)

ASSETS = Path(__file__).parent / "assets"
READS_AT_ONCE = 4
ID_SHOWN = 100  # characters of a bad id in an error
RATE_PER_S, BURST = 200.0, 400.0
Result = TypeVar("Result")


class _Pages:
    """The answers of one app."""

    def __init__(self, stores: OpenStores, texts: Texts, celery: Celery | None) -> None:
        self.stores, self._texts, self._celery = stores, texts, celery
        self._live = Live(stores)
        self._exporter = Exporter(stores, LogFollower)
        self._turns: dict[bool, anyio.CapacityLimiter] = {}  # made in the loop that they belong to

    async def _read(self, look: Callable[..., Result], *arguments: Any, is_search: bool = False) -> Result:
        """`look` in a thread; searches have threads of their own. Raises Problem 503 where a store is away or
        damaged."""
        turns = self._turns.setdefault(is_search, anyio.CapacityLimiter(READS_AT_ONCE))
        try:
            return await anyio.to_thread.run_sync(lambda: look(*arguments), limiter=turns)
        except StoreError as error:
            raise unavailable(error) from error

    async def tasks(self, request: Request) -> Response:
        """A page of tasks."""
        asked = parameters.read(request.query_params, parameters.TASKS)
        state = asked["state"]
        if state is not None and state.upper() in KNOWN_STATES:
            state = state.upper()
        until = None if asked["until"] is None else max(0, asked["until"])
        conditions = Asked(
            asked["name"], state, asked["worker"], max(0, asked["since"] or 0), until, asked["text"]
        )

        def look() -> tuple[list[dict[str, Any]], str | None]:
            return task_pages.page_of(
                self.stores.source(), conditions, asked["limit"], asked["after"], self._texts
            )

        try:
            rows, following = await self._read(look, is_search=True)
        except ValueError as error:
            raise bad(str(error)) from error
        return JSONResponse({"tasks": rows, "next": following})

    async def task(self, request: Request) -> Response:
        """One task with its events."""
        parameters.read(request.query_params, ())
        task_id = _task_id(request)
        found = await self._read(lambda: task_pages.task_of(self.stores.source(), task_id, self._texts))
        if found is None:
            raise unknown_task(task_id)
        if self._celery is None:
            found = {**found, "actions": []}
        return JSONResponse(found)

    async def act(self, request: Request) -> Response:
        """An action on a task."""
        task_id, action = _task_id(request), request.path_params["action"]
        if action not in actions.ACTIONS:
            raise Problem(
                HTTPStatus.NOT_FOUND, f"there is no action {action!r}: {', '.join(actions.ACTIONS)}"
            )
        celery = self._celery
        if celery is None:
            raise Problem(
                HTTPStatus.FORBIDDEN, "this page only reads: start it with --allow-actions and a token"
            )
        parameters.read(request.query_params, ())

        def done() -> dict[str, Any]:
            source = self.stores.source()
            life = task_lives.life_of(source, task_id, self._texts.is_valid)
            if life is None:
                raise unknown_task(task_id)
            try:
                return actions.act(celery, source, life, action)
            except actions.ActionError as error:
                raise Problem(HTTPStatus.CONFLICT, str(error)) from error
            except OperationalError as error:
                detail = f"the broker cannot be reached, nothing was sent: {error}"
                raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, Retry_After="1") from error

        facts = await self._read(done)
        log.info("%s %s for %s", action, task_id, request.client.host if request.client else "?")
        return JSONResponse({"id": task_id, "action": action, **facts})

    async def workflow(self, request: Request) -> Response:
        """The workflow of a task: each task with its depth in the tree, and the chords."""
        parameters.read(request.query_params, ())
        task_id = _task_id(request)
        found = await self._read(lambda: task_pages.workflow_of(self.stores.source(), task_id, self._texts))
        if found is None:
            raise unknown_task(task_id)
        return JSONResponse(found)

    async def stats(self, request: Request) -> Response:
        """Counts and times in buckets, and by name."""
        asked = parameters.read(request.query_params, parameters.STATS)
        try:
            found = await self._read(
                lambda: fleet_numbers.stats_of(self.stores.source(), asked["since"], asked["step"]),
                is_search=True,
            )
        except ValueError as error:
            raise bad(str(error)) from error
        return JSONResponse(found)

    async def failures(self, request: Request) -> Response:
        """Failed runs by cause."""
        asked = parameters.read(request.query_params, parameters.FAILURES)
        return JSONResponse(
            await self._read(
                lambda: fleet_numbers.failures_of(
                    self.stores.source(), asked["name"], asked["since"], asked["limit"], self._texts
                ),
                is_search=True,
            )
        )

    async def workers(self, request: Request) -> Response:
        """Workers and what each runs."""
        asked = parameters.read(request.query_params, parameters.SPAN)
        return JSONResponse(
            await self._read(
                lambda: fleet_numbers.workers_of(self.stores.source(), asked["since"]), is_search=True
            )
        )

    async def health_of_stores(self, request: Request) -> Response:
        """How each store is."""
        parameters.read(request.query_params, ())
        return JSONResponse({"stores": await self._read(store_health.healths, self.stores)})

    async def healthz(self, request: Request) -> Response:
        """200 if every store can be read."""
        await self._read(store_health.check, self.stores)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Prometheus's text format."""
        text = await self._read(self._exporter.text)
        return PlainTextResponse(text, media_type=TEXT)

    async def events(self, request: Request) -> Response:
        """Server-sent events."""
        return StreamingResponse(
            self._live.watch(),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no", "cache-control": "no-store"},
        )


def _task_id(request: Request) -> str:
    """The id in the address. Raises Problem 404 for one that no task can have."""
    task_id: str = request.path_params["task_id"]
    if not 0 < len(task_id) <= parameters.CHARS_MOST:
        raise unknown_task(task_id[:ID_SHOWN])
    return task_id


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    return Problem(status, f"{request.method} {request.url.path}: {error.detail}").response()


def create_app(
    stores: str | os.PathLike[str] | MessageStore | Iterable[str | os.PathLike[str] | MessageStore],
    *,
    token: str | None = None,
    url_prefix: str = "",
    allowed_hosts: Iterable[str] | None = None,
    rate_per_s: float | None = RATE_PER_S,
    config: StoreConfig | None = None,
    texts: Texts | None = None,
    allow_actions: bool = False,
    celery: Celery | None = None,
) -> Starlette:
    """The ASGI app of some stores: paths of directories, or open handles. It only reads, unless `allow_actions` lets
    clients with the token rerun, revoke and cancel tasks of the Celery app `celery`.

    Mount it into another app, or serve it by itself. Without a `token` everybody who reaches it may read.
    `allowed_hosts` are the names under which it may be asked without a token; None: any. `rate_per_s` are the requests
    that one client may send in a second, over a longer time; None: any number.
    """
    if token is not None and not token:
        raise ValueError("token must not be empty")
    if allow_actions and (token is None or celery is None):
        raise ValueError("allow_actions needs a token, and the Celery app whose broker gets the actions")
    opened = OpenStores(stores, config)
    pages = _Pages(opened, texts or Texts(), celery if allow_actions else None)

    async def page(request: Request) -> Response:
        return FileResponse(ASSETS / "index.html", media_type="text/html; charset=utf-8")

    async def described(request: Request) -> Response:
        return JSONResponse(openapi.description(prefix, actions.ACTIONS if allow_actions else ()))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        opened.close()

    prefix = "/" + url_prefix.strip("/") if url_prefix.strip("/") else ""
    rates = None if rate_per_s is None else Rates(rate_per_s, rate_per_s * BURST / RATE_PER_S)
    hosts = None if allowed_hosts is None else tuple(name.lower() for name in allowed_hosts)
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/api/tasks", pages.tasks),
            Route("/api/tasks/{task_id:path}/{action}", pages.act, methods=["POST"]),
            Route("/api/tasks/{task_id:path}", pages.task),
            Route("/api/workflows/{task_id:path}", pages.workflow),
            Route("/api/stats", pages.stats),
            Route("/api/failures", pages.failures),
            Route("/api/workers", pages.workers),
            Route("/api/stores", pages.health_of_stores),
            Route("/api/openapi.json", described),
            Route("/healthz", pages.healthz),
            Route("/metrics", pages.metrics),
            Route("/events", pages.events),
            Mount("/assets", StaticFiles(directory=ASSETS)),
        ],
        middleware=[Middleware(Access, token=token, hosts=hosts, prefix=prefix, rates=rates)],
        exception_handlers={Problem: _problem, HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.state.stores, app.state.prefix = opened, prefix
    return app
