"""`cystore put`: appends standard input."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cystore
from cystore.engine.inspect.recognize import is_store
from cystore.layout import CONSTANTS, SCHEDULE_TOPIC
from cystore.operate.command import (
    OK,
    Command,
    add_json,
    due_time,
    duration,
    store_config,
    whole_number,
)
from cystore.operate.output import time_text, write_json, write_line, write_note
from cystore.operate.progress import progress
from cystore.services.delay.recurring import MISSED
from cystore.system import files

CHUNK_BYTES = 256 * 1024
TIMER_QUEUE_ID = CONSTANTS["TIMER_QUEUE_ID"][0]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--queue", metavar="N", type=whole_number, default=0, help="queue id (default: 0)")
    parser.add_argument("--key", metavar="KEY", dest="keys", action="append", default=[],
                        help="find the message by this key; may be repeated")  # fmt: skip
    parser.add_argument("--tag", metavar="TAG")
    parser.add_argument("--property", metavar="NAME=VALUE", dest="properties", action="append", default=[],
                        type=_property, help="may be repeated")  # fmt: skip
    parser.add_argument(
        "--delay-level",
        metavar="N",
        type=whole_number,
        default=0,
        help="delay before the topic gets the message: a level of the setting message_delay_level, 1 and up",
    )
    parser.add_argument("--deliver-in", metavar="DURATION", dest="delay_ms", type=duration,
                        help="delay before the topic gets the message, for example 90s, 2h or 1d12h")  # fmt: skip
    parser.add_argument("--deliver-at", metavar="TIME", dest="deliver_at_ms", type=due_time,
                        help="when the topic gets the message, for example 2027-01-01T09:00+01:00")  # fmt: skip
    parser.add_argument("--every", metavar="DURATION", dest="every_ms", type=duration,
                        help="deliver it again and again: first after --deliver-in or at --deliver-at, or after this "
                        "time, for example 1h")  # fmt: skip
    parser.add_argument("--missed", choices=MISSED, default="once",
                        help="with --every: what becomes of times at which nobody delivered (%(default)s)")  # fmt: skip
    parser.add_argument("--until", metavar="TIME", dest="until_ms", type=due_time,
                        help="with --every: the last time")  # fmt: skip
    parser.add_argument(
        "--flush",
        choices=("async", "sync"),
        help="sync: return only when the message is durable (default: the setting flush_disk_type)",
    )
    parser.add_argument("--lines", action="store_true", help="each line is a message, appended as it comes")
    parser.add_argument(
        "--create", action="store_true", help="make the store, and its folders, if it does not exist"
    )
    parser.add_argument("--allow-empty", action="store_true",
                        help="append an empty message if standard input is empty (default: an error)")  # fmt: skip
    add_json(parser, "one JSON object for each message appended")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _lines(max_bytes: int) -> Iterator[list[bytes]]:
    """Lines of standard input as they come, without their ends. Raises MessageIllegalError for a line that is too
    long."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > max_bytes:
            raise cystore.MessageIllegalError(f"a line has more than max_message_size_bytes = {max_bytes}")
    if rest:
        yield [rest]


def _whole(max_bytes: int, *, allow_empty: bool) -> bytes:
    """All of standard input, unless it is too long for a message, or empty: then a program before the pipe failed."""
    data = sys.stdin.buffer.read(max_bytes + 1)
    if not data and not allow_empty:
        raise cystore.MessageIllegalError(
            "standard input is empty, nothing is appended; --allow-empty appends an empty message"
        )
    if len(data) > max_bytes:
        raise cystore.MessageIllegalError(
            f"standard input has more than max_message_size_bytes = {max_bytes}"
        )
    return data


def _write_result(args: argparse.Namespace, put: cystore.PutResult) -> None:
    if args.json:
        names = ("physical_offset", "queue_offset", "size_bytes", "store_timestamp_ms")
        write_json({name: getattr(put, name) for name in names})
    else:
        queue = f"{args.topic}/{args.queue}"
        if args.delay_level:
            queue = f"{SCHEDULE_TOPIC}/{args.delay_level - 1}"
        elif args.every_ms or (args.deliver_at_ms or 0) > put.store_timestamp_ms or args.delay_ms:
            queue = f"{SCHEDULE_TOPIC}/{TIMER_QUEUE_ID}"
        where = f"{queue}@{put.queue_offset}"
        write_line(
            f"{where}  {time_text(put.store_timestamp_ms)}  {put.size_bytes} bytes at physical offset "
            f"{put.physical_offset}"
        )


def _append(args: argparse.Namespace, store: cystore.MessageStore, bodies: Sequence[bytes]) -> None:
    if args.every_ms is not None or args.until_ms is not None:
        for body in bodies:
            put = store.put(
                args.topic, body, queue_id=args.queue, keys=args.keys, tags=args.tag,
                properties=dict(args.properties), delay_level=args.delay_level, deliver_at_ms=args.deliver_at_ms,
                delay_ms=args.delay_ms, flush=args.flush, every_ms=args.every_ms, missed=args.missed,
                until_ms=args.until_ms,
            )  # fmt: skip
            _write_result(args, put)
        sys.stdout.flush()
        return
    messages = [
        cystore.Message(topic=args.topic, queue_id=args.queue, body=body, keys=args.keys, tags=args.tag,
                        properties=dict(args.properties), delay_level=args.delay_level,
                        deliver_at_ms=args.deliver_at_ms, delay_ms=args.delay_ms)
        for body in bodies
    ]  # fmt: skip
    try:
        results = store.put_many(messages, flush=args.flush)
    except cystore.StoreError as error:
        for put in error.results or ():
            _write_result(args, put)
        raise
    for put in results:
        _write_result(args, put)
    sys.stdout.flush()


def _is_nothing(path: Path) -> bool:
    """Whether the path has nothing, or an empty folder. An open says what else is there."""
    return not files.names(path) if path.is_dir() else not path.exists()


def _run(args: argparse.Namespace) -> int:
    config = store_config(args, create=args.create)
    with files.translated(args.path):
        is_new = not is_store(args.path)
        if is_new and not args.create and _is_nothing(args.path):
            raise cystore.StoreFormatError("there is no store here; --create makes one", path=args.path)
    if sys.stdin.isatty():
        write_note(f"type {'a message a line' if args.lines else 'the message'}; Ctrl-D ends it")
    limit = config.max_message_size_bytes
    bodies = _lines(limit) if args.lines else iter([[_whole(limit, allow_empty=args.allow_empty)]])
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        if is_new:
            write_note(f"made a new store in {args.path}")
        for batch in bodies:
            _append(args, store, batch)
    return OK


COMMAND = Command(
    name="put",
    summary="append standard input",
    description=(
        "Appends standard input as one message (or each line as one, with --lines) and prints its place.\n"
        "--create makes a store that does not exist. Other processes may use the store at the same time.\n"
        "With --delay-level, --deliver-in or --deliver-at it waits until it is due and a process with the service "
        "schedule (`cystore serve`), or a call of deliver, delivers it."
    ),
    examples=(
        "echo hello | cystore put /var/lib/app/store greetings --create --key hello --tag first",
        "cystore put /var/lib/app/store orders --queue 3 --lines --json < orders.jsonl",
        "echo later | cystore put /var/lib/app/store greetings --delay-level 5",
        "echo wake up | cystore put /var/lib/app/store greetings --key dawn --deliver-at 2027-01-01T09:00+01:00",
        "echo stretch | cystore put /var/lib/app/store greetings --key break --every 1h --missed skip",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
