"""`cystore verify`: every record's checksum, and consume queues and index against the log."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from cystore import StoreConfig, StoreLockedError
from cystore.dledger.verify import verify as verify_ledger
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.ledger_view import ledger
from cystore.operate.output import one_line, write_json, write_line, write_note
from cystore.operate.progress import progress
from cystore.operate.store_parts import attached
from cystore.recovery.walk.findings import Damage
from cystore.verify import Bounds, verify


def damage_of(root: Path, config: StoreConfig, state: facts.State) -> Iterator[Damage]:
    """Each damaged range of a store that no process has exclusively."""
    with progress() as report:
        if state.name != "live":
            yield from verify(root, config, abnormal=state.name == "crashed", progress=report)
            return
        with attached(root, config) as parts:
            control = parts.control
            dispatched = control.dispatched
            bounds = Bounds(control.min_physical_offset, control.wrote, dispatched, complete=False)
            yield from verify(
                root,
                parts.config,
                bounds=bounds,
                minimum=lambda: control.min_physical_offset,
                progress=report,
            )


def _write(found: Damage, *, as_json: bool) -> None:
    if as_json:
        names = ("kind", "begin", "end", "reason")
        write_json({"path": str(found.path), **{name: getattr(found, name) for name in names}})
    else:
        write_line(one_line(f"{found.kind} {found.path} {found.begin}..{found.end}: {found.reason}"))


def _run(args: argparse.Namespace) -> int:
    config = store_config(args, read_only=True, services=())
    with ledger(args.path, config) as source:
        if source is not None:
            return _report(verify_ledger(source), as_json=args.json)
    state = facts.state(args.path)
    if state.name == "exclusive":
        raise StoreLockedError(
            "one process has the store exclusively, so the end of its log is unknown: end it, or try again",
            path=args.path,
        )
    count = 0
    for found in damage_of(args.path, config, state):
        _write(found, as_json=args.json)
        count += 1
    if count and state.name != "live" and facts.state(args.path) != state:
        write_note(f"{args.path} was opened by another process meanwhile: run the command again")
    return _conclude(count, as_json=args.json)


def _conclude(count: int, *, as_json: bool) -> int:
    if not as_json:
        write_line(f"{count} damaged ranges" if count else "no damage")
    return FOUND_WRONG if count else OK


def _report(damage: Iterator[Damage], *, as_json: bool) -> int:
    count = 0
    for found in damage:
        _write(found, as_json=as_json)
        count += 1
    return _conclude(count, as_json=as_json)


COMMAND = Command(
    name="verify",
    summary="every record's checksum, and queues and index against the log",
    description=(
        "Reads every record with its checksum and compares consume queues and index with the log; writes a "
        "line for each damaged\n"
        "range, also for those that recovery has put aside. Changes nothing. Exit code 1: there is damage. PATH may be "
        "the\n"
        "directory of a DLedger broker: its entries with their records, and the DLedger's index against them."
    ),
    examples=("cystore verify /var/lib/app/store", "cystore verify /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object for each damaged range"),
    run=_run,
)
