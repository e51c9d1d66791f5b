"""The description of the API (OpenAPI 3.1), from the parameters that the app reads and the fields that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cystore import __version__
from cystore.web import parameters
from cystore.web.answers import actions
from cystore.web.parameters import Parameter
from cystore.web.problems import TYPE

TEXT: dict[str, Any] = {"type": ["string", "null"]}
NUMBER: dict[str, Any] = {"type": ["number", "null"]}
TIME: dict[str, Any] = {"type": ["string", "null"], "format": "date-time"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}

# Field of a task: its schema.
TASK_FIELDS: dict[str, dict[str, Any]] = {
    "id": {"type": "string"},
    "name": TEXT,
    "state": {
        "type": "string",
        "description": "Celery's word: PENDING, RECEIVED, STARTED, SUCCESS, FAILURE, ...",
    },
    "event": {
        **TEXT,
        "description": "the event that put it there: SENT, ..., SUCCEEDED, TIMED_OUT, CHILD_LOST",
    },
    "worker": TEXT,
    "queue": TEXT,
    "sent": TIME,
    "due": {**TIME, "description": "not before this time, for a task with an ETA or a countdown"},
    "received": TIME,
    "started": TIME,
    "ended": TIME,
    "wait_s": {**NUMBER, "description": "from sent (or due) to started"},
    "run_s": NUMBER,
    "store_s": {
        **NUMBER,
        "description": "from the record of the result to the end of the run, a part of run_s",
    },
    "retries": COUNT,
    "args": TEXT,
    "kwargs": TEXT,
    "result": {"description": "null for a result that is not JSON, or too long for the list"},
    "result_type": TEXT,
    "result_bytes": {"type": ["integer", "null"]},
    "error": TEXT,
    "traceback": TEXT,
    "parent_id": TEXT,
    "root_id": TEXT,
    "group_id": TEXT,
    "rerun_of": TEXT,
}
PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
ERRORS = {
    "400": "an argument is bad",
    "401": "the token is missing or wrong",
    "404": "unknown id",
    "429": "too many requests",
    "503": "a store is away or damaged",
}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _list(field: str) -> dict[str, Any]:
    return _object({"since": TIME, "partial": {"type": "boolean"}, field: OBJECTS})


def _parameter(one: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": one.name,
        "in": "query",
        "description": one.help,
        "schema": {**dict(one.schema), **({} if one.default is None else {"default": one.default})},
    }
    return {**told, "example": one.example} if one.example else told


def _in_path(name: str, what: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": what}


TASK_ID = _in_path("task_id", "the id of a task")
SCHEDULE = _in_path("name", "the name of a schedule")
TOPIC = _in_path("topic", "the name of a topic")


def _operation(
    summary: str,
    known: Iterable[Parameter],
    schema: dict[str, Any],
    *errors: str,
    media: str = "application/json",
    within: dict[str, Any] | None = None,
) -> dict[str, Any]:
    codes = sorted({"400", "401", "429", "503", *errors})
    problem = {"content": {TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    return {
        "summary": summary,
        "parameters": [*([within] if within else []), *map(_parameter, known)],
        "responses": {
            "200": {"description": summary, "content": {media: {"schema": schema}}},
            **{code: {"description": ERRORS.get(code, "not allowed"), **problem} for code in codes},
        },
    }


def _actions() -> Iterator[tuple[str, dict[str, Any]]]:
    text = {"type": "string"}
    errors = ("403", "404", "409")
    for action in actions.ACTIONS:
        done = _object({"id": text, "action": text})
        yield (
            f"/api/tasks/{{task_id}}/{action}",
            _operation(f"{action} a task", (), done, *errors, within=TASK_ID),
        )
    for action in actions.ON_SCHEDULES:
        done = _object({"name": text, "action": text})
        yield (
            f"/api/schedules/{{name}}/{action}",
            _operation(f"{action} a schedule", (), done, *errors, within=SCHEDULE),
        )
    done = _object({"topic": text, "action": text, "messages": COUNT})
    yield (
        f"/api/topics/{{topic}}/{actions.PURGE}",
        _operation("Remove the messages of a topic", (), done, *errors, within=TOPIC),
    )
    done = _object({"action": text, "segments": COUNT})
    yield f"/api/stores/{actions.CLEAN}", _operation("Remove what has expired", (), done, *errors)


def description(prefix: str, *, with_actions: bool = False) -> dict[str, Any]:
    """The whole description."""
    task = {"$ref": "#/components/schemas/Task"}
    names = {"type": "array", "items": {"type": "string"}}
    alone = {"allOf": [task, _object({"events": OBJECTS, "actions": names})]}
    page = _object({"tasks": {"type": "array", "items": task}, "next": TEXT})
    workflow = _object({"root_id": TEXT, "tasks": OBJECTS, "chords": OBJECTS, "more": {"type": "boolean"}})
    buckets = _object({"since": TIME, "until": TIME, "step_s": NUMBER, "buckets": OBJECTS, "names": OBJECTS})
    text = {"type": "string"}
    gets: dict[str, dict[str, Any]] = {
        "/api/tasks": _operation("Tasks, newest first", parameters.TASKS, page),
        "/api/tasks/{task_id}": _operation("One task with its events", (), alone, "404", within=TASK_ID),
        "/api/workflows/{task_id}": _operation(
            "The workflow of a task, as a tree", (), workflow, "404", within=TASK_ID
        ),
        "/api/stats": _operation("Counts and times over time, and by name", parameters.STATS, buckets),
        "/api/failures": _operation("Failed runs by cause", parameters.FAILURES, _list("failures")),
        "/api/workers": _operation("Workers, and what each runs", parameters.SPAN, _list("workers")),
        "/api/eta": _operation(
            "Tasks that wait for their ETA, the next one first",
            parameters.WAITING,
            _object({"tasks": OBJECTS, "next": TEXT, "actions": names}),
        ),
        "/api/schedules": _operation(
            "Schedules, the next one first", (), _object({"schedules": OBJECTS, "actions": names})
        ),
        "/api/schedules/{name}": _operation(
            "One schedule with its history",
            (),
            _object({"name": {"type": "string"}, "history": OBJECTS, "actions": names}),
            "404",
            within=SCHEDULE,
        ),
        "/api/topics/{topic}": _operation(
            "Messages of a topic, newest first",
            parameters.MESSAGES,
            _object({"store": TEXT, "topic": TEXT, "messages": OBJECTS, "next": TEXT}),
            "404",
            within=TOPIC,
        ),
        "/api/stores": _operation("How the stores are", (), _object({"stores": OBJECTS, "actions": names})),
        "/healthz": _operation("200 if every store can be read", (), _object({"status": text})),
        "/metrics": _operation("Metrics in Prometheus's text format", (), text, media="text/plain"),
        "/events": _operation("Server-sent events, one for each append", (), text, media="text/event-stream"),
    }
    paths: dict[str, dict[str, Any]] = {path: {"get": operation} for path, operation in gets.items()}
    if with_actions:
        paths |= {path: {"post": operation} for path, operation in _actions()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "cystore", "version": __version__, "description": "Tasks on the durable log"},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {"schemas": {"Task": _object(TASK_FIELDS), "Problem": PROBLEM}},
    }
