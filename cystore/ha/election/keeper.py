"""A thread that keeps the master's lease and looks at the group, so that no slow etcd stops the shipping, and no slow
disk the lease."""

from __future__ import annotations

import logging

from cystore._native.memory.control import Control
from cystore.clock import boottime_ms
from cystore.errors import ElectionError, StoreClosedError
from cystore.ha.election.group import Group, View
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

TURNS_OF_LEASE = 10  # looks, and renewals, in the time of a lease
MARGIN_OF_LEASE = 5  # this part of it is not used: two clocks may differ in speed by that


class Keeper:
    """`view` is the group as it was seen last; None before that. The words of the control block say how long the lease
    lasts: they count from before it was asked for, by a clock that runs while this process, or the host, stands
    still."""

    def __init__(self, control: Control, group: Group, lease_ms: int) -> None:
        self._control, self._group, self._lease_ms = control, group, lease_ms
        self.view: View | None = None
        self.lease_is_over = False
        self._lease = 0
        self._proposal: tuple[int, frozenset[str]] | None = None
        self._answer: tuple[frozenset[str], bool] | None = None
        self._lock = os_threads.Lock()
        self._stopping, self._due = os_threads.Flag(), os_threads.Flag()
        self._failed = ""
        self._thread = os_threads.Thread(self._run, "cystore-ha-keeper")

    def hold(self, lease: int, asked_ms: int) -> None:
        """Keeps a lease that was granted, or kept, when it was asked for at `asked_ms`."""
        with self._lock:
            self._lease, self.lease_is_over = lease, False
            self._count_from(asked_ms)

    def let_go(self) -> int:
        """Keeps it no longer, and returns it; replicated puts are refused from now on."""
        with self._lock:
            lease, self._lease = self._lease, 0
            self._proposal = self._answer = None
            self._control.lease_until_ms = 0
        return lease

    def propose(self, epoch: int, in_sync: frozenset[str]) -> None:
        """Asks etcd for another in-sync set; `answered` tells."""
        with self._lock:
            self._proposal = (epoch, in_sync)
        self._due.set()

    def answered(self) -> tuple[frozenset[str], bool] | None:
        """The set that was proposed, and whether etcd has it; None before it has said so. Each answer is given once."""
        with self._lock:
            answer, self._answer = self._answer, None
        return answer

    def look_soon(self) -> None:
        """Somebody says that there is a newer epoch: etcd knows."""
        self._due.set()

    def close(self) -> None:
        self._stopping.set()
        self._due.set()
        self._thread.join()
        self._group.close()

    def _count_from(self, asked_ms: int) -> None:
        self._control.lease_until_ms = asked_ms + self._lease_ms - self._lease_ms // MARGIN_OF_LEASE

    def _run(self) -> None:
        pause_s = self._lease_ms / 1000 / TURNS_OF_LEASE
        while not self._stopping.is_set():
            self._due = os_threads.Flag()  # before the work: what is asked for meanwhile is due
            try:
                self._keep()
                self._put_proposal()
                self.view = self._group.look()
                self._failed = ""
            except ElectionError as error:
                if str(error) != self._failed:
                    self._failed = str(error)
                    log.warning("%s; trying again", error)
            except StoreClosedError:
                return
            if not self._stopping.is_set():
                self._due.wait(pause_s)

    def _keep(self) -> None:
        lease, asked_ms = self._lease, boottime_ms()
        if not lease:
            return
        left_s = self._group.keep(lease)
        with self._lock:
            if self._lease != lease:
                return
            if left_s > 0:
                self._count_from(asked_ms)
            else:
                self._lease, self.lease_is_over = 0, True
                self._control.lease_until_ms = 0

    def _put_proposal(self) -> None:
        """An error leaves the proposal: nobody knows whether etcd has the set. So does a refusal in the epoch: only
        this master changes the set in it, so a call whose answer was lost has done it. The next look says so."""
        with self._lock:
            proposal = self._proposal
        if proposal is None:
            return
        view = self._group.look()
        epoch, in_sync = proposal
        has = view.state is not None and view.state.in_sync == in_sync
        if not has and view.master is not None and view.master.epoch == epoch:
            has = self._group.set_in_sync(view, epoch, in_sync)
            if not has:
                return
        with self._lock:
            if self._proposal == proposal:
                self._proposal, self._answer = None, (in_sync, has)
