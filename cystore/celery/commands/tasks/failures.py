"""`celery cystore failures`: failed tasks, newest first."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from cystore.celery import history
from cystore.celery.commands.shared import app_store, command_options, entry_display, task_ids
from cystore.celery.lifecycle import workflows


@click.command(
    "failures",
    epilog=command_options.examples(
        "failures --since 1d",
        "failures --name shop.charge --traceback --limit 1",
        "failures 4b5c2a --traceback",
    ),
)
@click.argument("given_id", metavar="[ID]", required=False)
@command_options.conditions
@click.option("--traceback", "with_traceback", is_flag=True, help="Show each traceback below its failure.")
@command_options.limit_option(20)
@command_options.full_option
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    given_id: str | None,
    name: str | None,
    begin_ms: int,
    end_ms: int | None,
    with_traceback: bool,
    limit: int,
    full: bool,
    all_homes: bool,
    as_json: bool,
) -> None:
    """Runs that ended badly, newest first: failed, timed out, lost with their process, rejected, unknown.

    With ID (its beginning is enough) those of one task, and of the tasks whose failure kept it from running: the root
    cause comes last.
    """
    found = False
    span: dict[str, Any] = {"begin_ms": begin_ms, "end_ms": end_ms}
    with app_store.reading_homes(ctx, all_homes) as store:
        if given_id is None:
            entries = history.failures(store, name=name, **span)
        else:
            life = task_ids.known_life(ctx, store, given_id)
            explained = workflows.explained(store, life, app_store.is_valid(ctx))
            entries = workflows.failures_of(store, explained, name=name, **span)
        for entry in islice(entries, limit or None):
            found = True
            entry_display.write_entry(entry, as_json=as_json, with_traceback=with_traceback, full=full)
        if not found:
            app_store.nothing_found(ctx, store, "no failures")
