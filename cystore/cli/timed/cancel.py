"""`cystore cancel` withdraws messages that wait until a time of their own, `cystore fire` delivers them now."""

from __future__ import annotations

import argparse

import cystore
from cystore import clock
from cystore.operate.command import FOUND_WRONG, OK, Command, store_config, whole_number
from cystore.operate.output import write_line, write_note
from cystore.operate.progress import progress

DELIVER_S = 10.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?")
    parser.add_argument("key", metavar="KEY", nargs="?", help="one of the messages' keys")
    parser.add_argument("--physical-offset", metavar="N", type=whole_number,
                        help="instead of topic and key: the message whose record begins there")  # fmt: skip


def _which(args: argparse.Namespace) -> dict[str, object]:
    if args.physical_offset is None:
        if args.key is None:
            args.usage_error("give TOPIC and KEY, or --physical-offset")
        return {"topic": args.topic, "key": args.key}
    if args.topic is not None:
        args.usage_error("--physical-offset goes with neither TOPIC nor KEY")
    return {"physical_offset": args.physical_offset}


def _cancel(args: argparse.Namespace) -> int:
    which = _which(args)
    with (
        progress() as report,
        cystore.open(args.path, config=store_config(args, create=False), progress=report) as store,
    ):
        if store.cancel(**which):  # type: ignore[arg-type]
            write_line("cancelled")
            return OK
    write_note("no such message waits")
    return FOUND_WRONG


def _fire(args: argparse.Namespace) -> int:
    which = _which(args)
    with (
        progress() as report,
        cystore.open(args.path, config=store_config(args, create=False), progress=report) as store,
    ):
        if store.reschedule(**which, deliver_at_ms=clock.now_ms()):  # type: ignore[arg-type]
            store.deliver(timeout_s=DELIVER_S)
            write_line("delivered")
            return OK
    write_note("no such message waits")
    return FOUND_WRONG


CANCEL = Command(
    name="cancel",
    summary="withdraw messages that wait until a time of their own",
    description="Withdraws the waiting messages of a topic with a key: they are never delivered. Only messages that\n"
    "were put with deliver_at_ms or delay_ms (--deliver-at, --deliver-in). Exit code 1: none waited.",
    examples=(
        "cystore cancel /var/lib/app/store reminders booking-5",
        "cystore cancel /var/lib/app/store --physical-offset 4096",
    ),
    add_arguments=_add_arguments,
    run=_cancel,
)
FIRE = Command(
    name="fire",
    summary="deliver messages now that wait until a time of their own",
    description="Delivers the waiting messages of a topic with a key now, and everything else that is due.\n"
    "Exit code 1: none waited.",
    examples=("cystore fire /var/lib/app/store reminders booking-5",),
    add_arguments=_add_arguments,
    run=_fire,
)
