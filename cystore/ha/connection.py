"""The master's side of one slave's connection. Source: HAConnection; here one thread serves all connections."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from cystore._native.memory.control import Control
from cystore._native.replication.outflow import Outflow
from cystore._native.system.descriptor import Descriptor
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import ReplicationError, StoreError
from cystore.ha.epochs.session import Session
from cystore.ha.facts.collected import Sealed
from cystore.ha.link import wire
from cystore.ha.link.secret import Secret
from cystore.ha.link.wire import Hello
from cystore.system import files
from cystore.system.threads.repeated_errors import RareLines

log = logging.getLogger("cystore")

IN_BYTES = 4096  # of reports, read at once
TURN_BYTES = 4 << 20  # shipped to one slave before the others get their turn
OWN_FRAME_BYTES = 1 << 20  # to a slave of cystore, if ha_transfer_batch_size_bytes is not given
ANSWERS_BYTES_MAX = 64 << 10  # a slave that asks and does not read the answers loses its connection
TLS_BYTES = 256 << 10  # encrypted at once; if the connection takes less, the same bytes are given once more
NEWS_S = 0.01  # a member that has all of the log hears of the confirmed position this often
# For one connection: a slave asks for the digest of its last record, and searches for the last common one.
DIGESTS_MAX, DIGEST_BYTES_MAX = 256, 64 << 20
STALLED_MAX = 256
PROOF_S = 5.0  # for the TLS handshake and the proof; a slave waits as long for its master's words
LINES_MOST = 10  # a minute, about the beginnings of connections of one host, and about their ends
_NUMBERS = re.compile(r"\d+")


class Stalled:
    """The lines of the log about connections.

    It knows the slaves whose last connection brought them nothing, for example because their disk is full. Such a slave
    comes again twice a second: the log says that it stands still, and that it moves again, and no more. Strangers come
    as often as they like, and cause a line a minute."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: set[tuple[str, int]] = set()  # host, and where the slave's log ended
        self._lines = RareLines()

    def _level(self, slave: SlaveConnection) -> int:
        return logging.DEBUG if slave.place in self._known else logging.INFO

    def begun(self, slave: SlaveConnection) -> None:
        """Says that a slave follows."""
        words = (self._root, slave.name, slave.begun)
        kind = f"begun {slave.host}"
        self._lines.tell(log, self._level(slave), kind, LINES_MOST, "%s: slave %s follows from %d", *words)

    def moved(self, slave: SlaveConnection) -> None:
        """Says that a slave gets on, if it stood still before."""
        if slave.place in self._known and not slave.is_stalled:
            self._known.discard(slave.place)
            log.info("%s: slave %s gets on again from %d", self._root, slave.name, slave.begun)

    def ended(self, slave: SlaveConnection, error: BaseException) -> None:
        """Says why a connection is over."""
        if not slave.is_known:
            self.refused(slave.name, error, "a wrong proof" if slave.gave_wrong_proof else "no proof")
            return
        self.moved(slave)
        level = self._level(slave) if isinstance(error, ConnectionError) else logging.WARNING
        kind, most = (
            (f"ended {slave.host}", LINES_MOST) if slave.begun >= 0 else (_NUMBERS.sub("", str(error)), 1)
        )
        words = (self._root, slave.name, error)
        self._lines.tell(log, level, kind, most, "%s: closed the connection of slave %s: %s", *words)
        if slave.is_stalled:
            if len(self._known) >= STALLED_MAX:
                self._known.clear()
            self._known.add(slave.place)

    def refused(self, name: str, error: BaseException, kind: str) -> None:
        """Says, once a minute for each kind, why a connection ended before its slave was known. A connection that
        its slave ends itself is no news."""
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING
        words = (self._root, name, error)
        self._lines.tell(log, level, kind, 1, "%s: closed the connection of %s: %s", *words)


