"""`celery cystore move`: the queues of a broker in a store, drained into another broker."""

from __future__ import annotations

import click

from cystore.celery.commands.shared import broker, command_options
from cystore.celery.move import listed
from cystore.errors import hidden
from cystore.operate.command import FOUND_WRONG
from cystore.operate.output import one_line, write_json, write_line, write_note
from cystore.operate.progress import progress


@click.command(
    "move",
    epilog=command_options.examples(
        "move --to redis://broker:6379/0", "move --to amqp://broker --queue celery --queue slow --json"
    ),
)
@click.option("--to", "url", metavar="URL", required=True, help="The broker that gets the messages.")
@click.option("--queue", "chosen", multiple=True, help="Only this queue; may be repeated. Default: all.")
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, url: str, chosen: tuple[str, ...], as_json: bool) -> None:
    """Drain the queues of a broker in a store into another broker, when one host is too small.

    End the workers first, and change broker_url. Each message goes with its headers, priority and bytes, and is settled
    here when the other broker has it. A kill in between leaves one message on both sides, and loses none: repeat the
    command. Exit code 1: workers that live still have messages.
    """
    with broker.reading(ctx) as store:
        for name in chosen:
            broker.check(store, name)
        ready = {one.name: one.ready for one in listed(store) if not chosen or one.name in chosen}
    with broker.connected(ctx) as source, progress() as report:

        def told(queue: str, moved: int) -> None:
            if report is not None:
                report(f"moving {queue}", moved, max(ready[queue], moved))

        done = broker.move(ctx.obj.app, source, url, list(ready), told)
    for one in done:
        if as_json:
            write_json(one._asdict())
        else:
            write_line(one_line(f"{one.queue}  {one.moved} messages moved to {hidden(url)}"))
    stay = {one.queue: one.held for one in done if one.held}
    for name, count in stay.items():
        write_note(
            one_line(
                f"{name}: {count} messages stay, because a worker has them: end it, and repeat the command"
            )
        )
    if stay:
        ctx.exit(FOUND_WRONG)
