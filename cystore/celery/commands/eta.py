"""`celery cystore eta`: the tasks that wait in the store for their ETA."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import click

from cystore import MessageStore
from cystore.celery.commands.shared import app_store, command_options, task_display
from cystore.celery.eta import waiting
from cystore.celery.eta.waiting import WaitingTask
from cystore.clock import now_ms
from cystore.operate.command import FOUND_WRONG, duration_of
from cystore.operate.output import write_json, write_line


class When(click.ParamType):
    """A time: ISO 8601 with a zone, or a duration from now (90s, 15m, 2h, 7d)."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Ms since 1970."""
        if isinstance(value, int):
            return value
        text = str(value)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            try:
                return now_ms() + duration_of(text)
            except ValueError as error:
                self.fail(
                    f"{text!r} is neither an ISO 8601 time nor a duration such as 90s, 15m, 2h, 7d: {error}"
                )
        if moment.tzinfo is None:
            self.fail(f"{text!r} has no time zone: write for example {text}+00:00")
        return int(moment.timestamp() * 1000)


@click.group(
    "eta",
    invoke_without_command=True,
    epilog=command_options.examples("eta", "eta --name shop.remind --json"),
)
@click.option("--name", help="Only tasks of this name.")
@command_options.limit_option(100)
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, name: str | None, limit: int, as_json: bool) -> None:
    """Tasks that wait in the store for their ETA, the next one first.

    They are there if the app has cystore_durable_eta_after_s, or calls cystore.celery.install(app).
    """
    if ctx.invoked_subcommand is not None:
        return
    found = 0
    with app_store.reading(app_store.location_of(ctx)) as store:
        for task in waiting.waiting(store):
            if name in (None, task.name):
                found += 1
                _write(task, as_json)
                if limit and found == limit:
                    break
        if not found:
            app_store.nothing_found(ctx, store, "no task waits in this store for its ETA")


def _write(task: WaitingTask, as_json: bool) -> None:
    if as_json:
        write_json({
            "task_id": task.task_id, "name": task.name, "due": task_display.at(task.due_ms), "due_ms": task.due_ms,
            "queue": task.message.routing_key,
        })  # fmt: skip
        return
    left = task_display.duration_text(max(task.due_ms - now_ms(), 0) / 1000)
    write_line(
        task_display.line(
            task_display.at(task.due_ms),
            f"in {left}",
            task.task_id,
            task.name,
            f"queue={task.message.routing_key}",
        )
    )


def _change(
    ctx: click.Context, task_ids: tuple[str, ...], done: str, change: Callable[[MessageStore, str], bool]
) -> None:
    location, missed = app_store.location_of(ctx), 0
    if not all(task_ids):
        raise click.BadParameter("must not be empty", ctx=ctx, param_hint="ID")
    with app_store.changing(location, ctx) as store:
        for task_id in task_ids:
            if change(store, task_id):
                write_line(task_display.line(task_id, done))
            else:
                missed += 1
                write_line(task_display.line(task_id, "does not wait in this store"))
    if missed:
        ctx.exit(FOUND_WRONG)


@command.command("cancel", epilog=command_options.examples("eta cancel 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11"))
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@click.pass_context
def cancel(ctx: click.Context, task_ids: tuple[str, ...]) -> None:
    """Withdraw tasks: they will not run, and their state becomes REVOKED."""
    app = ctx.obj.app
    _change(
        ctx, task_ids, "cancelled", lambda store, task_id: bool(waiting.cancel_all(app, store, [task_id]))
    )


@command.command("fire", epilog=command_options.examples("eta fire 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11"))
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@click.pass_context
def fire(ctx: click.Context, task_ids: tuple[str, ...]) -> None:
    """Make tasks due now; a worker sends them to the broker within a second."""
    app = ctx.obj.app
    _change(ctx, task_ids, "is due now", lambda store, task_id: waiting.fire(app, store, task_id))


@command.command("move", epilog=command_options.examples("eta move 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11 2h"))
@click.argument("task_id", metavar="ID")
@click.argument("when", metavar="TIME", type=When())
@click.pass_context
def move(ctx: click.Context, task_id: str, when: int) -> None:
    """Give a task another due time: 2027-01-01T09:00+01:00, or 2h from now."""
    app = ctx.obj.app
    _change(
        ctx,
        (task_id,),
        f"is due at {task_display.at(when)}",
        lambda store, one: waiting.move(app, store, one, when),
    )
