"""`cystore rebuild`: consume queues and index anew from the log."""

from __future__ import annotations

import argparse
from pathlib import Path

import cystore
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import size_text, write_json, write_line
from cystore.operate.progress import progress
from cystore.recovery.apply import drop_derived
from cystore.recovery.walk.abort_file import mark_undispatched
from cystore.system import ownership, platform
from cystore.system.store_lock import StoreLocks


def _drop(root: Path) -> None:
    """Removes the derived files."""
    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            locks.take_alone()
            mark_undispatched(root)
            drop_derived(root)
    finally:
        locks.close()


def _run(args: argparse.Namespace) -> int:
    config = store_config(args, exclusive=True, services=())
    facts.state(args.path)
    platform.check_writable_file_system(args.path, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check(args.path, ownership.group_id(config.group))
    _drop(args.path)
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        at, found = store.stats(), store.recovery
        log_bytes = at["dispatched"] - at["min_physical_offset"]
        result = {"log_bytes": log_bytes, "records": at["dispatch_count"], "queues": at["queues"]}
    if args.json:
        write_json(result)
    else:
        log = f"{result['records']} records in {size_text(log_bytes)} of log"
        write_line(f"{log}: {result['queues']} queues and the index rebuilt")
    return FOUND_WRONG if found.new_holes or found.lost else OK


COMMAND = Command(
    name="rebuild",
    summary="consume queues and index anew from the log",
    description=(
        "Removes consume queues and index and builds them from the log, while no other process has the store "
        "open. If it is\n"
        "killed half-way, the next open finishes the work. Exit code 1: durable records are damaged or lost."
    ),
    examples=("cystore rebuild /var/lib/app/store",),
    add_arguments=lambda parser: add_json(parser, "one JSON object"),
    run=_run,
)
