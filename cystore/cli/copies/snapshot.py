"""`cystore snapshot`: a consistent copy of a store in use."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from cystore.operate import backup
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import one_line, size_text, write_json, write_line, write_note
from cystore.operate.progress import progress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", type=Path, help="the directory to make; it must not exist"
    )
    add_json(parser, "one JSON object")


def _run(args: argparse.Namespace) -> int:
    with progress() as report:
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
        "and in TARGET."
    ),
    examples=(
        "cystore snapshot /var/lib/app/store /backup/store-2026-01-31",
        "cystore snapshot /backup/store-2026-01-31 /var/lib/app/store",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
