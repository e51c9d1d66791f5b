"""`cystore import`: makes a store of a DLedger broker's directory."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.ledger_import import import_ledger
from cystore.operate.output import one_line, size_text, write_json, write_line, write_note
from cystore.operate.progress import progress

RANGE_LINES = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="STORE", type=Path, help="the store to make; it must not exist")
    parser.add_argument(
        "--uncommitted",
        action="store_true",
        help="also entries behind the committed index: only this member may have them, and no producer was told "
        "that they are stored",
    )
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="step over damaged entries and records instead of stopping at the first one",
    )
    add_json(parser, "one JSON object")


def _run(args: argparse.Namespace) -> int:
    with progress() as report:
        done = import_ledger(
            args.path,
            args.target,
            store_config(args),
            uncommitted=args.uncommitted,
            skip_damaged=args.skip_damaged,
            report=report,
        )
    if args.json:
        write_json(asdict(done))
    else:
        size, old = (
            size_text(done.log_bytes),
            f", {done.old_records} of an older commit log" if done.old_records else "",
        )
        write_line(
            one_line(f"{done.path}: {done.records} records{old} in {size} of log, {done.queues} queues")
        )
    if done.left_out:
        write_note(
            f"{done.left_out} entries behind entry {done.last_index} are not known to be committed and were left out "
            "(--uncommitted imports them)"
        )
    for begin, end in done.skipped[:RANGE_LINES]:
        write_note(
            f"bytes {begin}..{end} of the broker's log are damaged: their messages are missing in the store"
        )
    if len(done.skipped) > RANGE_LINES:
        write_note(f"{len(done.skipped)} ranges of the broker's log are damaged; `cystore verify` lists all")
    return FOUND_WRONG if done.skipped else OK


COMMAND = Command(
    name="import",
    summary="a store of what a DLedger broker wrote",
    description=(
        "Makes STORE a store with the messages of PATH: the directory of a RocketMQ broker whose commit log is a "
        "DLedger\n"
        "(enableDLegerCommitLog), or the folder dledger-ID in it. The records are copied as they are, those of an "
        "older commit\n"
        "log first; queues have the same messages at the same queue offsets, but physical offsets are others. The "
        "offsets of\n"
        "consumers and delay levels come along. PATH is not changed, and no broker may run on it. STORE appears when "
        "all of it\n"
        "is on disk; a killed import is begun anew by the same command. Exit code 1: damaged ranges were stepped over."
    ),
    examples=(
        "cystore import /var/lib/rocketmq/store /var/lib/app/store",
        "cystore import /var/lib/rocketmq/store/dledger-n0 /var/lib/app/store --skip-damaged --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
