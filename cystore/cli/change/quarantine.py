"""`cystore quarantine`: lists and shows the copies of damaged log bytes, and writes records back into the log."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import cystore
from cystore._native.record.message import message_of
from cystore.operate import facts
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    Group,
    add_json,
    place_argument,
    store_config,
)
from cystore.operate.output import (
    one_line,
    size_text,
    time_text,
    write_json,
    write_line,
    write_table,
)
from cystore.operate.progress import progress
from cystore.recovery.restore import Part, listed, parts, restore

SHOWN_BYTES = 64  # the most shown bytes of a part outside of records
LINE_BYTES = 16


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="name of the copy, as `cystore quarantine list` writes it"
    )
    parser.add_argument(
        "--from", metavar="FILE", dest="source", type=place_argument,
        help="a file to read instead of the copy: the same range, repaired",
    )  # fmt: skip


def _list(args: argparse.Namespace) -> int:
    facts.state(args.path)
    found = listed(args.path)
    if args.json:
        for one in found:
            write_json(dataclasses.asdict(one))
        return OK
    rows = [
        (
            one.name or "no copy", one.begin, one.end, size_text(one.size_bytes), one.state, one.reason,
            time_text(one.found_ms),
        )
        for one in found
    ]  # fmt: skip
    write_table(("name", "begin", "end", "length", "state", "reason", "found"), rows)
    write_line(f"{len(found)} in quarantine")
    return OK


def _shown(part: Part) -> dict[str, object]:
    """A part for --json."""
    fields: dict[str, object] = {"kind": part.kind, "begin": part.begin, "end": part.end}
    if part.kind == "record":
        message = message_of(part.data, part.begin)
        names = ("topic", "queue_id", "queue_offset", "store_timestamp_ms")
        return fields | {name: getattr(message, name) for name in names} | {"keys": list(message.keys)}
    return fields | {"hex": part.data[:SHOWN_BYTES].hex()}


def _write_part(part: Part) -> None:
    if part.kind == "record":
        m = message_of(part.data, part.begin)
        what = f"{m.topic}/{m.queue_id} offset {m.queue_offset}, stored {time_text(m.store_timestamp_ms)}"
        write_line(one_line(f"{part.begin}..{part.end} record: {what}"))
        return
    write_line(f"{part.begin}..{part.end} {part.kind}: {size_text(part.end - part.begin)}")
    for at in range(0, min(len(part.data), SHOWN_BYTES), LINE_BYTES):
        line = part.data[at : min(at + LINE_BYTES, SHOWN_BYTES)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        write_line(f"  {part.begin + at}  {line.hex(' ').ljust(3 * LINE_BYTES)} {text}")


def _show(args: argparse.Namespace) -> int:
    facts.state(args.path)
    records = 0
    for part in parts(args.path, args.name, store_config(args), args.source):
        records += part.kind == "record"
        if args.json:
            write_json(_shown(part))
        else:
            _write_part(part)
    if not args.json:
        write_line(f"{records} whole records")
    return OK


def _restore(args: argparse.Namespace) -> int:
    config = store_config(args, exclusive=True, services=())
    facts.state(args.path)
    done = restore(args.path, args.name, config, args.source)
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        found = store.recovery
    again = [
        one for one in found.new_holes if any(one[0] < end and begin < one[1] for begin, end in done.ranges)
    ]
    if args.json:
        write_json({**dataclasses.asdict(done), "damaged_again": again})
    else:
        write_line(f"{done.records} records are back in the log: {_ranges(done.ranges)}")
        if done.left:
            write_line(f"still damaged: {_ranges(done.left)}")
        if again:
            write_line(f"recovery refused these ranges again: {_ranges(again)}")
    return FOUND_WRONG if done.left or again else OK


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{begin}..{end}" for begin, end in ranges)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    add_json(parser, "one JSON object for each part")


def _add_restore(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    add_json(parser, "one JSON object")


EXAMPLE = "commitlog-00000000000000004096-00000000000000004480"
LIST = Command(
    name="list",
    summary="lists the copies and the damaged ranges of the log",
    description=(
        "Writes a line for each copy of log bytes, with its range and state: damaged (the log steps over it) "
        "or cut (the log\n"
        "does not have it). A damaged range without a copy has a line too. Changes nothing."
    ),
    examples=("cystore quarantine list /var/lib/app/store",),
    add_arguments=lambda parser: add_json(parser, "one JSON object for each copy"),
    run=_list,
)
SHOW = Command(
    name="show",
    summary="the intact records of a copy, and the other bytes",
    description=(
        "Finds records with the right checksum at their own place in the log; of other bytes it shows the first\n"
        f"{SHOWN_BYTES}. Changes nothing."
    ),
    examples=(
        f"cystore quarantine show /var/lib/app/store {EXAMPLE}",
        f"cystore quarantine show /var/lib/app/store {EXAMPLE} --from repaired",
    ),
    add_arguments=_add_show,
    run=_show,
)
RESTORE = Command(
    name="restore",
    summary="writes intact records back into a damaged range of the log",
    description=(
        "Writes the intact records of a copy, or of a repaired file of the same length, back to the log, and "
        "mends queues\n"
        "and index. No other process may have the store open. Refused if the log is not damaged there, or if "
        "no record is intact.\n"
        "Exit code 1: a part of the range stays damaged."
    ),
    examples=(f"cystore quarantine restore /var/lib/app/store {EXAMPLE} --from repaired",),
    add_arguments=_add_restore,
    run=_restore,
)
COMMAND = Group(
    name="quarantine",
    summary="copies of damaged bytes: lists them, shows them, puts them back",
    description=(
        "Before cystore steps over damaged bytes of the log, or truncates them, it copies them to the folder "
        "quarantine/ of the store."
    ),
    commands=(LIST, SHOW, RESTORE),
)
