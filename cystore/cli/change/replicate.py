"""`cystore replicate`: a process that follows a master, for hosts where no other process has the slave open."""

from __future__ import annotations

import argparse
from typing import Any

import cystore
from cystore.engine.inspect.recognize import is_store
from cystore.errors import ReplicationError
from cystore.ha.link.address import masters_of
from cystore.ha.link.call import ask_master
from cystore.ha.link.wire import Hello
from cystore.ha.status import read_status
from cystore.operate.command import OK, Command, store_config
from cystore.operate.output import one_line, write_line, write_note
from cystore.operate.progress import progress
from cystore.system.threads import os_threads

LOOK_S = 0.2


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="master", metavar="HOST:PORT", required=True,
        help="the master's address for slaves, or several with commas between: one of them is the master",
    )  # fmt: skip
    parser.add_argument(
        "--once",
        action="store_true",
        help="end when the store has the log that the master had at the beginning",
    )


def _run(args: argparse.Namespace) -> int:
    wanted: dict[str, Any] = {"broker_role": "slave", "ha_master_address": args.master, "services": "all"}
    config = store_config(args, **wanted)
    if not is_store(args.path):
        hello = _asked(config, masters_of(args.master))
        if hello is not None:
            config = store_config(args, **wanted, mapped_file_size_commit_log_bytes=hello.file_bytes)
    waiting = os_threads.Flag()
    while True:
        with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
            write_line(
                one_line(f"{args.path}: follows {args.master} from {store.stats()['wrote']}; Ctrl-C ends it")
            )
            while not (ends := args.once and _has_all(store)) and not store.asked_to_leave():
                waiting.wait(LOOK_S)
                store.check_usable()
            if ends:
                write_line(one_line(f"{args.path}: has the log up to {store.stats()['wrote']}"))
                return OK


def _asked(config: cystore.StoreConfig, masters: list[str]) -> Hello | None:
    """The greeting of the first master that answers. Raises ReplicationError if none does."""
    for master in masters[:-1]:
        try:
            return ask_master(config, master)
        except (OSError, ReplicationError) as error:
            write_note(one_line(f"{master}: {error}"))
    try:
        return ask_master(config, masters[-1])
    except (OSError, ReplicationError) as error:
        raise ReplicationError(f"{masters[-1]}: {error}; start a master there, or correct --from") from error


def _has_all(store: cystore.MessageStore) -> bool:
    standing = read_status(store.path)
    if standing.is_old or not standing.connected or standing.masters_end < 0:
        return False
    return bool(store.stats()["wrote"] >= standing.masters_end)


COMMAND = Command(
    name="replicate",
    summary="makes a store the slave of a master, and follows it",
    description=(
        "Makes PATH, if it is missing, a store with the whole log of the master, and appends what the master "
        "appends, until Ctrl-C. The\n"
        "store stays a slave: puts are refused, reads work in every process. Any process that opens it with "
        "all services follows as\n"
        "well; one of them does the work, and another takes over when it ends."
    ),
    examples=(
        "cystore replicate /var/lib/app/replica --from 10.0.0.5:10912 --config /etc/app/slave.toml",
        "cystore replicate /var/lib/app/replica --from 127.0.0.1:10912 --set ha_secret_file=/etc/app/secret --once",
        "cystore replicate /var/lib/app/replica --from host-1:10912,host-2:10912  # whichever is the master",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
