"""`celery cystore diff`: the differences between two tasks."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import click

from cystore import MessageStore
from cystore.celery.commands.shared import app_store, command_options, task_display, task_ids
from cystore.celery.lifecycle import reruns
from cystore.celery.lifecycle.task_lives import Life
from cystore.operate.output import one_line, write_json, write_line, write_note

AROUND = 20  # characters shown before the first difference of two long texts
FIELDS = (
    "name", "args", "kwargs", "outcome", "stage", "exception", "retries", "queue", "worker", "pid", "root_id",
    "parent_id",
    "group_id", "home", "result_state", "result_type", "result_bytes", "rerun_of",
)  # fmt: skip
BODY = "message"
TIMES = ("wait_s", "runtime_s", "whole_s")


@click.command(
    "diff",
    epilog=command_options.examples(
        "diff 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11 0f6f1d2e-7c39-4a53-8e0b-6f0f0f4d6a22",
        "diff ID ID --all --json",
    ),
)
@click.argument("first", metavar="ID")
@click.argument("second", metavar="ID")
@click.option("--all", "show_all", is_flag=True, help="Show equal fields, too.")
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, first: str, second: str, show_all: bool, as_json: bool) -> None:
    """Differences between two tasks: arguments, times, worker, outcome, a line each. Exit code 1: one of them is not
    known.

    Arguments and errors are compared as far as the log keeps them (cystore_lifecycle_args_chars). If it keeps the
    messages of both (cystore_lifecycle_payload), their bodies are compared as well: the whole arguments.
    """
    with app_store.reading(app_store.location_of(ctx)) as store:
        found = [task_ids.known_life(ctx, store, task_id) for task_id in (first, second)]
        bodies = [_body(store, life) for life in found]
    told = [{**dict(zip(FIELDS, _fields(life), strict=True)), **_times(life)} for life in found]
    rows = [(field, told[0][field], told[1][field]) for field in (*FIELDS, *TIMES)]
    if None not in bodies:
        rows.append((BODY, bodies[0], bodies[1]))
    wanted = [row for row in rows if row[1] != row[2] or (show_all and row[1] is not None)]
    if as_json:
        write_json({field: list(values) for field, *values in wanted})
        return
    if not wanted:
        write_note("only the ids and the times differ")
    width = max((len(field) for field, *_ in wanted), default=0)
    for field, left, right in wanted:
        for number, text in enumerate(_texts(left, right)):
            write_line(f"{'' if number else field:<{width}}  {'-+='[2 if left == right else number]} {text}")
            if left == right:
                break


def _body(store: MessageStore, life: Life) -> str | None:
    """The body of a task's message, as its serializer made it; None if it is not kept."""
    try:
        return reruns.logged_message(store, life.task_id).body.decode("utf-8", "backslashreplace")
    except reruns.RerunError:
        return None


def _fields(life: Life) -> list[Any]:
    """The values of FIELDS. A task that is its own root has none to compare."""
    return [
        None if field == "root_id" and life.root_id == life.task_id else getattr(life, field)
        for field in FIELDS
    ]


def _times(life: Life) -> dict[str, float | None]:
    """The values of TIMES: the wait of the last run, the run time of its code, and both together."""
    begin_ms = life.sent_ms if life.again_ms is None else life.again_ms
    whole = None if life.ended_ms is None or begin_ms is None else max(0, life.ended_ms - begin_ms) / 1000
    return {
        "wait_s": None if life.wait_ms is None else life.wait_ms / 1000,
        "runtime_s": life.runtime_s,
        "whole_s": whole,
    }


def _texts(*values: Any) -> list[str]:
    """Both values on a line each; of long texts the part around the first difference."""
    texts = ["not known" if value is None else str(value) for value in values]
    same = 0
    if max(map(len, texts)) > task_display.TEXT_CHARS:
        same = next((n for n, (a, b) in enumerate(zip_longest(*texts)) if a != b), 0)
    begin = max(0, same - AROUND)
    return [one_line(("..." if begin else "") + task_display.short(text[begin:])) for text in texts]
