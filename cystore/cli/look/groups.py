"""`cystore groups` and `cystore lag`: the consumer groups of a store, and how far each is."""

from __future__ import annotations

import argparse
from typing import Any

import cystore
from cystore import MessageStore
from cystore.consumers.names import checked_group
from cystore.errors import StoreConfigError, did_you_mean
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, reading_config
from cystore.operate.output import write_json, write_note, write_table
from cystore.operate.progress import progress


def group_name(text: str) -> str:
    """An argument that is the name of a group."""
    try:
        return checked_group(text)
    except StoreConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _opened(args: argparse.Namespace) -> Any:
    with progress() as report:
        return cystore.open(args.path, config=reading_config(args), progress=report)


def _groups(args: argparse.Namespace) -> int:
    with _opened(args) as store:
        rows = [
            _group_object(store, group, lag)
            for group, lag in store.groups.lags(internal=args.internal).items()
        ]
    if args.json:
        for row in rows:
            write_json(row)
    else:
        write_table(
            ("group", "topics", "queues", "lag"),
            [(row["group"], ", ".join(row["topics"]), row["queues"], row["lag"]) for row in rows],
        )
    if not rows:
        write_note("there is no consumer group")
        return FOUND_WRONG
    return OK


def _group_object(store: MessageStore, group: str, lag: int) -> dict[str, Any]:
    queues = list(store.groups.offsets(group))
    return {
        "group": group,
        "topics": sorted({topic for topic, _ in queues}),
        "queues": len(queues),
        "lag": lag,
    }


def _groups_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--internal",
        action="store_true",
        help="the groups whose offsets are notes of the store itself instead",
    )
    add_json(parser, "one JSON object a group")


def _lag_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", type=group_name)
    add_json(parser, "one JSON object a queue")


def _lag(args: argparse.Namespace) -> int:
    with _opened(args) as store:
        rows, known = store.groups.lag(args.group), store.groups.names()
    if args.json:
        for row in rows:
            write_json(row._asdict())
    else:
        write_table(
            ("topic", "queue", "offset", "first", "end", "lag"),
            rows,
        )
    if not rows:
        write_note(f"the group {args.group} has no offset: no such group{did_you_mean(args.group, known)}")
        return FOUND_WRONG
    return OK


COMMAND = Command(
    name="groups",
    summary="the consumer groups and their lag",
    description=(
        "Writes each consumer group that has an offset, with its topics, the number of its queues, and the "
        "number of messages that it has\n"
        "still to get. Groups of the store itself are left out. Changes nothing. Exit code 1: there is none."
    ),
    examples=(
        "cystore groups /var/lib/app/store",
        "cystore groups /var/lib/app/store --json",
    ),
    add_arguments=_groups_arguments,
    run=_groups,
)
LAG = Command(
    name="lag",
    summary="how far a consumer group is in each queue",
    description=(
        "Writes each queue in which a group has an offset: the offset, the first and the end offset of the "
        "queue, and the number of\n"
        "messages between. Changes nothing. Exit code 1: the group has no offset."
    ),
    examples=(
        "cystore lag /var/lib/app/store billing",
        "cystore lag /var/lib/app/store billing --json",
    ),
    add_arguments=_lag_arguments,
    run=_lag,
)
