"""The master: listens, and ships the log to the slaves that connect. Source: HAService, HAConnection.

One thread serves all slaves of a store. A slave that sends invalid words, or nothing, loses its connection; the other
slaves are not affected. A connection is a guest until its slave has proved what this master asks for. Guests are few
and short. They take no slave's place, and learn nothing of the store.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from cystore._native.memory.control import Control
from cystore._native.replication import outflow
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import ReplicationError, StoreClosedError, StoreError, StoreResourceError
from cystore.ha.connection import SlaveConnection, Stalled
from cystore.ha.epochs.session import Session
from cystore.ha.facts.collected import CollectedFacts
from cystore.ha.facts.shipment import GroupOffsets
from cystore.ha.home import named_home
from cystore.ha.link.secret import (
    asks_for_certificates,
    check_strangers,
    check_unencrypted,
    masters_context,
    read_secret,
    wrapped,
)
from cystore.ha.link.sockets import is_loopback, ours
from cystore.ha.link.wire import Hello
from cystore.ha.slave_hold import SlaveHold
from cystore.ha.slave_progress import REPORTED, SlaveProgress
from cystore.ha.waiting_puts import WaitingPuts
from cystore.services.retention.hold import HoldTable

log = logging.getLogger("cystore")

SLAVES_MAX = 64
GUESTS_MAX = 32
GUEST_LEAST_S = 0.2  # no guest has to go for another one before that: a proof takes some turns
BUSY_S, BUSY_WAIT_S, IDLE_WAIT_S = (
    0.2,
    0.001,
    0.02,
)  # checks for appends: more often for BUSY_S after the last one
LOOK_S = 0.5  # between two checks for silent slaves


class Master:
    """Serves the slaves of one store until `close`."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        manifest: Manifest,
        holds: HoldTable,
        config: StoreConfig,
        session: Session | None = None,
        groups: GroupOffsets | None = None,
    ) -> None:
        self._control, self._commit_log, self._manifest, self._config = control, commit_log, manifest, config
        self._session = session
        self._facts = CollectedFacts(control, manifest, groups)
        self._progress = SlaveProgress(control, config, commit_log.files.root)
        self._hold = SlaveHold(control, commit_log, holds, config)
        self._secret, self._context = read_secret(config), masters_context(config)
        self._slaves: dict[socket.socket, SlaveConnection] = {}
        self._guests: dict[socket.socket, SlaveConnection] = {}  # the oldest first
        self._accepts, self._accept_s = True, 0.0  # it accepts no connection before that time
        self._looked_s = self._busy_s = monotonic_s()
        self._listener = _listening(config, plain=self._context is None)
        self._selector = selectors.DefaultSelector()
        self._puts = WaitingPuts(control)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._puts.socket, selectors.EVENT_READ)
        self._progress.connected(0)
        self._counted = 0
        self._flushed: int | None = 0  # published to the members' puts; None: a report must come first
        self._stalled = Stalled(commit_log.files.root)
        self._tell_plain()

    @property
    def address(self) -> tuple[str, int]:
        """The address on which it listens."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def _tell_plain(self) -> None:
        """Says at each start what ha_allow_plain allows here."""
        root, (host, port) = self._commit_log.files.root, self.address
        if self._secret is None and not asks_for_certificates(self._config):
            log.warning(
                "%s: serves slaves on %s:%d without a secret (ha_allow_plain): every program that can connect reads "
                "the whole log and can acknowledge replicated puts",
                root,
                host,
                port,
            )
        elif self._context is None and not is_loopback(self._listener, peer=False):
            log.warning(
                "%s: serves slaves on %s:%d without TLS (ha_allow_plain): anybody in between can read and change the "
                "log",
                root,
                host,
                port,
            )

    def slaves(self) -> list[SlaveConnection]:
        """The slaves that are connected, without guests."""
        return list(self._slaves.values())

    def _all(self) -> list[SlaveConnection]:
        return [*self._guests.values(), *self._slaves.values()]

    def turn(self, wait_s: float = IDLE_WAIT_S) -> int:
        """Waits at most `wait_s` for work, and serves the slaves. Returns the number of shipped bytes."""
        now_s = monotonic_s()
        flowed = self._serve_flows(now_s, wait_s)
        if flowed is not None or any(
            slave.has_work and not slave.has_unsent for slave in self._slaves.values()
        ):
            wait_s = 0.0
        elif now_s - self._busy_s < BUSY_S:
            wait_s = min(wait_s, BUSY_WAIT_S)
        for key, events in self._selector.select(wait_s):
            if key.fileobj is self._listener:
                self._accept(now_s)
            elif key.fileobj is self._puts.socket:
                self._puts.clear()
            elif events & selectors.EVENT_READ:
                self._attempt(key.data, key.data.receive)
        for guest in list(self._guests.values()):
            if guest.is_known:
                self._attempt(guest, partial(self._admit, guest))
        self._count()  # first: who sees that a slave has the log, may put with flush="replicated"
        shipped = sum(self._attempt(slave, slave.send) or 0 for slave in self._all()) + (flowed or 0)
        if shipped:
            self._busy_s = monotonic_s()
        self._after(now_s)
        return shipped

    def _serve_flows(self, now_s: float, wait_s: float) -> int | None:
        """If all slaves get nothing but log, serves them for `wait_s` without the interpreter's lock, or until one
        needs more than that. Returns the number of shipped bytes; None if it did nothing."""
        slaves = self.slaves()
        if not slaves or not all(slave.flows for slave in slaves):
            return None
        flows = [slave.flow for slave in slaves]
        before = sum(flow.next - flow.left for flow in flows)
        turn_ms = int(wait_s * 1000)
        look_ms = int(BUSY_WAIT_S * 1000) if now_s - self._busy_s < BUSY_S else turn_ms
        outflow.serve(
            self._control,
            flows,
            self._puts.socket.fileno(),
            self._listener.fileno() if self._accepts else -1,
            self._commit_log.file_bytes,
            look_ms,
            turn_ms,
            REPORTED if self._session is None else None,
            self._flushed,
        )
        return sum(flow.next - flow.left for flow in flows) - before

    def _after(self, now_s: float) -> None:
        self._acknowledge(now_s)
        self._offer_facts(now_s)
        self._look_at_listener(now_s)
        for slave in self._all():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slave.has_unsent else 0)
            if self._selector.get_key(slave.socket).events != wanted:
                self._selector.modify(slave.socket, wanted, slave)
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for slave in self._all():
                self._attempt(slave, slave.check_time)
                self._stalled.moved(slave)
            self._hold.keep(
                {slave.name: slave.acknowledged for slave in self.slaves() if slave.acknowledged >= 0}
            )

    def _acknowledge(self, now_s: float) -> None:
        """Publishes the slaves' progress; for an elected master, the position that every member in sync has on disk."""
        if self._session is None:
            for slave in self._slaves.values():
                if slave.acknowledged >= 0:
                    self._progress.reported(slave.acknowledged)
            return
        control = self._control
        positions = {
            slave.member: slave.acknowledged
            for slave in self._slaves.values()
            if slave.member and slave.acknowledged >= 0
        }
        known = max(self._progress.position, control.confirmed)
        flushed = control.flushed
        acknowledged, confirmed = self._session.reported(positions, control.wrote, flushed, known, now_s)
        self._flushed = None if self._session.in_sync.awaits_reports(flushed) else flushed
        self._progress.confirmed(confirmed)  # first: who put a record, finds it
        self._progress.reported(acknowledged)

    def _offer_facts(self, now_s: float) -> None:
        if any(slave.asks_facts for slave in self._slaves.values()):
            facts = self._facts.read(now_s)
            for slave in self._slaves.values():
                slave.offer(facts)

    def _hello(self, nonce: str) -> Hello:
        """Reads the minimum before the end, so that it is never above the end if the log is cleaned meanwhile."""
        minimum = self._control.min_physical_offset
        store_id = self._manifest.snapshot().store_id
        epoch = 0 if self._session is None else self._session.epoch
        home = named_home(self._commit_log.files.root, self._manifest)
        wrote, file_bytes = self._control.wrote, self._commit_log.file_bytes
        return Hello(store_id, minimum, wrote, file_bytes, nonce, epoch, home, facts=True)

    def _look_at_listener(self, now_s: float) -> None:
        """Leaves new connections to the system while there are too many guests. So they cost this thread nothing, and
        each guest has the time for its proof."""
        accepts = self._has_room(now_s)
        if accepts != self._accepts:
            self._accepts = accepts
            if accepts:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _has_room(self, now_s: float) -> bool:
        """Whether a guest may come: the oldest may have to go for it."""
        if now_s < self._accept_s:
            return False
        oldest = next(iter(self._guests.values()), None)
        return (
            len(self._guests) < GUESTS_MAX or oldest is None or now_s - oldest.flow.heard_s >= GUEST_LEAST_S
        )

    def _accept(self, now_s: float) -> None:
        for _ in range(GUESTS_MAX):
            if not self._has_room(now_s) or not self._accept_one(now_s):
                return

    def _accept_one(self, now_s: float) -> bool:
        """Accepts a connection as a guest; False if there is none."""
        try:
            plain, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return False
        except OSError as error:  # no descriptor is free
            self._accept_s = now_s + LOOK_S
            self._stalled.refused("a slave", error, "accept")
            return False
        ours(plain)
        name = f"{address[0]}:{address[1]}"
        connection = plain
        try:
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = wrapped(self._context, plain)
            slave = SlaveConnection(
                connection,
                name,
                self._control,
                self._commit_log,
                self._config,
                self._hello,
                self._secret,
                self._session,
                self._stalled,
            )
            self._selector.register(connection, selectors.EVENT_READ, slave)
        except (OSError, StoreError) as error:
            self._stalled.refused(name, error, "accept")
            connection.close()
            return True
        if len(self._guests) >= GUESTS_MAX:
            oldest = next(iter(self._guests.values()))
            self._stalled.refused(
                oldest.name, ReplicationError("too many connections without a proof"), "no proof"
            )
            self._let_go(oldest)
        self._guests[connection] = slave
        return True

    def _admit(self, guest: SlaveConnection) -> None:
        """Makes a slave of a guest that is known. If there are too many slaves, the oldest that does not follow has to
        go. Raises ReplicationError if all follow."""
        if len(self._slaves) >= SLAVES_MAX:
            idle = next((slave for slave in self._slaves.values() if not slave.is_following), None)
            if idle is None:
                raise ReplicationError(f"there are {SLAVES_MAX} slaves already")
            self._stalled.ended(idle, ReplicationError("too many connections"))
            self._let_go(idle)
        self._slaves[guest.socket] = self._guests.pop(guest.socket)

    def _attempt(self, slave: SlaveConnection, work: Callable[[], Any]) -> Any:
        """Calls `work`; an error of one slave closes that slave's connection."""
        if slave.socket not in self._slaves and slave.socket not in self._guests:
            return None
        try:
            return work()
        except StoreClosedError:
            raise
        except (OSError, StoreError, ssl.SSLError) as error:
            self._stalled.ended(slave, error)
            self._let_go(slave)
        return None

    def _let_go(self, slave: SlaveConnection) -> None:
        self._selector.unregister(slave.socket)
        (self._guests if slave.socket in self._guests else self._slaves).pop(slave.socket)
        slave.close()
        self._count()

    def _count(self) -> None:
        count = sum(slave.is_following for slave in self._slaves.values())
        if count != self._counted:
            self._progress.connected(count)
            self._counted = count

    def close(self) -> None:
        """Ends all connections."""
        for slave in self._all():
            self._selector.unregister(slave.socket)
            slave.close()
        self._slaves.clear()
        self._guests.clear()
        if not self._control.closed:
            self._count()
        self._progress.close()
        self._puts.close()
        self._selector.close()
        self._listener.close()


def _listening(config: StoreConfig, *, plain: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.ha_listen_host else socket.AF_INET
    listener = ours(socket.socket(family, socket.SOCK_STREAM))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((config.ha_listen_host, config.ha_listen_port))
        if plain:
            check_unencrypted(config, listener, peer=False)
        check_strangers(config)
        listener.listen(SLAVES_MAX)
    except OSError as error:
        listener.close()
        raise StoreResourceError(
            f"cannot listen on {config.ha_listen_host}:{config.ha_listen_port}: {error}"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener
