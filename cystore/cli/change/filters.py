"""`cystore filters`: the registered filters of consumer groups; adds and removes them."""

from __future__ import annotations

import argparse

import cystore
from cystore.cli.look.groups import group_name
from cystore.operate import facts
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    add_json,
    reading_config,
    store_config,
)
from cystore.operate.output import write_json, write_line, write_note, write_table
from cystore.operate.progress import progress


def _list(args: argparse.Namespace) -> int:
    facts.state(args.path)
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        rows = store.filters.list()
    if args.json:
        for row in rows:
            write_json(row._asdict())
    else:
        write_table(
            ("group", "topic", "born", "expression"),
            [
                (row.group, row.topic, "not yet" if row.born is None else row.born, row.expression)
                for row in rows
            ],
        )
    if not rows:
        write_note("no group has registered a filter")
        return FOUND_WRONG
    return OK


def _add(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args, create=False, services=())
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        row = store.filters.add(args.group, args.topic, args.expression)
    if args.json:
        write_json(row._asdict())
    else:
        write_line(f"messages of {row.topic} that match are marked from {row.born} of the log on")
    return OK


def _remove(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args, create=False, services=())
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        removed = store.filters.remove(args.group, args.topic)
    if args.json:
        write_json({"group": args.group, "topic": args.topic, "removed": removed})
    elif not removed:
        write_note(f"{args.group} has no filter for {args.topic}")
    return OK if removed else FOUND_WRONG


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", type=group_name)
    parser.add_argument("topic", metavar="TOPIC")
    add_json(parser, "one JSON object")


def _add_expression(parser: argparse.ArgumentParser) -> None:
    _add_names(parser)
    parser.add_argument("expression", metavar="EXPRESSION", help="a SQL92 expression over properties")


COMMAND = Command(
    name="filters",
    summary="the registered filters of consumer groups; adds and removes them",
    description=(
        "Writes each registered filter: group, topic, expression, and the position of the log from which on "
        "messages are marked.\n"
        "Changes nothing. Exit code 1: there is none. See also `cystore filters add --help` and `cystore filters "
        "remove --help`."
    ),
    examples=("cystore filters /var/lib/app/store", "cystore filters /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object for each filter"),
    run=_list,
)
ADD = Command(
    name="filters add",
    summary="registers the filter of a consumer group for a topic",
    description=(
        "From now on the store marks the topic's messages that match, also while other processes have it "
        "open. Reads of the group with the\n"
        "same expression then leave the others out without reading them. Another expression of the group is "
        "replaced. The store must have\n"
        "been made with enable_consume_queue_ext=true."
    ),
    examples=(
        """cystore filters add /var/lib/app/store billing orders "price > 90 AND region IN ('north')\"""",
    ),
    add_arguments=_add_expression,
    run=_add,
    listed=False,
)
REMOVE = Command(
    name="filters remove",
    summary="ends the filter of a consumer group for a topic",
    description="Reads with its expression look at each message again. Exit code 1: the group has no filter there.",
    examples=("cystore filters remove /var/lib/app/store billing orders",),
    add_arguments=_add_names,
    run=_remove,
    listed=False,
)
