"""A group of stores in etcd: the master, the in-sync set, the wanted master.

| key | value | lives |
|---|---|---|
| /cystore/GROUP/master | member, address, store; its create revision is the epoch | as long as the master's lease |
| /cystore/GROUP/state | id of the log, in-sync set | for ever |
| /cystore/GROUP/wanted | the member that an operator wants as master | some seconds |
| /cystore/GROUP/full/MEMBER | | while the disk of this member is full |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from cystore.errors import ElectionError
from cystore.ha.election.etcd import Entry, Etcd

WANTED_S = 15


@dataclass(frozen=True)
class Elected:
    """The present master."""

    member: str
    address: str
    store_id: str
    epoch: int
    lease: int


@dataclass(frozen=True)
class State:
    """`master`: the last elected member. `changed`: the revision of the last change."""

    log_id: str
    in_sync: frozenset[str]
    master: str
    changed: int


@dataclass(frozen=True)
class View:
    """The group at one revision of etcd. `wanted`: the member that an operator wants as master, "" for none. `full`:
    the members whose disks are full."""

    revision: int
    master: Elected | None
    state: State | None
    wanted: str
    full: frozenset[str]


class Group:
    """One group in etcd. Its calls raise ElectionError."""

    def __init__(self, etcd: Etcd, name: str) -> None:
        self._etcd, self.prefix = etcd, f"/cystore/{name}/"
        self._master, self._state = f"{self.prefix}master", f"{self.prefix}state"
        self._wanted, self._full = f"{self.prefix}wanted", f"{self.prefix}full/"

    def look(self) -> View:
        revision, entries = self._etcd.read(self.prefix)
        master, state, wanted = (entries.get(key) for key in (self._master, self._state, self._wanted))
        return View(
            revision,
            None if master is None else self._elected(master),
            None if state is None else self._state_of(state),
            "" if wanted is None else wanted.value.decode("utf-8", "replace"),
            frozenset(key.removeprefix(self._full) for key in entries if key.startswith(self._full)),
        )

    def elect(self, view: View, me: Elected, log_id: str) -> tuple[int, frozenset[str]]:
        """Makes a member of the in-sync set the master, if there is no master and the set is that of `view`. The very
        first member creates the set. The previous master leaves the set: it is gone, and no put should wait for it.
        Returns the epoch (0 if another member was faster) and the in-sync set."""
        state = view.state or State(log_id, frozenset({me.member}), "", 0)
        if state.log_id != log_id or me.member not in state.in_sync:
            raise ElectionError(f"{me.member} is not in the in-sync set of {self.prefix}")
        in_sync = state.in_sync - ({state.master} - {me.member})
        state = replace(state, in_sync=in_sync, master=me.member)
        value = {"member": me.member, "address": me.address, "store": me.store_id}
        epoch = self._etcd.change(
            created=[(self._master, 0)],
            changed=[(self._state, state.changed)],
            put=[(self._master, json.dumps(value).encode(), me.lease), (self._state, _state_bytes(state), 0)],
        )
        return epoch, in_sync

    def set_in_sync(self, view: View, epoch: int, in_sync: frozenset[str]) -> bool:
        """Changes the in-sync set, if the caller still is the master of `epoch` and the set is that of `view`. Returns
        whether it did."""
        if view.state is None:
            return False
        state = replace(view.state, in_sync=in_sync)
        revision = self._etcd.change(
            created=[(self._master, epoch)],
            changed=[(self._state, view.state.changed)],
            put=[(self._state, _state_bytes(state), 0)],
        )
        return revision > 0

    def want(self, member: str) -> None:
        """Asks for a member as master."""
        self._etcd.change(put=[(self._wanted, member.encode(), self._etcd.grant(WANTED_S))])

    def want_nobody(self) -> None:
        """Withdraws the request of `want`."""
        self._etcd.change(delete=[self._wanted])

    def tell_full(self, member: str, full: bool) -> None:
        """Tells the others whether a member's disk is full."""
        key = self._full + member
        self._etcd.change(put=[(key, b"", 0)] if full else (), delete=() if full else [key])

    def grant(self, ttl_s: int) -> int:
        return self._etcd.grant(ttl_s)

    def keep(self, lease: int) -> int:
        return self._etcd.keep(lease)

    def resign(self, lease: int) -> None:
        """Ends a master's lease: another member may be elected at once."""
        self._etcd.revoke(lease)

    def close(self) -> None:
        self._etcd.close()

    def _elected(self, entry: Entry) -> Elected:
        found = self._parsed(self._master, entry)
        texts = [found.get(name) for name in ("member", "address", "store")]
        member, address, store_id = (text if isinstance(text, str) else "" for text in texts)
        if not (member and address and store_id):
            raise ElectionError(f"{self._master} in etcd makes no sense: {found!r}")
        return Elected(member, address, store_id, entry.created, entry.lease)

    def _state_of(self, entry: Entry) -> State:
        found = self._parsed(self._state, entry)
        names = found.get("in_sync")
        if type(found.get("log_id")) is not str or not isinstance(names, list) or not names:
            raise ElectionError(f"{self._state} in etcd makes no sense: {found!r}")
        in_sync = frozenset(str(name) for name in names)
        return State(found["log_id"], in_sync, str(found.get("master", "")), entry.changed)

    def _parsed(self, key: str, entry: Entry) -> dict[str, Any]:
        try:
            found = json.loads(entry.value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ElectionError(f"{key} in etcd is no JSON of cystore")
        return found


def _state_bytes(state: State) -> bytes:
    return json.dumps(
        {"log_id": state.log_id, "in_sync": sorted(state.in_sync), "master": state.master}
    ).encode()
