"""`cystore transactions`: open transactions; commits one or rolls it back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import cystore
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config, whole_number
from cystore.operate.output import time_text, write_json, write_line, write_note, write_table
from cystore.operate.progress import progress

if TYPE_CHECKING:
    from cystore.transactions.half import HalfMessage


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--commit", metavar="ID", help="put the message of this transaction to its topic, and end it"
    )
    end.add_argument("--rollback", metavar="ID", help="end this transaction without its message")
    parser.add_argument(
        "--older-than-ms", metavar="MS", type=whole_number, default=0, help="only transactions of this age"
    )
    add_json(parser, "one JSON object a transaction, or the place of the committed message")


def _run(args: argparse.Namespace) -> int:
    ends = args.commit is not None or args.rollback is not None
    config = store_config(args, services=(), create=False, **({} if ends else {"read_only": True}))
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        if args.commit is not None:
            put = store.commit(args.commit, flush="sync")
            place = {
                "physical_offset": put.physical_offset,
                "queue_offset": put.queue_offset,
                "size_bytes": put.size_bytes,
            }
            if args.json:
                write_json(place)
            else:
                write_line(
                    f"committed: queue offset {put.queue_offset}, physical offset {put.physical_offset}"
                )
            return OK
        if args.rollback is not None:
            store.rollback(args.rollback, flush="sync")
            write_note("rolled back")
            return OK
        found = store.open_transactions(older_than_ms=args.older_than_ms)
        aside = store.set_aside_transactions()
    return _show(found, aside, as_json=args.json)


def _show(found: list[HalfMessage], aside: dict[HalfMessage, str], *, as_json: bool) -> int:
    if as_json:
        for half in found:
            write_json(half._asdict() | {"set_aside": aside.get(half)})
    elif found:
        rows = [
            [half.id, half.topic, half.queue_id, time_text(half.begun_ms), aside.get(half, "")]
            for half in found
        ]
        write_table(["transaction", "topic", "queue", "since", "set aside"], rows)
    if not found:
        write_note("no transaction is open")
    return OK if found else FOUND_WRONG


COMMAND = Command(
    name="transactions",
    summary="open transactions; --commit or --rollback ends one",
    description=(
        "Lists the transactions that nobody has committed or rolled back, the oldest first, and why one is set "
        "aside, so that nobody\n"
        "is asked about it. Changes nothing, unless --commit or --rollback names one. Exit code 1: none is open."
    ),
    examples=(
        "cystore transactions /var/lib/app/store --older-than-ms 60000",
        "cystore transactions /var/lib/app/store --commit 998A475170F541ADAE0ACD7DDC70D587",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
