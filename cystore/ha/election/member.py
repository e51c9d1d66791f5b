"""A store of a group: master while etcd says so, otherwise a replica of the master, or a candidate.

This is the service "ha" of an elected store; one process of the store runs it. If that process dies, another process of
the store continues the epoch: the lease belongs to the store, not to the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cystore._native.append.appender import Appender
from cystore._native.memory.control import Control
from cystore.clock import boottime_ms, monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.progress import Progress
from cystore.engine.inspect.control_head import ask_to_leave
from cystore.engine.log.append_policy import FLUSH_SYNC
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.disk_space import DiskSpace
from cystore.engine.log.flush import SYNC_FAILED
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import ElectionError, ReplicationError, StoreError
from cystore.ha.copied_log import CopiedLog
from cystore.ha.election.etcd import Etcd
from cystore.ha.election.full_disk import FullDisk
from cystore.ha.election.group import Elected, Group, View
from cystore.ha.election.keeper import Keeper
from cystore.ha.epochs.confirmed_file import read_confirmed
from cystore.ha.epochs.history import History, doubt_history, history_of, keep_history
from cystore.ha.epochs.in_sync import InSync
from cystore.ha.epochs.membership import CutNeededError, Membership
from cystore.ha.epochs.session import Session
from cystore.ha.epochs.truncation import order_truncation, ordered_truncation
from cystore.ha.facts.followed import FollowedFacts
from cystore.ha.facts.shipment import GroupOffsets
from cystore.ha.home import new_log_id
from cystore.ha.link.secret import check_strangers
from cystore.ha.lock import ReplicationLock
from cystore.ha.master import Master
from cystore.ha.role import (
    FLAG_SLAVE,
    Role,
    advertised,
    end_slave,
    is_copied,
    keep_place,
    place_of,
    role_of,
)
from cystore.ha.slave import Slave
from cystore.ha.status import ReplicationStatus, read_status, write_status
from cystore.services.retention.hold import HoldTable
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

TURN_S, TELL_S = 0.5, 1.0
PAUSE_S = 0.05  # of a member that has nothing to do until the state in etcd changes
RETRY_S = 0.2  # before a replica calls its master again
TIMEOUTS_OF_LEASE = 6  # a call of etcd waits for one part in so many of a lease


class ElectedReplication:
    """The work of the service in one process."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        manifest: Manifest,
        holds: HoldTable,
        appender: Appender,
        config: StoreConfig,
        stopping: Callable[[], bool] = lambda: False,
        groups: GroupOffsets | None = None,
        facts: FollowedFacts | None = None,
    ) -> None:
        self._control, self._commit_log, self._manifest = control, commit_log, manifest
        self._holds, self._appender, self._config, self._stopping = holds, appender, config, stopping
        self._groups, self._facts = groups, facts
        self._root = commit_log.files.root
        self._lock = ReplicationLock(self._root)
        self._role: Role | None = None
        self._group: Group | None = None
        self._keeper: Keeper | None = None
        self._master: Master | None = None
        self._session: Session | None = None
        self._slave: Slave | None = None
        self._followed: Elected | None = None
        self._since_s = monotonic_s()  # this process may campaign since then
        self._told_s = self._tried_s = 0.0
        self._state = self._told_state = self._failed = ""
        self._not_handed = ""  # a member that an operator wants, and that could not become master
        self._stood: View | None = None
        self._told_full: View | None = None  # the state that was read before `_tell_full` wrote
        space = DiskSpace(self._root, control, Policy(manifest, config), commit_log.folders)
        self._disk = FullDisk(space, config.ha_lease_ms / 1000)
        self._vacant_s = 0.0  # the group has no master since then; 0: it has one
        self._pausing = os_threads.Flag()
        self._bound_readers()

    def _bound_readers(self) -> None:
        """After a restart of all processes: readers see what was confirmed before. All of that is in every log that may
        become the group's. If the status is lost, they see nothing until the group has a master. While another process
        replicates, it is the one that knows."""
        facts = self._manifest.snapshot()
        known = max(read_status(self._root).confirmed, read_confirmed(self._root))
        if role_of(facts).is_elected and history_of(facts).begins and self._lock.take():
            self._control.raise_confirmed(min(known, self._control.wrote))
            self._control.confirming = 1

    # ------------------------------------------------------------------------------------------------ turns

    def run_once(self) -> Progress:
        """Serves, follows or campaigns for one turn; does nothing while another process of this store works."""
        role = role_of(self._manifest.snapshot())
        if role != self._role:
            self._leave()
            self._role = role
            if not role.is_elected:
                self._lock.give()  # another process works for the new role
                if not role.is_slave:  # the master says what is confirmed in a slave
                    self._control.confirming = 0
        if not role.is_elected or not self._lock.take():
            return Progress(0)
        keeper = self._keeper or self._enter(role)
        until_s, done = monotonic_s() + TURN_S, 0
        while monotonic_s() < until_s and not self._stopping():
            done += self._turn(role, keeper)
            self._tell()
        return Progress(done, more=not self._stopping())

    def _enter(self, role: Role) -> Keeper:
        check_strangers(self._config)  # before this member can be elected
        self._bound_readers()
        self._look_at_place()
        lease_ms = self._config.ha_lease_ms
        timeout_s = lease_ms / 1000 / TIMEOUTS_OF_LEASE
        self._group = Group(Etcd(self._config, role.etcd, timeout_s), role.group)
        # The keeper has its own clients, because a client serves only one thread.
        watched = Group(Etcd(self._config, role.etcd, timeout_s), role.group)
        self._keeper = Keeper(self._control, watched, lease_ms)
        return self._keeper

    def _look_at_place(self) -> None:
        """A copy of a member, for example a restored backup, may lack records that the member acknowledged."""
        if is_copied(self._root, self._manifest.snapshot()):
            log.warning(
                "%s: a copy of another member's directory: no candidate before it has caught up", self._root
            )
            doubt_history(self._manifest)
        keep_place(self._manifest, self._root)

    def _turn(self, role: Role, keeper: Keeper) -> int:
        view, epoch = keeper.view, self._control.epoch
        cut = ordered_truncation(self._manifest.snapshot())
        if cut is not None:
            return self._wait_for_truncation(*cut)
        if not epoch and self._control.flags & SYNC_FAILED:
            self._end_slave()
            self._say("the disk failed: every process has to close this store")
            return self._pause("its disk failed")
        if view is None:
            return self._pause("etcd does not answer")
        self._tell_full(role, view)
        master = view.master
        mine = master is not None and master.store_id == self._store_id
        if epoch:
            if keeper.lease_is_over:
                self._step_down("the lease is over")
            elif mine and master is not None and master.epoch == epoch:
                return self._serve(role, keeper, view)
            elif self._master is not None and view.revision < epoch:
                return self._master.turn()  # etcd was asked before the election
            else:
                self._step_down("etcd names another master, or none")
            return 0
        if mine and master is not None:
            self._give_back(master)
            return self._pause("a lease of an earlier life of this store is over")
        if master is not None:
            self._vacant_s = 0.0
            return self._follow(role, master)
        self._end_slave()
        return self._campaign(role, keeper, view)

    def _tell_full(self, role: Role, view: View) -> None:
        """Tells the others that the disk is full, or that it has space again, once for each state read from etcd. So no
        member hands over to one that can append as little."""
        assert self._group is not None
        known = role.member in view.full
        full = self._disk.is_full if known else self._disk.lasts
        if full == known or view is self._told_full:
            return
        self._told_full = view
        try:
            self._group.tell_full(role.member, full)
        except ElectionError as error:
            self._say(str(error))

    def _pause(self, state: str) -> int:
        self._state = state
        self._pausing.wait(PAUSE_S)
        return 0

    @property
    def _store_id(self) -> str:
        """A copy of the directory has another one, so it does not take the lease of this store for its own."""
        return f"{self._manifest.snapshot().store_id}.{place_of(self._root)}"

    def _give_back(self, master: Elected) -> None:
        """Ends a lease of an earlier run of this store. etcd still has the store as master, but the present control
        block never had an epoch: all processes had ended in between."""
        assert self._group is not None
        try:
            self._group.resign(master.lease)
        except ElectionError as error:
            self._say(str(error))

    def _wait_for_truncation(self, position: int, end: int) -> int:
        """Waits until a process is alone in the store: it truncates the log. Until then the store is no member."""
        if self._control.epoch:
            self._step_down("the log has to be cut")
        self._end_slave()
        if not self._control.handover:
            ask_to_leave(self._root)
        self._say(
            f"the log from {position} to {end} is not the master's: every process has to close this store"
        )
        return self._pause("waits for all processes to close the store: its log has to be cut")

    # ------------------------------------------------------------------------------------------------ candidate

    def _campaign(self, role: Role, keeper: Keeper, view: View) -> int:
        history, state = history_of(self._manifest.snapshot()), view.state
        if view.wanted and view.wanted != role.member and state is not None and view.wanted in state.in_sync:
            return self._pause(f"leaves the election to {view.wanted}")
        if state is None:
            log_id = history.log_id or new_log_id(self._root)
            waited_ms = (monotonic_s() - self._since_s) * 1000
            if self._control.wrote == 0 and waited_ms < self._config.ha_lease_ms:
                return self._pause("empty: leaves the first election to a store with a log for a while")
        elif role.member not in state.in_sync:
            return self._pause("not in sync, so no candidate")
        elif history.doubtful and view.wanted != role.member:
            return self._pause(
                "new here, a copy, or its disk lost durable records: no candidate before it has caught up"
            )
        elif state.log_id != history.log_id:
            self._say(
                f"in etcd the group has the log {state.log_id}, and this store has {history.log_id or 'none of it'}"
            )
            return self._pause("has another log than the group, so no candidate")
        elif self._leaves_election(bool(state.in_sync - view.full - {role.member})):
            return self._pause("its disk is full: leaves the election to the others for a while")
        else:
            log_id = state.log_id
        return self._stand(role, keeper, view, history._replace(log_id=log_id))

    def _leaves_election(self, others: bool) -> bool:
        """Whether the disk is full, and another member has had less than two leases to be elected. `others`: the disk
        of one in sync has space."""
        now_s = monotonic_s()
        self._vacant_s = self._vacant_s or now_s
        waits = now_s - self._vacant_s < 2 * self._config.ha_lease_ms / 1000
        return others and waits and self._disk.is_full

    def _stand(self, role: Role, keeper: Keeper, view: View, history: History) -> int:
        """Stands for election, once for each state read from etcd."""
        assert self._group is not None
        if view is self._stood:
            return self._pause("candidate")
        self._stood = view
        asked_ms = boottime_ms()
        try:
            lease = self._group.grant(-(-self._config.ha_lease_ms // 1000))
            me = Elected(role.member, advertised(self._config), self._store_id, 0, lease)
            epoch, in_sync = self._group.elect(view, me, history.log_id)
            if not epoch:
                self._group.resign(lease)
        except ElectionError as error:
            self._say(str(error))
            return self._pause("etcd does not answer")
        if not epoch:
            return self._pause("another member was faster")
        self._begin_epoch(role, keeper, epoch, history, in_sync)
        keeper.hold(lease, asked_ms)
        return 1

    def _begin_epoch(
        self, role: Role, keeper: Keeper, epoch: int, history: History, in_sync: frozenset[str]
    ) -> None:
        """Begins an epoch as master. The log below the epoch's start, and then the start itself, become durable before
        the first append of the epoch."""
        control = self._control
        start = control.wrote
        self._appender.policy.reach(start, FLUSH_SYNC)
        history = history.begun(epoch, start)
        keep_history(self._manifest, history)
        control.lease_until_ms = 0
        control.confirming = 1
        if in_sync == {role.member}:  # no other member can be elected before it has all of this log
            control.raise_confirmed(start)
        self._set_in_sync(in_sync)
        self._open_session(role, keeper, epoch, history, in_sync)
        control.epoch = epoch
        end_slave(control)
        self._failed = ""  # what was wrong with the last master
        log.info("%s: master of group %s in epoch %d from %d on", self._root, role.group, epoch, start)

    def _open_session(
        self, role: Role, keeper: Keeper, epoch: int, history: History, in_sync: frozenset[str]
    ) -> None:
        members = InSync(
            role.member, in_sync, self._config.ha_in_sync_lag_ms / 1000, self._config.min_in_sync_replicas
        )
        members.begin(monotonic_s())
        self._session = Session(
            role.group,
            epoch,
            history,
            members,
            keeper.look_soon,
            lambda wanted: keeper.propose(epoch, wanted),
        )
        self._master = Master(
            self._control,
            self._commit_log,
            self._manifest,
            self._holds,
            self._config,
            self._session,
            self._groups,
        )

    def _set_in_sync(self, in_sync: frozenset[str]) -> None:
        self._control.in_sync_needed = self._config.min_in_sync_replicas
        self._control.in_sync = len(in_sync)

    # ------------------------------------------------------------------------------------------------ master

    def _serve(self, role: Role, keeper: Keeper, view: View) -> int:
        if self._master is None or self._session is None:
            return self._resume(role, keeper, view)
        self._state = "master"
        answer = keeper.answered()
        if answer is not None:
            self._session.answered(*answer)
            self._set_in_sync(self._session.in_sync.committed)
            log.info("%s: in sync: %s", self._root, ", ".join(sorted(self._session.in_sync.committed)))
        if self._control.flags & FLAG_SLAVE:  # a process that opened the store took the store for a replica
            end_slave(self._control)
        if view.wanted and view.wanted not in (role.member, self._not_handed):
            self._hand_over(view.wanted)
        elif not view.wanted:
            self._not_handed = ""
        if self._control.flags & SYNC_FAILED:
            self._leave_failed_disk()
        elif self._disk.lasts:
            self._leave_full_disk(view)
        return 0 if self._master is None else self._master.turn()

    def _resume(self, role: Role, keeper: Keeper, view: View) -> int:
        """Continues an epoch whose serving process died. A change that the dead process requested from etcd may still
        arrive. So this process writes the state again: its revision changes, and the late change fails."""
        assert self._group is not None and view.master is not None
        asked_ms = boottime_ms()
        try:
            if view.state is None or not self._group.set_in_sync(view, view.master.epoch, view.state.in_sync):
                return self._pause("looks at the group again")
            if not self._group.keep(view.master.lease):
                return self._pause("the lease is over")
        except ElectionError as error:
            self._say(str(error))
            return self._pause("etcd does not answer")
        self._control.confirming = 1
        self._set_in_sync(view.state.in_sync)
        history = history_of(self._manifest.snapshot())
        self._open_session(role, keeper, view.master.epoch, history, view.state.in_sync)
        keeper.hold(view.master.lease, asked_ms)
        log.info("%s: continues as master in epoch %d", self._root, view.master.epoch)
        return 1

    def _hand_over(self, wanted: str) -> None:
        """Hands over to the member that an operator wants: refuses puts, ships the rest of the log to it, then ends the
        lease. If that member does not get the rest in time, this master continues and ignores the order."""
        assert self._master is not None and self._session is not None
        self._not_handed = wanted
        self._hand_to(wanted, f"an operator wants {wanted}")

    def _leave_full_disk(self, view: View) -> None:
        """Hands over to a member that has the whole log, and space."""
        assert self._master is not None and self._session is not None
        in_sync, wrote = self._session.in_sync.committed - view.full, self._control.wrote
        able = [s.member for s in self._master.slaves() if s.member in in_sync and s.acknowledged >= wrote]
        if able:
            self._hand_to(able[0], f"its disk is full; {able[0]} has the whole log")
            self._disk.wait_again()

    def _leave_failed_disk(self) -> None:
        """Hands over to the member in sync that has most of the log. Nothing that only this store has was
        acknowledged, so it need not have all."""
        assert self._master is not None and self._session is not None
        in_sync = self._session.in_sync.committed
        able = sorted((s.acknowledged, s.member) for s in self._master.slaves() if s.member in in_sync)
        why = "its disk failed"
        if able:
            self._hand_to(able[-1][1], why)
            if self._master is not None:
                self._step_down(why)
        else:
            self._say(f"{why}, and no other member is in sync: nobody takes puts")

    def _hand_to(self, wanted: str, why: str) -> None:
        assert self._master is not None and self._session is not None
        if wanted not in self._session.in_sync.committed:
            self._say(f"{wanted} is not in sync, so it cannot become master")
            return
        self._refuse_puts()
        until_s = monotonic_s() + self._config.slave_timeout_ms / 1000
        while monotonic_s() < until_s and not self._stopping():
            self._master.turn()
            if any(
                s.member == wanted and s.acknowledged >= self._control.wrote for s in self._master.slaves()
            ):
                self._step_down(why)
                return
        end_slave(self._control)
        self._say(f"{wanted} did not get the rest of the log in time, so it does not become master")

    def _refuse_puts(self) -> None:
        """Refuses puts; returns when no append is in progress."""
        self._control.set_flag(FLAG_SLAVE)
        with self._control.held("append"):
            pass

    def _step_down(self, why: str) -> None:
        epoch = self._control.epoch
        self._refuse_puts()
        lease = 0 if self._keeper is None else self._keeper.let_go()
        self._control.epoch = 0
        self._control.in_sync = 0
        master, self._master, self._session = self._master, None, None
        if master is not None:
            master.close()
        log.warning("%s: not the master any more after epoch %d: %s", self._root, epoch, why)
        if lease and self._group is not None:
            try:
                self._group.resign(lease)
            except ElectionError as error:
                self._say(str(error))

    # ------------------------------------------------------------------------------------------------ replica

    def _follow(self, role: Role, master: Elected) -> int:
        if master.member == role.member:
            self._say(
                f"another store of the group {role.group} has this one's name {role.member} (ha_member)"
            )
            return self._pause("another store has this one's name")
        if self._followed != master or self._slave is None:
            self._end_slave()
            copied = CopiedLog(
                self._control,
                self._commit_log,
                self._appender.policy,
                self._manifest,
                self._config.max_message_size_bytes,
            )
            membership = Membership(self._manifest, role.group, role.member, master.epoch)
            self._slave = Slave(
                self._control, self._commit_log, copied, self._config, master.address, membership, self._facts
            )
            self._followed, self._tried_s = master, 0.0
        if not self._slave.is_connected:
            if monotonic_s() - self._tried_s < RETRY_S:
                return self._pause(f"replica of {master.member}, not connected")
            self._tried_s = monotonic_s()
        try:
            received = self._slave.turn()
        except CutNeededError as error:
            order_truncation(self._manifest, error.position, self._control.wrote)
            return 0
        except (OSError, ReplicationError) as error:
            if isinstance(error, StoreError) and not isinstance(error, ReplicationError):
                raise
            self._say(f"the master {master.member} at {master.address}: {error}; trying again")
            return 0
        self._failed, self._state = "", f"replica of {master.member}"
        return received

    def _end_slave(self) -> None:
        slave, self._slave, self._followed = self._slave, None, None
        if slave is not None:
            slave.close()

    # ------------------------------------------------------------------------------------------------ the rest

    def _say(self, text: str) -> None:
        if text != self._failed:
            self._failed = text
            log.warning("%s: %s", self._root, text)

    def _tell(self, *, now: bool = False) -> None:
        if now or self._state != self._told_state or monotonic_s() - self._told_s >= TELL_S:
            self._told_s, self._told_state = monotonic_s(), self._state
            write_status(self._root, self._status())

    def _status(self) -> ReplicationStatus:
        known = ReplicationStatus(state=self._state, problem=self._failed, confirmed=self._control.confirmed)
        if self._master is not None and self._session is not None:
            wrote = self._control.wrote
            slaves = tuple((s.member or s.name, s.acknowledged, s.is_ours) for s in self._master.slaves())
            in_sync = tuple(sorted(self._session.in_sync.committed))
            listens = "{}:{}".format(*self._master.address)
            return known.with_facts(
                listens=listens, slaves=slaves, epoch=self._session.epoch, in_sync=in_sync, wrote=wrote
            )
        if self._slave is not None and self._followed is not None:
            return known.with_facts(
                master=self._slave.master,
                connected=self._slave.is_connected,
                masters_end=self._slave.masters_end,
                epoch=self._followed.epoch,
            )
        return known

    def _leave(self) -> None:
        """Ends all work. A master gives its lease back, so that no member has to wait until it ends."""
        if self._master is not None:
            self._step_down("this process leaves")
        self._end_slave()
        keeper, self._keeper = self._keeper, None
        group, self._group = self._group, None
        if keeper is not None:
            keeper.close()
            self._tell(now=True)
        if group is not None:
            group.close()

    def close(self) -> None:
        """Ends all work, then releases the lock, so that another process can continue."""
        try:
            self._leave()
        finally:
            self._lock.give()
