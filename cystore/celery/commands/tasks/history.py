"""`celery cystore history`: events and results, newest first."""

from __future__ import annotations

from itertools import islice

import click

from cystore.celery import history as queries
from cystore.celery.commands.shared import (
    app_store,
    command_options,
    entry_display,
    task_display,
    task_ids,
)
from cystore.celery.lifecycle import workflows


@click.command(
    "history",
    epilog=command_options.examples(
        "history 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11",
        "history 4b5c2a --full",
        "history --name shop.charge --state FAILED --since 2h",
        "history --worker celery@host1 --since 2h",
        "history --root-id 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11 --json --limit 0",
    ),
)
@click.argument("given_id", metavar="[ID]", required=False)
@click.option("--task-id", help="The whole life of one task: the same as ID.")
@click.option("--root-id", help="A whole workflow: its first task and all tasks below.")
@click.option("--group-id", help="All tasks of a group.")
@click.option("--worker", help="Events of a worker (its node name: celery@host).")
@command_options.conditions
@command_options.states_option("An event (FAILED) or a result's state (FAILURE); may be repeated.")
@command_options.limit_option(100)
@command_options.full_option
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, given_id: str | None, task_id: str | None, root_id: str | None, group_id: str | None,
    worker: str | None, name: str | None, begin_ms: int, end_ms: int | None, states: tuple[str, ...], limit: int,
    full: bool, all_homes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Events and results that meet every condition, newest first, a line each. Results have a = before their state.

    The beginning of an id is enough. Below a task that did not run, because another one failed, stands that one.
    """
    if given_id is not None and task_id is not None:
        raise click.UsageError("give the id once: as ID or with --task-id", ctx=ctx)
    task_id = task_id if given_id is None else given_id
    given = (
        ("ID" if given_id is not None else "--task-id", task_id),
        ("--root-id", root_id),
        ("--group-id", group_id),
        ("--worker", worker),
    )
    for option, value in given:
        if value == "":
            raise click.BadParameter("must not be empty", ctx=ctx, param_hint=option)
    found = False
    with app_store.reading_homes(ctx, all_homes) as store:
        command_options.check_states(store, states)
        life = None if task_id is None else task_ids.known_life(ctx, store, task_id)
        explained = None if life is None else workflows.explained(store, life, app_store.is_valid(ctx))
        task_id = None if life is None else life.task_id
        root_id = root_id and task_ids.known_root(ctx, store, root_id)
        group_id = group_id and task_ids.known_group(ctx, store, group_id)
        entries = queries.entries(
            store, task_id=task_id, root_id=root_id, group_id=group_id, worker=worker, name=name,
            states=states, begin_ms=begin_ms, end_ms=end_ms,
        )  # fmt: skip
        for entry in islice(entries, limit or None):
            found = True
            entry_display.write_entry(
                entry, as_json=as_json, full=full, name=None if explained is None else explained.life.name
            )
        if explained is not None and found:
            task_display.write_causes(explained.causes, as_json=as_json)
        if not found:
            app_store.nothing_found(ctx, store, "nothing meets these conditions")
