"""`cystore read`: one message by its place."""

from __future__ import annotations

import argparse

import cystore
from cystore.engine.inspect.message_id import DIGITS_MIN, MessageId
from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError
from cystore.operate.command import FOUND_WRONG, OK, Command, add_body, add_json, reading_config
from cystore.operate.output import write_message, write_note
from cystore.operate.progress import progress


def _place(text: str) -> int | MessageId:
    if text.isascii() and text.isdigit() and len(text) < DIGITS_MIN:
        return int(text)
    try:
        return MessageId.parse(text)
    except MessageIllegalError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a physical offset nor a message id") from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", metavar="OFFSET|ID", type=_place, help="physical offset, or RocketMQ's message id"
    )
    add_body(parser)
    add_json(parser, "one JSON object")


def _run(args: argparse.Namespace) -> int:
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        try:
            at = args.place
            message = store.read(at) if isinstance(at, int) else store.read_by_id(at)
        except (OffsetError, CorruptRecordError) as error:
            write_note(str(error))
            return FOUND_WRONG
        write_message(message, as_json=args.json, body=args.body)
    return OK


COMMAND = Command(
    name="read",
    summary="one message by physical offset or message id",
    description="Writes the message whose record begins at a physical offset, or that has a message id of "
    "RocketMQ's (mqadmin\n"
    "queryMsgById). Changes nothing. Exit code 1: no readable record begins there.",
    examples=(
        "cystore read /var/lib/app/store 4096",
        "cystore read /var/lib/app/store 7F00000100002A9F0000000000001000 --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
