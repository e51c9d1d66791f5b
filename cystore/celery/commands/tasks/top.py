"""`celery cystore top`: which tasks run most, fail most, take longest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.lifecycle import statistics
from cystore.celery.lifecycle.statistics import NameStats
from cystore.operate.output import write_json, write_table

PERCENTILES = (50, 95, 99)
ORDERS: dict[str, Callable[[NameStats], Any]] = {
    "count": lambda one: one.count,
    "failures": lambda one: one.failed,
    "runtime": lambda one: one.runtimes.percentile(95) or 0.0,
}


def _object(one: NameStats) -> dict[str, Any]:
    return {
        "name": one.name,
        "count": one.count,
        "succeeded": one.succeeded,
        "failed": one.failed,
        "failure_rate": one.failure_rate,
        "retried": one.retried,
        **{f"runtime_p{percent}_s": one.runtimes.percentile(percent) for percent in PERCENTILES},
    }


def _row(one: NameStats) -> tuple[object, ...]:
    times = (one.runtimes.percentile(percent) for percent in PERCENTILES)
    shown = ("" if seconds is None else f"{seconds:.3g} s" for seconds in times)
    return (one.name or "-", one.count, one.failed, f"{one.failure_rate:.1%}", one.retried, *shown)


@click.command(
    "top", epilog=command_options.examples("top --since 1h", "top --sort failures --limit 5 --json")
)
@command_options.conditions
@click.option(
    "--sort", type=click.Choice(list(ORDERS)), default="count", show_default=True, help="Sort by this column."
)
@command_options.limit_option(20)
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    name: str | None,
    begin_ms: int,
    end_ms: int | None,
    sort: str,
    limit: int,
    all_homes: bool,
    as_json: bool,
) -> None:
    """Task names with their runs, failures, retries, and the runtimes of 50, 95 and 99 % of them (within 1 %)."""
    with app_store.reading_homes(ctx, all_homes) as store:
        found = statistics.by_name(store, name=name, begin_ms=begin_ms, end_ms=end_ms)
        if not found:
            app_store.nothing_found(ctx, store, "the lifecycle log has no ended task")
    found.sort(key=ORDERS[sort], reverse=True)
    shown = found[: limit or None]
    if as_json:
        for one in shown:
            write_json(_object(one))
    else:
        head = ("task", "runs", "failed", "rate", "retried", *(f"p{percent}" for percent in PERCENTILES))
        write_table(head, [_row(one) for one in shown])