class SlaveConnection:
    """Raises ReplicationError if the slave violates the protocol; OSError when the connection is over."""

    def __init__(
        self,
        connection: socket.socket,
        name: str,
        control: Control,
        commit_log: CommitLog,
        config: StoreConfig,
        hello: Callable[[str], Hello],
        secret: Secret | None,
        session: Session | None = None,
        stalled: Stalled | None = None,
    ) -> None:
        self.socket, self.name = connection, name
        self._control, self._commit_log, self._config = control, commit_log, config
        self._hello, self._secret, self._session = hello, secret, session
        self._stalled = stalled or Stalled(commit_log.files.root)
        self.member = ""  # the slave's name in the group; "" if it is no member
        self.flow = Outflow(connection.fileno(), config.ha_transfer_batch_size_bytes, monotonic_s())
        self._told_s = 0.0
        self._nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._proved = secret is None
        self.gave_wrong_proof = False
        self.is_ours = False
        self.asks_facts = False
        self._facts: Sealed | None = None  # to send when the slave has the log up to their position
        self._facts_sent: Sealed | None = None
        self._in = bytearray()
        self._out = bytearray()  # to send first; then follow `flow.left` bytes of the file
        self._file: Descriptor | None = None
        self._digests = self._digest_bytes = 0
        self._secured = not isinstance(connection, ssl.SSLSocket)
        self.begun = -1  # the end of the slave's log when it began to follow

    def close(self) -> None:
        self.flow.socket = -1
        self.socket.close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file, self.flow.file = self._file, None, -1
        if file is not None:
            file.close()

    @property
    def is_known(self) -> bool:
        """Whether the slave has proved what this master asks for: the secret, a certificate, both, or nothing. Before
        that it learns nothing of the store, and is no slave."""
        return self._proved and self._secured

    @property
    def host(self) -> str:
        return self.name.rpartition(":")[0]

    @property
    def acknowledged(self) -> int:
        """The end of the slave's log by its last report, -1 before the first."""
        return self.flow.acknowledged

    @property
    def flows(self) -> bool:
        """Whether `flow` has all that is to be done for this slave now (`outflow.serve`)."""
        return self.is_following and self._is_without_tls and not self._in and not self._out

    @property
    def is_following(self) -> bool:
        """Whether the slave has reported its position."""
        return self.flow.next >= 0

    @property
    def place(self) -> tuple[str, int]:
        """Its host, and where its log ended when it came: the same after a connection that brought it nothing."""
        return self.host, self.begun

    @property
    def is_stalled(self) -> bool:
        """Whether it got nothing of the log that it lacks."""
        return self.begun >= 0 and self.acknowledged <= self.begun < self._control.wrote

    @property
    def has_unsent(self) -> bool:
        return bool(self._out or self.flow.left)

    @property
    def has_work(self) -> bool:
        """Whether there are bytes to send."""
        return self.has_unsent or (self.is_following and self.flow.next < self._control.wrote)

    def check_time(self) -> None:
        """Raises ReplicationError if the slave has sent no report for ha_housekeeping_interval_ms, or is not known
        after PROOF_S."""
        quiet_s = monotonic_s() - self.flow.heard_s
        if not self.is_known and quiet_s > PROOF_S:
            raise ReplicationError(
                f"it gave no proof of the secret (ha_secret_file), or no certificate, within {PROOF_S:g} s"
            )
        if quiet_s * 1000 > self._config.ha_housekeeping_interval_ms:
            raise ReplicationError(f"the slave sent nothing for {quiet_s:.0f} s")

    def secure(self) -> bool:
        """Continues the TLS handshake; True when it is complete or not needed."""
        if not self._secured:
            try:
                self.socket.do_handshake()  # type: ignore[attr-defined]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            self._secured = True
            if self._proved:
                self.flow.heard_s = monotonic_s()
        return True

    # ------------------------------------------------------------------------------------------------ what it says

    def receive(self) -> None:
        """Reads at most `IN_BYTES` received bytes: a flood takes no more of this thread's time than a report."""
        if not self.secure():
            return
        try:
            data = self.socket.recv(IN_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the slave closed the connection")
        self._in += data
        used = 0
        while (taken := self._take(used)) > 0:
            used += taken
        del self._in[:used]

    def _take(self, at: int) -> int:
        """Handles the slave's word at `at`; returns its length, or 0 if the word is not complete yet."""
        if len(self._in) - at < wire.REPORT.size:
            return 0
        (value,) = wire.REPORT.unpack(self._in, at)
        if not self._proved and value not in (wire.HELLO, wire.PROOF):
            raise ReplicationError("the slave did not prove that it knows the secret (ha_secret_file)")
        length = self._word_length(value, at)
        if not length or len(self._in) - at < length:
            return 0
        rest = bytes(self._in[at + wire.REPORT.size : at + length])
        if value == wire.HELLO:
            self._greet()
        elif value == wire.PROOF:
            self._check_proof(rest)
        elif value == wire.DIGEST:
            self._digest(*wire.RANGE.unpack(rest))
        elif value == wire.FACTS:
            self._ask_facts()
        elif value == wire.JOIN:
            self._join(rest[wire.LENGTH.size :])
        else:
            if self.member:
                self._check_epoch(wire.EPOCH_REPORT.unpack(self._in, at)[1])
            self._reported(value)
        return length

    def _word_length(self, value: int, at: int) -> int:
        """The length of a word that begins with `value`; 0 while its length is not known."""
        words = {
            wire.HELLO: 0,
            wire.PROOF: wire.NONCE_BYTES + wire.PROOF_BYTES,
            wire.DIGEST: wire.RANGE.size,
            wire.FACTS: 0,
        }
        if value >= 0:
            return wire.EPOCH_REPORT.size if self.member else wire.REPORT.size
        if value in words:
            return wire.REPORT.size + words[value]
        if value != wire.JOIN:
            raise ReplicationError(f"the slave reported {value}")
        if len(self._in) - at < wire.REPORT.size + wire.LENGTH.size:
            return 0
        (length,) = wire.LENGTH.unpack(self._in, at + wire.REPORT.size)
        if not 0 < length <= wire.JOIN_BYTES_MAX:
            raise ReplicationError(f"the slave joins with {length} bytes")
        return wire.REPORT.size + wire.LENGTH.size + length

    def _join(self, data: bytes) -> None:
        if self._session is None or not self.is_ours or self.member or self.is_following:
            raise ReplicationError(
                "the slave cannot join: this master has no group, or the join does not follow the greeting"
            )
        asked = wire.Join.parse(data)
        answer = self._session.admit(asked)
        self.member = asked.member
        self.flow.epoch, self.flow.confirms = self._session.epoch, asked.confirms
        self._answer(answer.frame())

    def _check_epoch(self, epoch: int) -> None:
        assert self._session is not None
        if epoch > self._session.epoch:
            self._session.replaced()
        if epoch != self._session.epoch:
            raise ReplicationError(f"the member reports in epoch {epoch}, and this is {self._session.epoch}")

    def _log_header(self, position: int, size: int) -> bytes:
        if self.member and self._session is not None:
            if self.flow.confirms:
                self.flow.confirmed = self._control.confirmed
                return wire.CONFIRMED_HEADER.pack(position, size, self._session.epoch, self.flow.confirmed)
            return wire.EPOCH_HEADER.pack(position, size, self._session.epoch)
        return wire.HEADER.pack(position, size)

    def _greet(self) -> None:
        if self.is_ours or self.is_following:
            raise ReplicationError("the slave greeted twice")
        self.is_ours = True
        if not self._config.gives("ha_transfer_batch_size_bytes"):
            self.flow.frame_bytes = OWN_FRAME_BYTES  # a frame costs both sides the same, however long it is
        if self._proved:
            self._answer(self._hello("").frame())
        else:
            self._answer(wire.talk(wire.CHALLENGE, self._nonce))

    def _ask_facts(self) -> None:
        if not self.is_ours or self.is_following:
            raise ReplicationError("the slave asks for facts, but not after its greeting")
        self.asks_facts = True

    def offer(self, facts: Sealed | None) -> None:
        """Gives the slave the newest facts, if it asked and was sent older ones."""
        if self.asks_facts and self._facts is None and facts is not self._facts_sent:
            self._facts = facts

    def _check_proof(self, words: bytes) -> None:
        nonce, proof = words[: wire.NONCE_BYTES], words[wire.NONCE_BYTES :]
        if self._secret is None or self._proved or not self.is_ours:
            raise ReplicationError("the slave gives a proof that it was not asked for")
        if not self._secret.is_proof("slave", self._nonce, nonce, proof):
            self.gave_wrong_proof = True
            raise ReplicationError("the slave does not know the secret (ha_secret_file)")
        self._proved, self.flow.heard_s = True, monotonic_s()
        self._answer(wire.talk(wire.PROOF, self._secret.proof("master", self._nonce, nonce)))
        self._answer(self._hello(self._nonce.hex()).frame())

    def _digest(self, begin: int, end: int) -> None:
        """Answers with the digest of a range of the log in one file; an empty answer if the range is not readable."""
        self._digests, self._digest_bytes = self._digests + 1, self._digest_bytes + max(end - begin, 0)
        if (
            self.is_following
            or self._digests > DIGESTS_MAX
            or self._digest_bytes > DIGEST_BYTES_MAX
            or not 0 <= begin < end <= begin + wire.DIGEST_RANGE_MAX
        ):
            raise ReplicationError(f"the slave asked for the digest of [{begin}, {end})")
        found = b""
        base = self._commit_log.files.base_of(begin)
        readable = self._control.min_physical_offset <= begin and end <= self._control.wrote
        if readable and end <= base + self._commit_log.file_bytes:
            file = self._opened(base)
            found = hashlib.sha256(files.pread_full(file.fd, begin - base, end - begin)).digest()
        self._answer(wire.talk(wire.DIGEST, found))

    def _answer(self, frame: bytes) -> None:
        if self.flow.left or len(self._out) + len(frame) > ANSWERS_BYTES_MAX:
            raise ReplicationError("the slave asks and does not read the answers")
        self._out += frame

    def _reported(self, offset: int) -> None:
        """Handles a report. The first report gives the end of the slave's log, later ones its progress. Only reports
        show that the slave lives."""
        flow = self.flow
        flow.heard_s = monotonic_s()
        wrote, minimum = self._control.wrote, self._control.min_physical_offset
        if offset > wrote:
            raise ReplicationError(f"the slave reported {offset}, and the log ends at {wrote}")
        if not self.is_following:
            if 0 < offset < minimum:
                raise ReplicationError(f"the slave's log ends at {offset}, and this one begins at {minimum}")
            # If a slave reports 0, RocketMQ's master begins with its last file. Such a slave accepts any offset.
            flow.next = self.begun = max(offset, minimum)
            self._stalled.begun(self)
        elif offset < flow.acknowledged or offset > flow.next:
            raise ReplicationError(
                f"the slave reported {offset} after {flow.acknowledged}, and was sent the log up to {flow.next}"
            )
        flow.acknowledged = offset

    # ------------------------------------------------------------------------------------------------ what it is sent

    def send(self) -> int:
        """Ships the log that the slave lacks, as much as the connection takes and about `TURN_BYTES` at most. Returns
        the number of bytes."""
        if not self.secure():
            return 0
        flow = self.flow
        self._out += flow.rest()
        begun = flow.at
        try:
            while self._send_begun():
                if not self.is_following or flow.at - begun > TURN_BYTES or not self._begin_frame():
                    break
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return flow.at - begun

    def _begin_frame(self) -> bool:
        """Prepares the header of the next frame or of a heartbeat; False if neither is due."""
        flow = self.flow
        position, wrote = flow.next, self._control.wrote
        facts = self._facts
        if facts is not None and position >= facts.position:
            self._facts, self._facts_sent = None, facts
            self._out += self._log_header(wire.FACTS, len(facts.data)) + facts.data
            return True
        if self._owes_confirmed():
            flow.confirmed = self._control.confirmed
            self._out += self._log_header(wire.CONFIRMED, wire.REPORT.size) + wire.REPORT.pack(flow.confirmed)
            return True
        if position >= wrote:
            silent_s = monotonic_s() - flow.sent_s
            has_news = flow.confirms and self._control.confirmed > flow.confirmed and silent_s >= NEWS_S
            if not has_news and silent_s * 1000 < self._config.ha_send_heartbeat_interval_ms:
                return False
            self._out += self._log_header(position, 0)
            return True
        if position < self._control.min_physical_offset:
            raise ReplicationError(
                f"the log from {position} on is gone; it begins at {self._control.min_physical_offset}"
            )
        base = self._commit_log.files.base_of(position)
        end = min(wrote, base + self._commit_log.file_bytes, position + self.flow.frame_bytes)
        self._opened(base)
        flow.at, flow.left, flow.next = position, end - position, end
        self._out += self._log_header(position, flow.left)
        return True

    def _owes_confirmed(self) -> bool:
        """Whether to tell the confirmed position to a slave that is no member: a member has it in each header."""
        if self.member or not self.asks_facts or self._session is None:
            return False
        now_s = monotonic_s()
        if self._control.confirmed <= self.flow.confirmed or now_s - self._told_s < NEWS_S:
            return False
        self._told_s = now_s
        return True

    def _opened(self, base: int) -> Descriptor:
        if self._file is None or self.flow.file_base != base:
            self._close_file()
            path = self._commit_log.files.path(base)
            with files.translated(path):
                self._file = files.open_file(path, os.O_RDONLY)
            self.flow.file, self.flow.file_base = self._file.fd, base
        return self._file

    def _send_begun(self) -> bool:
        """Sends the rest of the frame in progress, then returns True. Raises BlockingIOError while the connection takes
        no more bytes."""
        flow = self.flow
        while self._out:
            sent = (
                self.socket.send(self._out, socket.MSG_MORE)
                if flow.left and self._is_without_tls
                else self.socket.send(self._out)
            )
            flow.sent_s = monotonic_s()
            del self._out[:sent]
        while flow.left:
            sent = self._send_file()
            if sent == 0:
                raise StoreError(
                    "the file is shorter than the log", path=self._commit_log.files.path(flow.file_base)
                )
            flow.sent_s = monotonic_s()
            flow.at, flow.left = flow.at + sent, flow.left - sent
        return True

    @property
    def _is_without_tls(self) -> bool:
        return not isinstance(self.socket, ssl.SSLSocket)

    def _send_file(self) -> int:
        assert self._file is not None
        place = self.flow.at - self.flow.file_base
        if self._is_without_tls:
            return os.sendfile(self.socket.fileno(), self._file.fd, place, self.flow.left)
        return self.socket.send(os.pread(self._file.fd, min(self.flow.left, TLS_BYTES), place))
