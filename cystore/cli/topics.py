"""`cystore topics`: which topics and queues a store has, and what can be read of them."""

from __future__ import annotations

import argparse

import cystore
from cystore.cli import facts
from cystore.cli.command import OK, Command, add_json, reading_config
from cystore.cli.output import write_json, write_line, write_table
from cystore.cli.progress import progress


def _run(args: argparse.Namespace) -> int:
    facts.state(args.path)
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        found = [
            (topic, queue_id, one.min_offset, one.max_offset, one.max_offset - one.min_offset)
            for topic, queues in store.topics().items()
            for queue_id, one in queues.items()
        ]
    names = ("topic", "queue_id", "min_offset", "max_offset", "count")
    if args.json:
        for row in found:
            write_json(dict(zip(names, row, strict=True)))
        return OK
    write_table(("topic", "queue", "min offset", "max offset", "between"), found)
    write_line(f"topics: {len({row[0] for row in found})}, queues: {len(found)}")
    return OK


COMMAND = Command(
    name="topics",
    summary="topics and queues, and the queue offsets that can be read",
    description=(
        "A line for each queue: its lowest queue offset, the one behind its highest, and how many lie between (messages, and\n"
        "places of messages that damage swallowed). A queue whose messages are all gone stays, for it goes on counting. Changes nothing."
    ),
    examples=("cystore topics /var/lib/app/store", "cystore topics /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object for each queue"),
    run=_run,
)
