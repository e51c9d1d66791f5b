"""`cystore dispatchers`: the named dispatchers of a store, and how far each is."""

from __future__ import annotations

import argparse

import cystore
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, reading_config
from cystore.operate.output import size_text, write_json, write_note, write_table
from cystore.operate.progress import progress


def _run(args: argparse.Namespace) -> int:
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        states = store.dispatchers.states()
    if args.json:
        for state in states:
            write_json(state._asdict())
    else:
        write_table(
            ("dispatcher", "position", "behind", "runs", "failures", "holds"),
            [
                (
                    one.name, one.position, size_text(one.lag_bytes), "yes" if one.runs else "no", one.failures,
                    "yes" if one.holds else "no",
                )
                for one in states
            ],
        )  # fmt: skip
    if not states:
        write_note("there is no dispatcher")
        return FOUND_WRONG
    return OK


COMMAND = Command(
    name="dispatchers",
    summary="the named dispatchers and how far they are behind",
    description=(
        "Writes each named dispatcher with the physical offset from which it continues, the log that it has "
        "still to get, whether a\n"
        "process runs it now, how often in a row its function has failed, and whether cleaning keeps the log "
        "for it. Changes nothing.\n"
        "Exit code 1: there is none."
    ),
    examples=(
        "cystore dispatchers /var/lib/app/store",
        "cystore dispatchers /var/lib/app/store --json",
    ),
    add_arguments=lambda parser: add_json(parser, "one JSON object a dispatcher"),
    run=_run,
)
