"""`cystore recover`: recovery with a printed plan."""

from __future__ import annotations

import argparse
from typing import Any

import cystore
from cystore import StoreLockedError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import one_line, write_json, write_line
from cystore.operate.progress import progress
from cystore.recovery.actions import RecoveryPlan
from cystore.recovery.outcome import RecoveryReport
from cystore.recovery.plan import plan
from cystore.recovery.scan import scan
from cystore.system.store_lock import StoreLocks


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="write the plan and change nothing")
    add_json(parser, "one JSON object")


def _plan(args: argparse.Namespace, *, abnormal: bool) -> RecoveryPlan:
    """The plan of recovery, while no process opens the store."""
    config = store_config(args)
    with progress() as report:
        if not (args.path / facts.LOCK_NAME).exists():
            return plan(scan(args.path, config, abnormal=abnormal, progress=report))
        locks = StoreLocks(args.path, read_only=True)
        try:
            with locks.gate():
                if locks.holder() != "nobody":
                    raise StoreLockedError(
                        "another process opened the store just now: run the command again", path=args.path
                    )
                return plan(scan(args.path, config, abnormal=abnormal, progress=report))
        finally:
            locks.close()


def _recover(args: argparse.Namespace) -> RecoveryReport:
    """Opens the store alone, which recovers it, and closes it cleanly."""
    with (
        progress() as report,
        cystore.open(args.path, config=store_config(args, exclusive=True), progress=report) as store,
    ):
        return store.recovery


def _object(chosen: RecoveryPlan, done: RecoveryReport | None) -> dict[str, Any]:
    log = chosen.scan.log
    return {
        "dry_run": done is None,
        "begin": log.begin,
        "end": log.end,
        "checked_from": log.start,
        "reason": log.reason,
        "records": log.records,
        "watermark": log.watermark,
        "watermark_source": log.watermark_source,
        "dispatch_from": chosen.scan.dispatched,
        "damage": [{"begin": hole.begin, "end": hole.end, "reason": hole.reason} for hole in log.damage],
        "lost": [log.end, log.lost_end] if log.lost_end > log.end else None,
        "warnings": list(chosen.scan.warnings),
        "actions": [str(action) for action in chosen.actions],
        "put_aside": None if done is None else list(done.put_aside),
    }


def _run(args: argparse.Namespace) -> int:
    state = facts.state(args.path)
    if state.name in ("live", "exclusive"):
        raise StoreLockedError("the store is in use, so it was recovered when it was opened", path=args.path)
    chosen = _plan(args, abnormal=state.name == "crashed")
    if not args.json:
        write_line(
            f"{one_line(str(args.path))} was {'left by a crash' if state.name == 'crashed' else 'closed cleanly'}"
        )
        for line in chosen.lines():
            write_line(one_line(line))
        if not chosen.actions:
            write_line("nothing to mend")
    done = None if args.dry_run else _recover(args)
    if args.json:
        write_json(_object(chosen, done))
    elif done is not None:
        write_line(f"done: {one_line(str(done))}")
    return FOUND_WRONG if chosen.scan.log.damage or chosen.scan.log.lost_end > chosen.scan.log.end else OK


COMMAND = Command(
    name="recover",
    summary="recovery with a printed plan",
    description=(
        "Writes the plan of recovery for a store that no process has open, carries it out and closes the store "
        "cleanly. Every\n"
        "open recovers a store too; this command shows how. Truncated bytes are kept in quarantine/.\n"
        "Exit code 1: durable records are damaged or lost."
    ),
    examples=("cystore recover /var/lib/app/store --dry-run", "cystore recover /var/lib/app/store"),
    add_arguments=_add_arguments,
    run=_run,
)
