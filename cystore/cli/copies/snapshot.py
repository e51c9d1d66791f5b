"""`cystore snapshot`: a consistent copy of a store in use, as another store or as one file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from cystore.operate import backup
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, path_argument, store_config
from cystore.operate.output import one_line, size_text, write_json, write_line, write_note
from cystore.operate.packs.streams import STANDARD
from cystore.operate.progress import Report, progress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", type=Path, nargs="?", help="the directory to make; it must not exist"
    )
    packs = parser.add_mutually_exclusive_group()
    packs.add_argument(
        "--pack", metavar="FILE", type=path_argument,
        help="write the copy into one file (.tar.zst, which needs cystore[zstd], .tar.gz or .tar) instead of TARGET; "
             "-: standard output",
    )  # fmt: skip
    packs.add_argument(
        "--unpack", metavar="FILE", type=path_argument,
        help="make TARGET of such a file, instead of a store; -: standard input",
    )  # fmt: skip
    add_json(parser, "one JSON object")


def _run(args: argparse.Namespace) -> int:
    one_path = args.pack is not None or args.unpack is not None
    if one_path == (args.target is not None):
        args.usage_error(
            "with --pack name the store alone, with --unpack TARGET alone"
            if one_path
            else "name the store and TARGET; or --pack FILE, or --unpack FILE"
        )
    with progress() as report:
        if args.pack is not None:
            return _pack(args, report)
        if args.unpack is not None:
            taken = backup.unpack(args.unpack, args.path, store_config(args), report)
        else:
            taken = backup.take(args.path, args.target, store_config(args), report)
    if args.json:
        write_json(asdict(taken))
    else:
        size = size_text(taken.end - taken.begin)
        write_line(one_line(f"{taken.path}: {taken.records} records in {size} of log, {taken.queues} queues"))
    for begin, end in taken.damaged:
        write_note(
            f"the log is damaged from {begin} to {end}, in the store and in the copy: see `cystore verify`"
        )
    return FOUND_WRONG if taken.damaged else OK


def _pack(args: argparse.Namespace, report: Report | None) -> int:
    if args.pack == STANDARD and sys.stdout.isatty():
        args.usage_error("a pack is no text for a terminal: name a file, or a program behind a pipe")
    packed = backup.pack(args.path, args.pack, store_config(args), report)
    size = size_text(packed.end - packed.begin)
    if packed.size_bytes is None:
        write_note(f"{size} of log")  # standard output is the pack
    elif args.json:
        write_json(asdict(packed))
    else:
        write_line(one_line(f"{packed.path}: {size} of log in {size_text(packed.size_bytes)}"))
    return OK


COMMAND = Command(
    name="snapshot",
    summary="a consistent copy of a store, even while others use it",
    description=(
        "Makes TARGET a store with the content of PATH at one moment: for a backup, and to restore one. It "
        "flushes PATH, and copies\n"
        "the log up to there, with the earlier settings and queue offsets. Queues and index of the copy are "
        "made from its\n"
        "log, and every record is verified. TARGET appears when all of it is on disk. Exit code 1: the log is "
        "damaged, in PATH\n"
        "and in TARGET.\n\n"
        "With --pack the copy is one file, which has only what is there: files of a store have their full length "
        "from the\n"
        "start, and most of it is empty. --unpack makes TARGET of it, and verifies every record. Such files may come "
        "from\n"
        "others: what is no pack is refused, and nothing is left of it."
    ),
    examples=(
        "cystore snapshot /var/lib/app/store /backup/store-2026-01-31",
        "cystore snapshot /backup/store-2026-01-31 /var/lib/app/store",
        "cystore snapshot --pack /backup/store-2026-01-31.tar.zst /var/lib/app/store",
        "cystore snapshot --unpack /backup/store-2026-01-31.tar.zst /var/lib/app/store",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
