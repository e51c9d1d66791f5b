"""`cystore dump`: all messages, or those of a topic or queue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import islice

import cystore
from cystore.dledger.entries import Bad
from cystore.dledger.messages import messages
from cystore.dledger.source import Source
from cystore.layout import LMQ_PREFIX
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    add_body,
    add_filter,
    add_json,
    count,
    reading_config,
    whole_number,
)
from cystore.operate.ledger_view import ledger
from cystore.operate.output import write_message, write_note
from cystore.operate.progress import progress
from cystore.operate.queue_messages import (
    DAMAGE_LINES,
    DamageCount,
    no_such_topic,
    queue_messages,
    report_stepped_over,
    whole_queues,
)

REPORT_EVERY = 512


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="only this topic")
    parser.add_argument("--queue", metavar="N", type=whole_number, help="only this queue id of the topic")
    parser.add_argument("--from", metavar="O", dest="begin", type=whole_number, default=0,
                        help="from this queue offset on, in each queue")  # fmt: skip
    parser.add_argument("--count", metavar="K", type=count, help="at most this number of messages in all")
    add_filter(parser)
    add_body(parser)
    add_json(parser, "one JSON object a message")


def _run(args: argparse.Namespace) -> int:
    if args.queue is not None and args.topic is None:
        args.usage_error("--queue needs --topic")
    with ledger(args.path, reading_config(args)) as source:
        if source is not None:
            return _dump_ledger(args, source)
    damage = DamageCount()
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        queues = whole_queues(store, args.topic, [] if args.queue is None else [args.queue])
        if args.topic is None:  # a message in light queues is written once, with the fields of its own queue
            queues = [queue for queue in queues if not queue.topic.startswith(LMQ_PREFIX)]
        if not queues and args.topic is not None:
            return _no_queue(args, store.topics())
        total = sum(max(0, queue.end - max(args.begin, queue.begin)) + len(queue.behind) for queue in queues)
        total = total if args.count is None else min(total, args.count)
        found = (
            message
            for queue in queues
            for message in queue_messages(store, queue, args.begin, damage)
            if args.filter is None or args.filter(message)
        )
        beside = report if report is not None and not sys.stdout.isatty() else None
        for number, message in enumerate(islice(found, args.count)):
            write_message(message, as_json=args.json, body=args.body)
            if beside is not None and number % REPORT_EVERY == 0:
                beside("messages", number, total)
        report_stepped_over(store)
    damage.summary()
    return FOUND_WRONG if damage.count else OK


def _no_queue(args: argparse.Namespace, topics: Iterable[str]) -> int:
    queue = "" if args.queue is None else f"/{args.queue}"
    write_note(f"there is no queue {args.topic}{queue}{no_such_topic(args.topic, topics)}")
    return FOUND_WRONG


def _dump_ledger(args: argparse.Namespace, source: Source) -> int:
    damage: list[Bad] = []
    queues: set[tuple[str, int]] = set()

    def chosen(queue: tuple[str, int]) -> bool:
        queues.add(queue)
        return args.topic in (None, queue[0]) and args.queue in (None, queue[1])

    found = messages(source, chosen, args.begin, damage.append)
    matching = (message for message in found if args.filter is None or args.filter(message))
    for message in islice(matching, args.count):
        write_message(message, as_json=args.json, body=args.body)
    for bad in damage[:DAMAGE_LINES]:
        write_note(f"bytes {bad.begin}..{bad.end} of the log are damaged, and left out: {bad.reason}")
    if len(damage) > DAMAGE_LINES:
        write_note(f"{len(damage)} ranges of the log are damaged; `cystore verify` lists all damage")
    if args.topic is not None and not any(map(chosen, set(queues))):
        return _no_queue(args, {topic for topic, _ in queues})
    return FOUND_WRONG if damage else OK


COMMAND = Command(
    name="dump",
    summary="all messages, in the order of topic, queue id and queue offset",
    description=(
        "Writes one line for each message, in the order of topic, queue id and queue offset. Changes nothing "
        "in the store,\n"
        "whether it is in use, closed, left by a crash, or in a directory that may only be read. Messages that "
        "cannot be\n"
        "read are reported on standard error and stepped over; the exit code is then 1. Damage that recovery "
        "has handled\n"
        "is reported there too. PATH may be the directory of a DLedger broker: its committed messages."
    ),
    examples=(
        "cystore dump /var/lib/app/store --json > messages.jsonl",
        "cystore dump /var/lib/app/store --topic orders --queue 0 --from 100 --count 10",
        "cystore dump /var/lib/app/store --filter \"region = 'north' AND TAGS IS NOT NULL\" --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
