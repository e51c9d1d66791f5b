"""The service "ha": one process of a store serves its slaves, or follows its master. If that process dies, another
continues.

The process that works holds the lock of a file. The kernel releases the lock when the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cystore._native.append.appender import Appender
from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.progress import Progress
from cystore.engine.inspect.control_head import ask_to_leave
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import ReplicationError, StoreError
from cystore.ha.copied_log import CopiedLog
from cystore.ha.epochs.confirmed_file import read_confirmed
from cystore.ha.epochs.membership import CutNeededError
from cystore.ha.epochs.truncation import order_truncation, ordered_truncation
from cystore.ha.facts.followed import FollowedFacts
from cystore.ha.facts.shipment import GroupOffsets
from cystore.ha.link.address import masters_of
from cystore.ha.lock import ReplicationLock
from cystore.ha.master import Master
from cystore.ha.role import Role, role_of
from cystore.ha.slave import Slave
from cystore.ha.status import ReplicationStatus, read_status, write_status
from cystore.services.retention.hold import HoldTable

log = logging.getLogger("cystore")

TURN_S = 0.5
TELL_S = 1.0
RETRY_S = 0.5  # RocketMQ's slave: 5 s


class Replication:
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
        self._holds, self._appender, self._config = holds, appender, config
        self._stopping, self._groups, self._facts = stopping, groups, facts
        self._lock = ReplicationLock(commit_log.files.root)
        self._role: Role | None = None
        self._master: Master | None = None
        self._slave: Slave | None = None
        self._failed = ""
        self._place = 0  # of the next master among the addresses of a slave
        self._told_s = 0.0
        root = commit_log.files.root
        confirmed = max(read_status(root).confirmed, read_confirmed(root))
        # Its master was elected. While another process follows, it is the one that knows.
        if role_of(manifest.snapshot()).is_slave and confirmed > 0 and self._lock.take():
            control.raise_confirmed(min(confirmed, control.wrote))
            control.confirming = 1

    def _tell(self, *, now: bool = False) -> None:
        """Writes the status file at most every TELL_S seconds, or `now`. `cystore ha status` shows it."""
        if now or monotonic_s() - self._told_s >= TELL_S:
            self._told_s = monotonic_s()
            write_status(self._commit_log.files.root, self._status())

    def _status(self) -> ReplicationStatus:
        if self._slave is not None:
            known = ReplicationStatus(
                "", (), self._slave.master, self._slave.is_connected, self._slave.masters_end
            )
            return known.with_facts(confirmed=self._control.confirmed if self._control.confirming else 0)
        if self._master is None:
            return ReplicationStatus()
        wrote = self._control.wrote
        slaves = tuple((slave.name, slave.acknowledged, slave.is_ours) for slave in self._master.slaves())
        return ReplicationStatus("{}:{}".format(*self._master.address), slaves, wrote=wrote)

    @property
    def master(self) -> Master | None:
        """The master, in the process that serves slaves; otherwise None."""
        return self._master

    def run_once(self) -> Progress:
        """Serves or follows for one turn; does nothing while another process works."""
        role = role_of(self._manifest.snapshot())
        if role != self._role:
            self._end_work()
            self._role = role
            if not role.is_slave and not role.is_elected:
                self._control.confirming = 0  # this process may have connected once more as a slave
            if self._idle(role):
                self._lock.give()  # another process works for the new role
        if self._idle(role) or not self._lock.take():
            return Progress(0)
        cut = ordered_truncation(self._manifest.snapshot()) if role.is_slave else None
        if cut is not None:
            self._wait_for_truncation(*cut)
            return Progress(0)
        until_s, done = monotonic_s() + TURN_S, 0
        while monotonic_s() < until_s and not self._stopping():
            if role.is_slave:
                done += self._follow(role)
                if self._slave is None or not self._slave.is_connected:
                    self._tell(now=True)
                    return Progress(done)
            else:
                done += self._serve()
            self._tell()
        return Progress(done, more=not self._stopping())

    def _idle(self, role: Role) -> bool:
        return role.is_elected or (not role.is_slave and not self._config.ha_listen_port)

    def _serve(self) -> int:
        if self._master is None:
            self._master = Master(
                self._control,
                self._commit_log,
                self._manifest,
                self._holds,
                self._config,
                groups=self._groups,
            )
            log.info("%s: serves slaves on %s:%d", self._commit_log.files.root, *self._master.address)
        return self._master.turn()

    def _follow(self, role: Role) -> int:
        masters = masters_of(role.master)
        master, slave = masters[self._place % len(masters)], self._slave
        if slave is None and not self._config.ha_secret_file and not self._config.ha_tls_ca_file:
            log.warning(
                "%s: follows %s without a secret (ha_secret_file) and without TLS: a program that listens there in the "
                "master's place gives this store any log",
                self._commit_log.files.root,
                role.master,
            )
        if slave is None or (not slave.is_connected and slave.master != master):
            least_epoch, greeting_s = (0, None) if slave is None else (slave.epoch, slave.greeting_s)
            copied = CopiedLog(
                self._control,
                self._commit_log,
                self._appender.policy,
                self._manifest,
                self._config.max_message_size_bytes,
            )
            slave = self._slave = Slave(
                self._control,
                self._commit_log,
                copied,
                self._config,
                master,
                facts=self._facts,
                least_epoch=least_epoch,
                greeting_s=greeting_s,
            )
        was_connected = slave.is_connected
        try:
            received = slave.turn()
        except CutNeededError as error:
            order_truncation(self._manifest, error.position, self._control.wrote)
            return 0
        except ReplicationError:
            self._place += 1
            raise
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            self._place += not was_connected  # a master that was started again is asked first
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("%s: the master %s: %s; trying again", self._commit_log.files.root, master, error)
            return 0
        self._failed = ""
        return received

    def _wait_for_truncation(self, position: int, end: int) -> None:
        """Asks all processes to leave: the next one that is alone in the store truncates the log."""
        self._end_work()
        if not self._control.handover:
            log.warning(
                "%s: the log from %d to %d is not the master's: every process has to close this store, and the "
                "next one truncates it",
                self._commit_log.files.root,
                position,
                end,
            )
            ask_to_leave(self._commit_log.files.root)

    def _end_work(self) -> None:
        master, self._master = self._master, None
        slave, self._slave = self._slave, None
        if master is not None:
            master.close()
        if slave is not None:
            slave.close()
        if master is not None or slave is not None:
            self._tell(now=True)

    def close(self) -> None:
        """Ends all connections, then releases the lock, so that another process can work."""
        try:
            self._end_work()
        finally:
            self._lock.give()
