"""An operator's orders to a group, and the group's state in etcd; for commands, which run beside the stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.errors import ElectionError
from cystore.ha.election.etcd import Etcd
from cystore.ha.election.group import WANTED_S, Group, View
from cystore.ha.role import Role
from cystore.system.threads import os_threads

TIMEOUT_S = 2.0  # of one call
LOOK_S = 0.1


@contextmanager
def group_of(role: Role, config: StoreConfig) -> Iterator[Group]:
    """The group of a store."""
    group = Group(Etcd(config, role.etcd, TIMEOUT_S), role.group)
    try:
        yield group
    finally:
        group.close()


def promote(group: Group, member: str, timeout_s: float) -> View:
    """Returns when `member` is the master. The present master ships the rest of its log to it, and then ends its lease.
    Raises ElectionError if the member is not in sync, or is not master within `timeout_s`."""
    view, until_s = group.look(), monotonic_s() + timeout_s
    if view.state is None or member not in view.state.in_sync:
        in_sync = "nobody" if view.state is None else ", ".join(sorted(view.state.in_sync))
        raise ElectionError(f"{member} is not in sync, so it cannot become master; in sync: {in_sync}")
    group.want(member)
    asked_s = monotonic_s()
    try:
        while view.master is None or view.master.member != member:
            if monotonic_s() - asked_s > WANTED_S / 2:
                group.want(member)
                asked_s = monotonic_s()
            if monotonic_s() >= until_s:
                raise ElectionError(f"{member} did not become master within {timeout_s:.0f} s: does it run?")
            os_threads.pause(LOOK_S)
            view = group.look()
    finally:
        group.want_nobody()
    return view


def demote(group: Group, member: str, timeout_s: float) -> View:
    """Returns when another member in sync is master instead of `member`. Raises ElectionError as `promote` does, and if
    no other member is in sync."""
    view = group.look()
    if view.master is None or view.master.member != member:
        raise ElectionError(
            f"{member} is not the master; that is {view.master.member if view.master else 'nobody'}"
        )
    others = sorted(view.state.in_sync - {member}) if view.state is not None else []
    if not others:
        raise ElectionError(f"only {member} is in sync, so no other member can become master")
    return promote(group, others[0], timeout_s)
