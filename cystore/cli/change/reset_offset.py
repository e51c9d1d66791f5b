"""`cystore reset-offset`: moves a consumer group."""

from __future__ import annotations

import argparse

import cystore
from cystore.cli.look.groups import group_name
from cystore.errors import did_you_mean
from cystore.operate import facts
from cystore.operate.command import OK, Command, add_json, store_config, whole_number
from cystore.operate.output import write_json, write_table
from cystore.operate.progress import progress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", type=group_name)
    parser.add_argument("topic", metavar="TOPIC")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-ms", metavar="MS", type=whole_number, dest="to",
                       help="the first message stored at this time or later, in ms since 1970 (UTC)")  # fmt: skip
    where.add_argument(
        "--first", action="store_const", const="first", dest="to", help="the first message there is"
    )
    where.add_argument(
        "--last", action="store_const", const="last", dest="to", help="behind the last message"
    )
    parser.add_argument("--queue", metavar="N", type=whole_number, help="only this queue id")
    parser.add_argument("--only-back", action="store_true",
                        help="move no queue forward: the group skips no message that it has not got")  # fmt: skip
    parser.add_argument("--create", action="store_true", help="begin the group if the store does not know it")
    add_json(parser, "one JSON object a queue")


def _run(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args, create=False)
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        before = store.groups.offsets(args.group)
        if not before and not args.create:
            known = store.groups.names()
            raise cystore.StoreConfigError(
                f"no such group: {args.group}; --create begins it. The store's groups: {', '.join(known) or 'none'}"
                f"{did_you_mean(args.group, known)}",
                path=args.path,
            )
        moved = store.groups.reset(
            args.group, args.topic, args.to, queue_id=args.queue, force=not args.only_back
        )
    rows = [(queue_id, before.get((args.topic, queue_id)), offset) for queue_id, offset in moved.items()]
    if args.json:
        for queue_id, old, new in rows:
            write_json({"topic": args.topic, "queue_id": queue_id, "old_offset": old, "offset": new})
    else:
        shown = [(queue_id, "none" if old is None else old, new) for queue_id, old, new in rows]
        write_table(("queue", "old offset", "offset"), shown)
    return OK


COMMAND = Command(
    name="reset-offset",
    summary="moves a consumer group to a time, or to an end",
    description=(
        "Moves a consumer group in all queues of a topic, or in one. Consumers that run follow within a "
        "second. Messages that they have\n"
        "given out and that are not acknowledged yet count no more."
    ),
    examples=(
        "cystore reset-offset /var/lib/app/store billing orders --to-ms 1790000000000",
        "cystore reset-offset /var/lib/app/store billing orders --first --queue 3",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
