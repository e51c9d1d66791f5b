"""`cystore ha run`: keeps a store open with its services, and opens it again after all processes were asked to
leave."""

from __future__ import annotations

import argparse

import cystore
from cystore.operate.command import OK, Command, store_config
from cystore.operate.output import one_line, write_line
from cystore.operate.progress import progress
from cystore.system.threads import os_threads

LOOK_S = 0.2


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="end when the processes of the store are asked to leave it"
    )


def _run(args: argparse.Namespace) -> int:
    config = store_config(args, services="all")
    waiting = os_threads.Flag()
    while True:
        with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
            write_line(one_line(f"{args.path}: open with its services; Ctrl-C ends it"))
            while not store.asked_to_leave():
                waiting.wait(LOOK_S)
                store.check_usable()
        if args.once:
            return OK


COMMAND = Command(
    name="run",
    summary="has a store open with its services",
    description=(
        "Has the store at PATH open with all services, until Ctrl-C: for a host where no other program does, for\n"
        "example a member of a group that only replicates. When the processes of the store are asked to leave it,\n"
        "because the log of a returned master must be truncated, it closes the store and opens it again."
    ),
    examples=(
        "cystore ha run /var/lib/app/store --config /etc/app/cystore.toml",
        "cystore ha run /var/lib/app/store --set broker_role=elected --set ha_group=orders --set ha_member=host-2",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
