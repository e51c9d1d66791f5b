"""`celery cystore schedules`: the schedules that the store keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from cystore import MessageStore
from cystore.celery.commands.eta import When
from cystore.celery.commands.shared import app_store, command_options, task_display
from cystore.celery.schedules import due_times, entries
from cystore.celery.schedules.due_times import ScheduleError
from cystore.celery.schedules.entries import MISSED, ONCE, Entry
from cystore.celery.schedules.past_runs import past_runs
from cystore.operate.command import FOUND_WRONG, duration_of
from cystore.operate.output import one_line, write_json, write_line


@click.group(
    "schedules", invoke_without_command=True, epilog=command_options.examples("schedules", "schedules --json")
)
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Schedules in the store: beat's, and those that are made here. Changes hold at once.

    Without a further word it lists them, the next one first.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx, as_json)


def _changed(ctx: click.Context, name: str, done: str, change: Callable[[MessageStore], bool]) -> None:
    location = app_store.location_of(ctx)
    with app_store.changing(location, ctx) as store:
        try:
            found = change(store)
        except ScheduleError as error:
            raise app_store.CommandError(one_line(str(error))) from error
    write_line(task_display.line(name, done if found else "there is no such schedule"))
    if not found:
        ctx.exit(FOUND_WRONG)


def _json(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error
    wanted = list if param.name == "args" else dict
    if not isinstance(value, wanted):
        raise click.BadParameter(f"{text!r} is not a JSON {'list' if wanted is list else 'object'}")
    return value


@command.command(
    "add",
    epilog=command_options.examples(
        "schedules add nightly shop.tasks.clean --crontab '30 2 * * *' --timezone Europe/Berlin",
        "schedules add pulse shop.tasks.pulse --every 30s --missed skip",
        "schedules add launch shop.tasks.open --at 2027-01-01T09:00+01:00 --args '[17]'",
    ),
)
@click.argument("name")
@click.argument("task")
@click.option("--every", help="A duration: 30s, 15m, 2h, 7d.")
@click.option("--crontab", help="Minute, hour, day of the month, month, day of the week.")
@click.option("--timezone", default="UTC", show_default=True, help="Of the crontab.")
@click.option("--solar", nargs=3, help="An event of the sun, latitude and longitude: sunrise 52.5 13.4.")
@click.option("--at", "at_ms", type=When(), help="Once: ISO 8601 with a zone, or a duration from now.")
@click.option("--args", callback=_json, help="Positional arguments, a JSON list.")
@click.option("--kwargs", callback=_json, help="Keyword arguments, a JSON object.")
@click.option("--queue", help="The queue for the task.")
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default=ONCE,
    show_default=True,
    help="What becomes of missed runs.",
)
@click.pass_context
def add(
    ctx: click.Context, name: str, task: str, every: str | None, crontab: str | None, timezone: str,
    solar: tuple[str, str, str] | None, at_ms: int | None, args: Any, kwargs: Any, queue: str | None, missed: str,
) -> None:  # fmt: skip
    """Make a schedule, or replace the one of that name."""
    when: dict[str, Any] = {}
    if every is not None:
        try:
            when["every_ms"] = duration_of(every)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--every") from error
    if crontab is not None:
        when |= {"crontab": crontab, "timezone": timezone}
    if solar:
        when["solar"] = [solar[0], float(solar[1]), float(solar[2])]
    if at_ms is not None:
        when["at_ms"] = at_ms
    options = {"queue": queue} if queue else {}
    made: list[Entry] = []

    def put(store: MessageStore) -> bool:
        made.append(
            entries.add(
                store, name, task, when, args=args or (), kwargs=kwargs, options=options, missed=missed
            )
        )
        return True

    _changed(ctx, name, "is kept", put)
    write_line(task_display.line(due_times.text_of(when), f"due at {task_display.at(made[0].due_ms)}"))


@command.command("list", epilog=command_options.examples("schedules list", "schedules list --json"))
@command_options.json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """All schedules, the next one first."""
    _list(ctx, as_json)


def _list(ctx: click.Context, as_json: bool) -> None:
    with app_store.reading(app_store.location_of(ctx)) as store:
        known = list(entries.listed(store))
        for entry in known:
            if as_json:
                write_json(json.loads(entry.body()))
                continue
            state = task_display.at(entry.due_ms) if entry.enabled else "paused"
            write_line(
                task_display.line(
                    state,
                    entry.name,
                    entry.task,
                    due_times.text_of(entry.when),
                    f"runs={entry.runs}",
                    entry.source,
                )
            )
        if not known:
            app_store.nothing_found(ctx, store, "this store keeps no schedule")


@command.command("pause", epilog=command_options.examples("schedules pause nightly"))
@click.argument("name")
@click.pass_context
def pause(ctx: click.Context, name: str) -> None:
    """Stop a schedule until it is resumed."""
    _changed(ctx, name, "is paused", lambda store: entries.pause(store, name))


@command.command("resume", epilog=command_options.examples("schedules resume nightly"))
@click.argument("name")
@click.pass_context
def resume(ctx: click.Context, name: str) -> None:
    """Let a paused schedule run again, from now on."""
    _changed(ctx, name, "runs again", lambda store: entries.resume(store, name))


@command.command("run", epilog=command_options.examples("schedules run nightly"))
@click.argument("name")
@click.pass_context
def run(ctx: click.Context, name: str) -> None:
    """Run a schedule now; a worker does it within a second, and its next due time is counted from now."""
    _changed(ctx, name, "runs now", lambda store: entries.run_now(store, name))


@command.command("delete", epilog=command_options.examples("schedules delete nightly"))
@click.argument("name")
@click.pass_context
def delete(ctx: click.Context, name: str) -> None:
    """End a schedule. Its history stays until it expires."""
    _changed(ctx, name, "is deleted", lambda store: entries.delete(store, name))


@command.command(
    "history",
    epilog=command_options.examples("schedules history nightly --json"),
)
@click.argument("name")
@command_options.limit_option(20)
@command_options.json_option
@click.pass_context
def history(ctx: click.Context, name: str, limit: int, as_json: bool) -> None:
    """The runs of a schedule, newest first: when each was due and sent, its task and what became of it."""
    with app_store.reading(app_store.location_of(ctx)) as store:
        found = 0
        for one in past_runs(store, name, limit or 10_000):
            found += 1
            if as_json:
                write_json(one)
                continue
            write_line(
                task_display.line(
                    task_display.at(one["due_ms"]),
                    one["run"],
                    one.get("task_id") or "-",
                    one["outcome"],
                    one_line(one.get("error", "")),
                )
            )
        if not found:
            app_store.nothing_found(ctx, store, "there is no run of such a schedule")
