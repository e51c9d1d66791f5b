"""`celery cystore queues`: what waits in a broker in a store, and who has the rest."""

from __future__ import annotations

import click

from cystore.celery.commands.shared import app_store, broker, command_options, task_display
from cystore.celery.move import BrokerQueue, Holder, listed
from cystore.clock import now_ms
from cystore.operate.output import one_line, time_text, write_json, write_line, write_table

COMMAND_CHARACTERS = 60


@click.command("queues", epilog=command_options.examples("queues", "queues --json"))
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """The queues of a broker in a store: messages that are ready, those that workers have, the age of the oldest one.

    Rates are messages a second, put and settled, of the last minute. Messages for all workers (remote control, events)
    are in no queue of this list.
    """
    with broker.reading(ctx) as store:
        found = listed(store)
        for one in found if as_json else ():
            write_json({**one._asdict(), "holders": [holder._asdict() for holder in one.holders]})
        if not found:
            app_store.nothing_found(ctx, store, "the broker has no queue")
    if as_json:
        return
    write_table(
        ("queue", "ready", "claimed", "oldest", "put/s", "settled/s"),
        [
            (
                one_line(one.name),
                one.ready,
                one.claimed,
                _age(one),
                f"{one.put_rate:.3g}",
                f"{one.settled_rate:.3g}",
            )
            for one in found
        ],
    )
    for one in found:
        for holder in one.holders:
            write_line(one_line(f"{one.name}: {holder.messages} claimed by {_who(holder)}"))


def _age(one: BrokerQueue) -> str:
    return task_display.duration_text((now_ms() - one.oldest_ms) / 1000) if one.oldest_ms else "-"


def _who(holder: Holder) -> str:
    if not holder.pid:
        return "a process of another PID namespace"
    what = holder.command[:COMMAND_CHARACTERS] or "ended since"
    return f"process {holder.pid} ({what}), connected since {time_text(holder.since_ms)}"
