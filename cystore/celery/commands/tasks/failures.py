"""`celery cystore failures`: failed tasks, newest first."""

from __future__ import annotations

from itertools import islice

import click

from cystore.celery import history
from cystore.celery.commands.shared import common


@click.command(
    "failures",
    epilog=common.examples("failures --since 1d", "failures --name shop.charge --traceback --limit 1"),
)
@common.conditions
@click.option("--traceback", "with_traceback", is_flag=True, help="Show each traceback below its failure.")
@common.limit_option(20)
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    name: str | None,
    begin_ms: int,
    end_ms: int | None,
    with_traceback: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Runs that ended badly, newest first: failed, timed out, lost with their process, rejected, unknown."""
    found = False
    with common.reading(common.location_of(ctx)) as store:
        for entry in islice(
            history.failures(store, name=name, begin_ms=begin_ms, end_ms=end_ms), limit or None
        ):
            found = True
            common.write_entry(entry, as_json=as_json, with_traceback=with_traceback)
    if not found:
        common.nothing_found(ctx, "no failures")
