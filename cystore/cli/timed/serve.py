"""`cystore serve`: has a store open with its services, and opens it again after all processes were asked to leave."""

from __future__ import annotations

import argparse
from typing import Any

import cystore
from cystore.operate.command import OK, Command, store_config
from cystore.operate.output import one_line, write_line
from cystore.operate.progress import progress
from cystore.system.threads import os_threads

LOOK_S = 0.2


def add_once(parser: argparse.ArgumentParser) -> None:
    """The option --once."""
    parser.add_argument(
        "--once", action="store_true", help="end when the processes of the store are asked to leave it"
    )


def keep_open(args: argparse.Namespace, **fixed: Any) -> int:
    """Has the store open with all services until Ctrl-C. `fixed` are more settings of the command."""
    config = store_config(args, services="all", **fixed)
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
    name="serve",
    summary="do the upkeep of a store, until Ctrl-C",
    description=(
        "Has the store at PATH open with all services, until Ctrl-C or SIGTERM: delivers delayed messages,\n"
        "dispatches, flushes, removes expired segments and compacts. For a host where no worker of Celery does it,\n"
        "for example as a unit of systemd. Other processes may use the store at the same time."
    ),
    examples=(
        "cystore serve /var/lib/app/store",
        "cystore serve /var/lib/app/store --config /etc/app/cystore.toml",
    ),
    add_arguments=add_once,
    run=lambda args: keep_open(args, create=False),
)
