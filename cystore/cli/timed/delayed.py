"""`cystore delayed`: messages that wait until a time of their own."""

from __future__ import annotations

import argparse
import base64
from itertools import islice

import cystore
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, count, due_time, reading_config
from cystore.operate.output import one_line, time_text, write_json, write_line, write_note
from cystore.operate.progress import progress
from cystore.services.delay.withdraw import DelayedMessage


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="only messages for this topic")
    parser.add_argument("--before", metavar="TIME", type=due_time,
                        help="only those due before this time, for example 2027-01-01T09:00+01:00")  # fmt: skip
    parser.add_argument("--max", metavar="K", type=count, help="only the first K messages (default: all)")
    add_json(parser, "one JSON object a message, the body in base64")


def _write(message: DelayedMessage, *, as_json: bool) -> None:
    if as_json:
        names = (
            "topic",
            "queue_id",
            "deliver_at_ms",
            "keys",
            "tags",
            "physical_offset",
            "store_timestamp_ms",
            "every_ms",
        )
        write_json(
            {name: getattr(message, name) for name in names}
            | {"body": base64.b64encode(message.body).decode("ascii")}
        )
        return
    again = "" if message.every_ms is None else f"  again after {message.every_ms / 1000:g} s"
    keys = f"  keys {' '.join(message.keys)}" if message.keys else ""
    write_line(
        one_line(
            f"{time_text(message.deliver_at_ms)}  {message.topic}/{message.queue_id}{keys}{again}  "
            f"{len(message.body)} bytes, put {time_text(message.store_timestamp_ms)} "
            f"at physical offset {message.physical_offset}"
        )
    )


def _run(args: argparse.Namespace) -> int:
    number = 0
    with (
        progress() as report,
        cystore.open(args.path, config=reading_config(args), progress=report) as store,
    ):
        for message in islice(store.pending(args.topic, 0, args.before), args.max):
            _write(message, as_json=args.json)
            number += 1
    if not number:
        write_note("no message waits until a time of its own")
        return FOUND_WRONG
    return OK


COMMAND = Command(
    name="delayed",
    summary="messages that wait until a time of their own",
    description="Writes one line for each message that was put with deliver_at_ms or delay_ms (--deliver-at,\n"
    "--deliver-in) and still waits, in the order of due times. Messages with a delay level are counted by\n"
    "`cystore info`. Changes nothing. Exit code 1: there is none.",
    examples=(
        "cystore delayed /var/lib/app/store",
        "cystore delayed /var/lib/app/store --topic reminders --before 2027-01-01T00:00Z --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
