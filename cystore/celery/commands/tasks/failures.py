"""`celery cystore failures`: failed tasks, newest first."""

from __future__ import annotations

from itertools import islice

import click

from cystore.celery import history
from cystore.celery.commands.shared import app_store, command_options, entry_display


@click.command(
    "failures",
    epilog=command_options.examples(
        "failures --since 1d", "failures --name shop.charge --traceback --limit 1"
    ),
)
@command_options.conditions
@click.option("--traceback", "with_traceback", is_flag=True, help="Show each traceback below its failure.")
@command_options.limit_option(20)
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    name: str | None,
    begin_ms: int,
    end_ms: int | None,
    with_traceback: bool,
    limit: int,
    all_homes: bool,
    as_json: bool,
) -> None:
    """Runs that ended badly, newest first: failed, timed out, lost with their process, rejected, unknown."""
    found = False
    with app_store.reading_homes(ctx, all_homes) as store:
        for entry in islice(
            history.failures(store, name=name, begin_ms=begin_ms, end_ms=end_ms), limit or None
        ):
            found = True
            entry_display.write_entry(entry, as_json=as_json, with_traceback=with_traceback)
    if not found:
        app_store.nothing_found(ctx, "no failures")
