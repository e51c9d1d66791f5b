"""`cystore topics`: the topics and queues of a store with their readable offsets; removes topics, and queues without
messages."""

from __future__ import annotations

import argparse
import dataclasses

import cystore
from cystore.engine.manifest.topic_names import checked_topic
from cystore.operate import facts
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    add_json,
    reading_config,
    store_config,
)
from cystore.operate.output import write_json, write_line, write_table
from cystore.operate.progress import progress
from cystore.operate.queue_messages import no_such_topic


def _list(args: argparse.Namespace) -> int:
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


def _delete(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args, services=())
    missing = 0
    for topic in args.topics:  # all of them, before the first one is gone
        checked_topic(topic)
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        for topic in args.topics:
            done = store.delete_topic(topic)
            missing += done.queues == 0
            if args.json:
                write_json({"topic": topic, **dataclasses.asdict(done)})
            elif done.queues:
                write_line(f"{topic}: deleted {done.queues} queues with {done.messages} messages")
            else:
                write_line(f"{topic}{no_such_topic(topic, set(store.topics()) - {topic})}")
    return FOUND_WRONG if missing else OK


def _clean(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args, services=())
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        done = store.remove_unused_queues()
    if args.json:
        write_json({"queues": done.queues, "files": done.files})
    else:
        write_line(f"removed {done.files} files of {done.queues} queues without messages")
    return OK


def _add_topics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="a topic to delete")
    add_json(parser, "one JSON object for each topic")


COMMAND = Command(
    name="topics",
    summary="topics and queues, and the queue offsets that can be read; deletes topics",
    description=(
        "Writes a line for each queue: its lowest queue offset, the one above its highest, and the number of "
        "places between\n"
        "(damaged messages too). A removed queue is left out; if it gets a message again, it continues to "
        "count its offsets.\n"
        "Changes nothing. See also `cystore topics delete --help` and `cystore topics clean --help`."
    ),
    examples=("cystore topics /var/lib/app/store", "cystore topics /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object for each queue"),
    run=_list,
)
DELETE = Command(
    name="topics delete",
    summary="removes topics with all their messages",
    description=(
        "Removes every queue of the topics, also while other processes have the store open: readers get "
        "OFFSET_TOO_SMALL. A topic\n"
        "that gets a message again continues to count its queue offsets. The log keeps the records until their "
        "segments expire: `cystore\n"
        "query` finds them until then. Messages that are still delayed are delivered to the topic all the same.\n"
        "Exit code 1: a topic does not exist. Exit code 2: no topic can have one of the names, and nothing was deleted."
    ),
    examples=(
        "cystore topics delete /var/lib/app/store orders",
        "cystore topics delete /var/lib/app/store orders-2025 orders-2026 --json",
    ),
    add_arguments=_add_topics,
    run=_delete,
    listed=False,
)
CLEAN = Command(
    name="topics clean",
    summary="removes the files of queues without messages",
    description=(
        "Every clean does this too: when all messages of a queue expired or were deleted, its files are\n"
        "removed. The queue continues to count its offsets."
    ),
    examples=("cystore topics clean /var/lib/app/store",),
    add_arguments=lambda parser: add_json(parser, "one JSON object"),
    run=_clean,
    listed=False,
)
