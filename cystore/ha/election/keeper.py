"""A thread that renews the master's lease and reads the group's state: a slow etcd does not stop the shipping, and a
slow disk does not stop the renewals."""

from __future__ import annotations

import logging

from cystore._native.memory.control import Control
from cystore.clock import boottime_ms
from cystore.errors import ElectionError, StoreClosedError
from cystore.ha.election.group import Group, View
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

TURNS_OF_LEASE = 10  # reads and renewals in the time of a lease
MARGIN_OF_LEASE = 5  # one part in so many of a lease is not used: two clocks may differ in speed by that


class Keeper:
    """`view` is the group's last known state; None before the first read. A word of the control block holds the end of
    the lease. It counts from before the request for the lease, by a clock that also runs while the process or the host
    is suspended."""

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
        """Renews a lease from now on. The caller asked for it, or renewed it, at `asked_ms`."""
        with self._lock:
            self._lease, self.lease_is_over = lease, False
            self._count_from(asked_ms)

    def let_go(self) -> int:
        """Stops renewing the lease, and returns it. Replicated puts are refused from now on."""
        with self._lock:
            lease, self._lease = self._lease, 0
            self._proposal = self._answer = None
            self._control.lease_until_ms = 0
        return lease

    def propose(self, epoch: int, in_sync: frozenset[str]) -> None:
        """Asks etcd for another in-sync set; `answered` gives the result."""
        with self._lock:
            self._proposal = (epoch, in_sync)
        self._due.set()

    def answered(self) -> tuple[frozenset[str], bool] | None:
        """The proposed set, and whether etcd has it; None before etcd's answer. Each answer is given once."""
        with self._lock:
            answer, self._answer = self._answer, None
        return answer

    def look_soon(self) -> None:
        """Reads the group's state soon, because a peer names a newer epoch."""
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
            self._due = os_threads.Flag()  # before the work, so that requests during the work set it
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
        """Puts the proposed set into etcd. After an error the proposal stays: it is unknown whether etcd has the
        set. It also stays after a refusal within the epoch: only this master changes the set then, so an earlier call,
        whose answer was lost, has changed it. The next read shows that."""
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
