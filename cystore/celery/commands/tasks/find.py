"""`celery cystore find`: tasks by the text of their arguments or errors."""

from __future__ import annotations

from itertools import islice

import click

from cystore.celery.commands.shared import app_store, command_options, task_display
from cystore.celery.lifecycle import searches
from cystore.celery.lifecycle.task_lives import Life
from cystore.operate.output import write_json, write_line


@click.command(
    "find",
    epilog=command_options.examples(
        "find --args order-17",
        "find --error 'connection refused' -i --since 2d",
        "find --args 17 --error Timeout --json",
    ),
)
@click.option(
    "--args", "args_text", metavar="TEXT", help="Search the kept text of positional and keyword arguments."
)
@click.option("--error", "error_text", metavar="TEXT", help="Search exceptions and tracebacks.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@command_options.conditions
@command_options.limit_option(20)
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, args_text: str | None, error_text: str | None, ignore_case: bool, name: str | None,
    begin_ms: int, end_ms: int | None, limit: int, all_homes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Tasks with a text in their arguments or errors, each once, newest first; with both options tasks that have both.

    Arguments are kept to cystore_lifecycle_args_chars, tracebacks to cystore_lifecycle_traceback_chars; find does not
    see the rest.
    """
    if not args_text and not error_text:
        raise click.UsageError("give --args TEXT, --error TEXT, or both", ctx=ctx)
    wanted = searches.Wanted(args_text or None, error_text or None, ignore_case=ignore_case)
    found = False
    with app_store.reading_homes(ctx, all_homes) as store:
        entries = wanted.entries(store, name=name, begin_ms=begin_ms, end_ms=end_ms)
        newest_first = task_display.watched(store, entries, lines_follow=True)
        for life in islice(
            searches.find(store, newest_first, wanted, app_store.is_valid(ctx)), limit or None
        ):
            found = True
            _write(life, as_json)
        if not found:
            app_store.nothing_found(ctx, store, "no task contains that text")


def _write(life: Life, as_json: bool) -> None:
    if as_json:
        write_json(task_display.life_object(life))
        return
    error = task_display.short(life.exception) if life.exception else ""
    write_line(
        task_display.line(
            task_display.at(life.first_ms),
            *task_display.life_words(life),
            task_display.short(task_display.call_text(life)),
            error,
        )
    )
