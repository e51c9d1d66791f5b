"""`cystore query`: messages by key."""

from __future__ import annotations

import argparse

import cystore
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    add_body,
    add_json,
    count,
    reading_config,
    whole_number,
)
from cystore.operate.output import write_message, write_note
from cystore.operate.progress import progress
from cystore.operate.queue_messages import no_such_topic


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("key", metavar="KEY", help="one of a message's keys, or its unique key")
    parser.add_argument("--begin-ms", metavar="MS", type=whole_number, default=0,
                        help="stored at this time or later, in ms since 1970 (UTC)")  # fmt: skip
    parser.add_argument("--end-ms", metavar="MS", type=whole_number, help="stored at this time or earlier")
    parser.add_argument("--max", metavar="K", type=count, help="only the newest K messages (default: 32)")
    add_body(parser)
    add_json(parser, "one JSON object a message")


def _run(args: argparse.Namespace) -> int:
    config = reading_config(args)
    limit = args.max if args.max is not None else config.default_query_max_num
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        found = store.query(args.topic, args.key, limit, begin_ms=args.begin_ms, end_ms=args.end_ms)
        for message in found:
            write_message(message, as_json=args.json, body=args.body)
        if not found:
            why = no_such_topic(args.topic, store.topics())
            write_note(f"no message of topic {args.topic} has the key {args.key}{why}")
            return FOUND_WRONG
    return OK


COMMAND = Command(
    name="query",
    summary="messages by key, newest first",
    description="Writes one line for each message of a topic with this key, newest first. Changes nothing. "
    "Exit code 1: there is none.",
    examples=(
        "cystore query /var/lib/app/store orders order-17",
        "cystore query /var/lib/app/store orders order-17 --begin-ms 1790000000000 --max 1 --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
