"""`celery cystore slow`: the runs that took, or waited, longest."""

from __future__ import annotations

import click

from cystore.celery import history
from cystore.celery.commands.shared import app_store, command_options, task_display
from cystore.celery.lifecycle import searches
from cystore.celery.lifecycle.task_lives import Life
from cystore.operate.output import write_json, write_table

MOST = 10_000  # this many are kept in memory while the log is read


@click.command(
    "slow",
    epilog=command_options.examples(
        "slow --since 1d", "slow --by wait --name shop.charge", "slow --each-name --json"
    ),
)
@click.option(
    "--by", "sort", type=click.Choice(list(searches.SLOW_KINDS)), default="run", show_default=True,
    help="run: the time of the task's code; wait: from when it was sent, or due, until its code began.",
)  # fmt: skip
@click.option("--each-name", is_flag=True, help="Show only the slowest run of each task name.")
@command_options.conditions
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=20, show_default=True, help="Show at most this number."
)
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, sort: searches.Sort, each_name: bool, name: str | None, begin_ms: int, end_ms: int | None,
    limit: int, all_homes: bool, as_json: bool,
) -> None:  # fmt: skip
    """The tasks that ran or waited longest, slowest first, with both times. Percentiles of each name: see `top`."""
    with app_store.reading_homes(ctx, all_homes) as store:
        found = history.events(
            store, name=name, states=searches.SLOW_KINDS[sort], begin_ms=begin_ms, end_ms=end_ms
        )
        newest_first = task_display.watched(store, found, lines_follow=False)
        slowest = searches.slowest(store, newest_first, sort, limit, by_name=each_name)
        if not slowest:
            app_store.nothing_found(ctx, store, "the lifecycle log has no run")
    if not as_json:
        _table(sort, slowest)
        return
    for seconds, life in slowest:
        write_json({f"{sort}_s": seconds, **task_display.life_object(life)})


def _table(sort: searches.Sort, slowest: list[tuple[float, Life]]) -> None:
    rows = []
    for seconds, life in slowest:
        run = seconds if sort == "run" else life.runtime_s
        wait = seconds if sort == "wait" else None if life.wait_ms is None else life.wait_ms / 1000
        times = ["" if one is None else task_display.duration_text(one) for one in (run, wait)]
        state = life.outcome or life.stage or "?"
        rows.append(
            (
                *times,
                state,
                life.name or "-",
                life.task_id,
                life.worker or "-",
                task_display.at(life.started_ms),
            )
        )
    write_table(("run", "wait", "state", "task", "id", "worker", "began"), rows)
