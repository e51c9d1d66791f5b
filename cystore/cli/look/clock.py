"""`cystore clock`: the time of a store beside the wall clock; with --believe the operator confirms the wall clock."""

from __future__ import annotations

import argparse

import cystore
from cystore import clock
from cystore._native.memory import store_clock
from cystore.attachment.attach import Attachment
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import time_text, write_json, write_line
from cystore.operate.progress import progress
from cystore.operate.store_parts import looked_at


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--believe", action="store_true", help="believe the wall clock from now on, in every process"
    )
    add_json(parser, "one JSON object")


def times(parts: Attachment) -> dict[str, int]:
    """The store's time beside the wall clock, ms."""
    control = parts.control
    return {
        "now_ms": clock.now_ms(control),
        "wall_clock_ms": clock.now_ms(),
        "ahead_ms": store_clock.ahead_ms(control),
        "expiry_ms": clock.expiry_ms(control),
        "last_store_timestamp_ms": control.last_store_timestamp_ms,
    }


def _run(args: argparse.Namespace) -> int:
    if args.believe:
        with (
            progress() as report,
            cystore.open(args.path, config=store_config(args, services=()), progress=report) as store,
        ):
            store.believe_clock()
    found = looked_at(args.path, store_config(args, read_only=True, services=()), times)
    if args.json:
        write_json(found)
    else:
        write_line(f"time of the store: {time_text(found['now_ms'])}")
        write_line(
            f"wall clock: {time_text(found['wall_clock_ms'])}{' (not believed)' if found['ahead_ms'] else ''}"
        )
        write_line(f"time for deletion: {time_text(found['expiry_ms'])}")
        write_line(f"last message: {time_text(found['last_store_timestamp_ms'])}")
    return FOUND_WRONG if found["ahead_ms"] else OK


COMMAND = Command(
    name="clock",
    summary="the store's time beside the wall clock; --believe accepts a jump",
    description=(
        "Shows the time by which a store stamps, rolls, delivers and deletes. A wall clock that jumped by more "
        "than max_clock_jump_s\n"
        "is not believed at once: the store continues with the earlier time. It believes the jump after that "
        "time, or with\n"
        "--believe at once. Exit code 1: the wall clock is not believed."
    ),
    examples=("cystore clock /var/lib/app/store", "cystore clock /var/lib/app/store --believe"),
    add_arguments=_add_arguments,
    run=_run,
)
