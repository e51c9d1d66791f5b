"""`cystore ha promote` and `cystore ha demote`: an operator chooses the master of a group."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from cystore.cli.change.handover import wait_seconds
from cystore.engine.manifest.manifest import read_facts
from cystore.errors import StoreConfigError
from cystore.ha.election.group import Group, View
from cystore.ha.election.orders import demote, group_of, promote
from cystore.ha.role import Role, role_of
from cystore.operate import facts
from cystore.operate.command import OK, Command, store_config
from cystore.operate.output import one_line, write_line

WAIT_S = 30.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=wait_seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help="wait at most this time for the change (default: %(default).0f)",
    )


def elected_role(args: argparse.Namespace) -> Role:
    """The role of the store at PATH. Raises StoreConfigError for one whose master is not elected."""
    facts.state(args.path)
    role = role_of(read_facts(args.path)[0])
    if not role.is_elected:
        how = (
            ": `cystore ha run PATH --set broker_role=async_master` makes it a master"
            if role.is_slave
            else ""
        )
        raise StoreConfigError(
            f'the master of this store is not elected (broker_role="{role.broker_role}"){how}', path=args.path
        )
    return role


def _run(order: Callable[[Group, str, float], View], args: argparse.Namespace) -> int:
    role = elected_role(args)
    with group_of(role, store_config(args)) as group:
        view = order(group, role.member, args.wait)
    if view.master is not None:
        write_line(
            one_line(f"{view.master.member} is the master of {role.group} in epoch {view.master.epoch}")
        )
    return OK


PROMOTE = Command(
    name="promote",
    summary="makes this store the master of its group",
    description=(
        "Asks the group in etcd for the store at PATH as master, and waits until it is. The present master\n"
        "refuses puts, gives the store the rest of its log, and ends its lease. Nothing is lost. Only a store\n"
        "that is in sync can become master, and some process has to have it open with its services."
    ),
    examples=("cystore ha promote /var/lib/app/store",),
    add_arguments=_add_arguments,
    run=partial(_run, promote),
)
DEMOTE = Command(
    name="demote",
    summary="makes another store the master of the group",
    description=(
        "Asks the group in etcd for another member in sync as master, and waits until it is: for example before\n"
        "this host is switched off. The store at PATH is a replica then."
    ),
    examples=("cystore ha demote /var/lib/app/store",),
    add_arguments=_add_arguments,
    run=partial(_run, demote),
)
