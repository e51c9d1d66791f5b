"""The ASGI app: addresses, and what each answers.

Every read of a store runs in a thread, a few at a time, so that a slow disk or a long search stops nobody's page.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
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
from cystore.celery.lifecycle import task_lives
from cystore.celery.metrics.log_follower import LogFollower
from cystore.metrics.exporter import Exporter
from cystore.metrics.listener import TEXT
from cystore.operate.output import one_line
from cystore.web import openapi, parameters
from cystore.web.access import Access, Rates
from cystore.web.answers import (
    actions,
    fleet_numbers,
    schedules,
    store_health,
    task_pages,
    topic_messages,
    waiting_tasks,
    workers,
)
from cystore.web.answers.open_stores import OpenStores
from cystore.web.answers.pages import CursorError
from cystore.web.answers.task_pages import Asked
from cystore.web.answers.task_rows import KNOWN_STATES, Texts
from cystore.web.live import Live
from cystore.web.problems import Problem, bad, missing, unavailable, unknown_task

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
        self._live, self._lives = Live(stores), workers.Lives()
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
        except CursorError as error:
            raise bad(str(error)) from error

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

        within_s = asked["within"]
        bounds = {} if within_s is None else {"time_s": within_s, "empty_s": within_s}

        def look() -> tuple[list[dict[str, Any]], str | None]:
            return task_pages.page_of(
                self.stores.source(), conditions, asked["limit"], asked["after"], self._texts, **bounds
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
        task_id, action = _task_id(request), _action(request, actions.ACTIONS)

        def done(celery: Celery) -> dict[str, Any]:
            source = self.stores.source()
            life = task_lives.life_of(source, task_id, self._texts.is_valid)
            if life is None and not actions.waits(source, task_id):
                raise unknown_task(task_id)
            return actions.act(celery, source, life, task_id, action)

        facts = await self._done(request, f"{action} {task_id}", done)
        return JSONResponse({"id": task_id, "action": action, **facts})

    async def act_on_schedule(self, request: Request) -> Response:
        """An action on a schedule."""
        name, action = request.path_params["name"], _action(request, tuple(actions.ON_SCHEDULES))

        def done(celery: Celery) -> dict[str, Any]:
            if not actions.act_on_schedule(celery, name, action):
                raise missing(f"the app's store keeps no schedule {name[:ID_SHOWN]!r}")
            return {}

        await self._done(request, f"{action} schedule {name}", done)
        return JSONResponse({"name": name, "action": action})

    async def purge(self, request: Request) -> Response:
        """Removes the messages of a topic."""
        topic = request.path_params["topic"]
        facts = await self._done(request, f"purge {topic}", lambda celery: actions.purge(celery, topic))
        return JSONResponse({"topic": topic, "action": actions.PURGE, **facts})

    async def clean(self, request: Request) -> Response:
        """Removes what has expired."""
        facts = await self._done(request, actions.CLEAN, actions.clean)
        return JSONResponse({"action": actions.CLEAN, **facts})

    async def _done(
        self, request: Request, what: str, act: Callable[[Celery], dict[str, Any]]
    ) -> dict[str, Any]:
        """Does an action, and gives facts for the answer. Raises Problem."""
        celery = self._celery
        if celery is None:
            raise Problem(
                HTTPStatus.FORBIDDEN, "this page only reads: start it with --allow-actions and a token"
            )
        parameters.read(request.query_params, ())

        def done() -> dict[str, Any]:
            try:
                return act(celery)
            except actions.ActionError as error:
                raise Problem(HTTPStatus.CONFLICT, str(error)) from error
            except OperationalError as error:
                detail = f"the broker cannot be reached, nothing was sent: {error}"
                raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, Retry_After="1") from error

        facts = await self._read(done)
        log.info("%s for %s", one_line(what), request.client.host if request.client else "?")
        return facts

    async def waiting(self, request: Request) -> Response:
        """A page of the tasks that wait for their ETA."""
        asked = parameters.read(request.query_params, parameters.WAITING)

        def look() -> tuple[list[dict[str, Any]], str | None]:
            return waiting_tasks.waiting_page(
                self.stores.source(), asked["name"], asked["limit"], asked["after"], self._texts
            )

        rows, following = await self._read(look, is_search=True)
        shown = [] if self._celery is None else [actions.FIRE, actions.CANCEL]
        return JSONResponse({"tasks": rows, "next": following, "actions": shown})

    async def schedules(self, request: Request) -> Response:
        """All schedules."""
        parameters.read(request.query_params, ())
        rows = await self._read(lambda: schedules.schedules_of(self.stores.source(), self._texts))
        return JSONResponse({"schedules": rows, "actions": self._on_schedules})

    async def schedule(self, request: Request) -> Response:
        """One schedule with its history."""
        parameters.read(request.query_params, ())
        name = request.path_params["name"]
        found = await self._read(lambda: schedules.schedule_of(self.stores.source(), name, self._texts))
        if found is None:
            raise missing(f"no store here keeps a schedule {name[:ID_SHOWN]!r}")
        return JSONResponse({**found, "actions": self._on_schedules if "task" in found else []})

    @property
    def _on_schedules(self) -> list[str]:
        return [] if self._celery is None else list(actions.ON_SCHEDULES)

    async def messages(self, request: Request) -> Response:
        """Messages of a topic."""
        asked = parameters.read(request.query_params, parameters.MESSAGES)
        path, topic = self._path_of(asked["store"]), request.path_params["topic"]

        def look() -> tuple[list[dict[str, Any]], str | None]:
            store = self.stores.open(path)
            return topic_messages.messages_page(
                store, topic, asked["queue"], asked["limit"], asked["after"], self._texts
            )

        try:
            rows, following = await self._read(look, is_search=True)
        except topic_messages.UnknownTopicError as error:
            raise missing(str(error)) from error
        return JSONResponse({"store": str(path), "topic": topic, "messages": rows, "next": following})

    def _path_of(self, given: str | None) -> Path:
        """The store that a request means. Raises Problem."""
        if given is None:
            return self.stores.paths[0]
        if Path(given) not in self.stores.paths:
            raise bad(f"store: {given!r} is none of this page: {', '.join(map(str, self.stores.paths))}")
        return Path(given)

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
                lambda: fleet_numbers.stats_of(
                    self.stores.source(), asked["since"], asked["until"], asked["step"]
                ),
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
                lambda: workers.workers_of(self.stores.source(), asked["since"], self._lives), is_search=True
            )
        )

    async def health_of_stores(self, request: Request) -> Response:
        """How each store is."""
        parameters.read(request.query_params, ())
        found = await self._read(store_health.healths, self.stores)
        shown = [] if self._celery is None else [actions.CLEAN, actions.PURGE]
        return JSONResponse({"stores": found, "actions": shown})

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


def _action(request: Request, known: Sequence[str]) -> str:
    """The action in the address. Raises Problem 404 for one that there is not."""
    action: str = request.path_params["action"]
    if action not in known:
        raise missing(f"there is no action {action[:ID_SHOWN]!r}: {', '.join(known)}")
    return action


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
    clients with the token act on the tasks, schedules and topics of the Celery app `celery`.

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
        return JSONResponse(openapi.description(prefix, with_actions=allow_actions))

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
            Route("/api/eta", pages.waiting),
            Route("/api/schedules", pages.schedules),
            Route("/api/schedules/{name:path}/{action}", pages.act_on_schedule, methods=["POST"]),
            Route("/api/schedules/{name:path}", pages.schedule),
            Route("/api/topics/{topic:path}/purge", pages.purge, methods=["POST"]),
            Route("/api/topics/{topic:path}", pages.messages),
            Route("/api/stores", pages.health_of_stores),
            Route("/api/stores/clean", pages.clean, methods=["POST"]),
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
