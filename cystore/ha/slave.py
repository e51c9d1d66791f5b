"""The slave: connects to its master, appends the bytes that the master ships, and reports its position. Source:
HAService.HAClient."""

from __future__ import annotations

import hashlib
import logging
import socket
import ssl
from typing import NoReturn

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import ReplicationError, StoreFullError
from cystore.ha.copied_log import CopiedLog
from cystore.ha.epochs.common_record import common_end
from cystore.ha.epochs.confirmed_file import limit_confirmed
from cystore.ha.epochs.membership import CutNeededError, Membership
from cystore.ha.facts.followed import FollowedFacts
from cystore.ha.link import wire
from cystore.ha.link.call import CONNECT_S, MasterCall, readable
from cystore.ha.link.wire import Hello
from cystore.ha.slave_progress import SlaveProgress

log = logging.getLogger("cystore")

FIRST_BYTE = 1  # RocketMQ's master takes 0 for "your last file" (HAConnection)
WAIT_S = 0.1  # for the master's bytes in one turn
TURN_BYTES = 4 << 20


class Slave:
    """Follows one master. `turn` raises OSError when the connection is over, and ReplicationError, CorruptRecordError
    or an error of the store when it cannot continue. It closes the connection then; the next turn connects again."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        copied: CopiedLog,
        config: StoreConfig,
        master: str,
        membership: Membership | None = None,
        facts: FollowedFacts | None = None,
        least_epoch: int = 0,
        greeting_s: float | None = None,
    ) -> None:
        self._membership, self._facts = membership, facts
        self._least_epoch = self.epoch = least_epoch  # the last master's
        self._aside: bytearray | None = None  # what is being received between two frames of log
        self._aside_kind = self._aside_left = 0
        self._headers = wire.HEADER
        self._control, self._commit_log, self._copied, self._config = control, commit_log, copied, config
        # While a member waits for a dead master, it cannot stand for election, so it waits for a short time only.
        wait_s = CONNECT_S if membership is None else min(CONNECT_S, config.ha_lease_ms / 5000)
        self._call = MasterCall(config, master, wait_s, greeting_s)
        self._progress = SlaveProgress(control, config, commit_log.files.root)
        self._wait_s = wait_s
        self._heard_s = self._reported_s = 0.0
        self._header = bytearray()
        self._flow = copied.flow
        self._asked_whole = False  # this slave asked RocketMQ's master for all but the log's first byte
        self._has_last_file_only = False
        self._full_at = -1  # the log's end when the disk was full at the last try

    @property
    def master(self) -> str:
        """The master's address."""
        return self._call.master

    @property
    def greeting_s(self) -> float:
        """How long it waits for the next greeting: longer after each master that did not greet."""
        return self._call.greeting_s

    @property
    def masters_end(self) -> int:
        """The end of the master's log, by its frames; -1: not known."""
        return self._flow.masters_end

    @property
    def is_connected(self) -> bool:
        return self._call.socket is not None

    def close(self) -> None:
        """Ends the connection. Received bytes that were not appended are forgotten."""
        connected = self.is_connected
        self._call.close()
        self._progress.close()
        self._copied.restart()
        if connected and self._facts is not None:
            self._facts.finish()

    def turn(self) -> int:
        """Receives bytes and appends their complete records; returns the number of received bytes."""
        try:
            if self._call.socket is None:
                self._copied.check_disk()
                self._connect()
            return self._follow()
        except BaseException as error:
            self._full_at = self._control.wrote if isinstance(error, StoreFullError) else -1
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------ connecting

    def _connect(self) -> None:
        self._headers = wire.HEADER
        self._flow.epoch, self._flow.confirms = -1, False
        hello = self._call.open()
        if hello is None and self._membership is not None:
            raise ReplicationError(
                f"the master {self.master} does not answer a greeting, so it is not cystore's"
            )
        if hello is None and self._control.confirming:
            # Readers would see what may be taken back. A stopped process accepts connections, and does not greet.
            raise ReplicationError(
                f"the master {self.master} does not answer a greeting, and it was elected, so it is not RocketMQ's"
            )
        self._copied.restart()
        self._header.clear()
        self._flow.left, self._heard_s, self._aside = -1, monotonic_s(), None
        if hello is None:
            log.info("%s: master %s is RocketMQ's", self._commit_log.files.root, self.master)
            self._set_confirming(False)
        else:
            if self._membership is not None:
                self._join(self._membership, hello)
            if 0 < hello.epoch < self._least_epoch:
                raise ReplicationError(
                    f"the master {self.master} is of epoch {hello.epoch}, and this process followed one of epoch "
                    f"{self._least_epoch} before"
                )
            self.epoch = hello.epoch
            self._compare(hello)
            if self._membership is None:
                self._copied.of_home(hello.home)
            self._flow.masters_end = hello.wrote
            self._ask_facts(hello)
            if self._copied.is_empty:
                self._copied.begin_at(hello.min_physical_offset)
        if self._membership is not None:
            self._membership.follows()
        position = self._control.wrote
        self._asked_whole = hello is None and position == 0 and not self._has_last_file_only
        self._report(FIRST_BYTE if self._asked_whole else position)
        self._flow.reported = position
        level = logging.DEBUG if position == self._full_at else logging.INFO
        log.log(level, "%s: follows %s from %d", self._commit_log.files.root, self.master, position)

    def _join(self, membership: Membership, hello: Hello) -> None:
        """Joins the group of an elected master. Raises ReplicationError, and CutNeededError if this log differs from
        the master's below its end."""
        if hello.epoch == 0:
            raise ReplicationError(f"the store at {self.master} is not an elected master now")
        self._call.send(membership.join().word())
        joined = wire.Joined.parse(self._call.talk(wire.JOIN))
        membership.joined(joined, self._control.min_physical_offset, self._control.wrote, hello.wrote)
        self._headers = wire.CONFIRMED_HEADER if joined.confirms else wire.EPOCH_HEADER
        self._flow.epoch, self._flow.confirms = membership.epoch, joined.confirms
        self._control.confirming = int(joined.confirms)  # a master of an earlier release says nothing of it

    def _ask_facts(self, hello: Hello) -> None:
        asks = self._facts is not None and hello.facts
        if self._facts is not None and asks:
            self._facts.begin()
            self._call.send(wire.REPORT.pack(wire.FACTS))
        if self._membership is None:  # an elected master tells a slave that is no member what is confirmed
            self._set_confirming(asks and hello.epoch > 0)

    def _set_confirming(self, confirming: bool) -> None:
        self._control.confirming = int(confirming)
        if not confirming:
            limit_confirmed(self._commit_log.files.root, 0)

    def _compare(self, hello: Hello) -> None:
        """Checks that this log is a beginning of the master's log. Raises ReplicationError."""
        control, segments = self._control, self._commit_log.files
        if hello.file_bytes != segments.file_bytes:
            raise ReplicationError(
                f"the master's log has files of {hello.file_bytes} bytes, and this one of "
                f"{segments.file_bytes}: make the slave anew "
                f"with mapped_file_size_commit_log_bytes={hello.file_bytes}",
                path=segments.root,
            )
        wrote = control.wrote
        if self._copied.is_empty:
            return
        if wrote < hello.min_physical_offset:
            raise ReplicationError(
                f"this log ends at {wrote}, and the master has cleaned its own up to "
                f"{hello.min_physical_offset}: start with an empty "
                "directory",
                path=segments.root,
            )
        if wrote > hello.wrote:
            self._parted(
                f"this log ends at {wrote}, and the master's at {hello.wrote}: this one has records that the "
                "master never had, or lost",
                hello,
                hello.wrote,
            )
        last = control.last_record
        if max(control.min_physical_offset, hello.min_physical_offset) <= last < wrote and not self.has_same(
            last, wrote
        ):
            self._parted(
                "the last record differs from the master's record there: the logs have parted", hello, last
            )

    def _parted(self, why: str, hello: Hello, offset: int) -> NoReturn:
        """Raises CutNeededError if the settings allow to truncate this log at the last common record, else
        ReplicationError."""
        control, path = self._control, self._commit_log.files.root
        if self._membership is not None or not self._config.ha_truncate_diverged:
            more = "" if self._membership is not None else " (ha_truncate_diverged=True truncates this log)"
            raise ReplicationError(why + more, path=path, offset=offset)
        begin = max(control.min_physical_offset, hello.min_physical_offset)
        end = min(control.wrote, hello.wrote)
        common = common_end(self._commit_log, begin, end, self.has_same) if begin < end else -1
        if common < 0:
            raise ReplicationError(
                f"{why}, and they have no record in common: start with an empty directory",
                path=path,
                offset=offset,
            )
        raise CutNeededError(common, control.wrote)

    def has_same(self, begin: int, end: int) -> bool:
        """Whether the master has the same bytes in [begin, end), compared within one file and 8 MiB at most."""
        end = min(
            end,
            self._commit_log.files.base_of(begin) + self._commit_log.files.file_bytes,
            begin + wire.DIGEST_RANGE_MAX,
        )
        piece = self._commit_log.piece(begin, end)
        self._call.send(wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(begin, end))
        return piece is not None and self._call.talk(wire.DIGEST) == hashlib.sha256(piece).digest()

    # ------------------------------------------------------------------------------------------------ following

    def _report(self, position: int) -> None:
        """Reports a position. A member first makes its log durable up to the position, and reports the epoch too."""
        if self._membership is None:
            self._call.send(wire.REPORT.pack(position))
        else:
            self._copied.make_durable(position)
            self._call.send(wire.EPOCH_REPORT.pack(position, self._membership.epoch))
        self._flow.reported, self._reported_s = position, monotonic_s()

    def _follow(self) -> int:
        connection = self._call.socket
        assert connection is not None
        received, reported = 0, self._flow.reported
        if self._aside is None and not self._header and not isinstance(connection, ssl.SSLSocket):
            received, odd = self._flow.follow(connection.fileno(), int(1000 * WAIT_S), not self._asked_whole)
        else:
            odd = readable(connection, WAIT_S)
        if odd:
            received += self._receive_odd(connection)
        now_s, wrote = monotonic_s(), self._copied.whole
        if 0 <= self._full_at < wrote:
            self._full_at = -1
            log.info("%s: has space again, and follows %s", self._commit_log.files.root, self.master)
        if received:
            self._heard_s = now_s
        elif (now_s - self._heard_s) * 1000 > self._config.ha_housekeeping_interval_ms:
            raise ReplicationError(f"the master {self.master} sent nothing for {now_s - self._heard_s:.0f} s")
        if self._facts is not None:
            self._facts.work()
        if self._flow.confirmed > self._control.confirmed and wrote > self._control.confirmed:
            self._progress.confirmed(min(self._flow.confirmed, wrote))
        if self._membership is not None and 0 <= self.masters_end <= wrote:
            self._membership.caught_up()
        if self._flow.reported != reported:
            self._reported_s = now_s
        if (
            wrote != self._flow.reported
            or (now_s - self._reported_s) * 1000 >= self._config.ha_send_heartbeat_interval_ms
        ):
            self._report(wrote)
        return received

    def _receive_odd(self, connection: socket.socket) -> int:
        """Appends what an obstacle kept back, and receives step by step until the next frame of log begins."""
        self._copied.took(0)
        connection.settimeout(0.0)
        received = 0
        try:
            while received < TURN_BYTES and (count := self._receive(connection)) > 0:
                received += count
                if self._aside is None and not self._header and not isinstance(connection, ssl.SSLSocket):
                    break
        finally:
            connection.settimeout(self._wait_s)
        return received

    def _receive(self, connection: socket.socket) -> int:
        """Receives a part of a frame; returns its length, 0 if no bytes have arrived."""
        flow, aside = self._flow, self._aside
        try:
            if aside is not None:
                count = connection.recv_into(memoryview(aside)[len(aside) - self._aside_left :])
            elif flow.left >= 0:
                count = self._receive_log(connection)
            else:
                piece = connection.recv(self._headers.size - len(self._header))
                self._header += piece
                count = len(piece)
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        if count == 0:
            raise ConnectionResetError("the master closed the connection")
        if aside is not None:
            self._aside_left -= count
            if not self._aside_left:
                self._aside = None
                self._take_aside(self._aside_kind, bytes(aside))
        elif flow.left >= 0:
            flow.left = flow.left - count or -1
            self._copied.took(count)
        elif len(self._header) == self._headers.size:
            self._begin_frame()
        return count

    def _receive_log(self, connection: socket.socket) -> int:
        """Receives a part of a frame of log. A read of TLS gives 16 KiB at most, so there are many, and one append."""
        room, count = self._copied.room()[: self._flow.left], 0
        try:
            while count < len(room):
                got = connection.recv_into(room[count:])
                count += got
                if not got or not isinstance(connection, ssl.SSLSocket):
                    break
        except ssl.SSLWantReadError:
            if not count:
                raise
        return count

    def _take_aside(self, kind: int, data: bytes) -> None:
        if kind == wire.CONFIRMED:
            self._flow.confirmed = max(self._flow.confirmed, *wire.REPORT.unpack(data))
        elif self._facts is not None:
            self._facts.take(data)

    def _after_first_byte(self, offset: int, size: int) -> tuple[int, int]:
        """Handles the first frame of RocketMQ's master after a request for its log from byte 1 on. Byte 0 is 0: it is
        the highest byte of a record's length, which is below 16 MiB. A heartbeat means that the master does not have
        that file any more, or that its log is empty."""
        if size == 0:
            self._has_last_file_only = True
            raise ConnectionResetError("the master does not have its whole log: asking for its last file")
        if offset != FIRST_BYTE:
            raise ReplicationError(
                f"the master sent the log from {offset} on, and was asked for {FIRST_BYTE}"
            )
        self._asked_whole = False
        self._copied.room()[0] = 0
        self._copied.took(1)
        return offset, size

    def _begin_frame(self) -> None:
        offset, size, *epoch = self._headers.unpack(self._header)
        self._header.clear()
        wire.check_frame(offset, size)
        if self._membership is not None and epoch[:1] != [self._membership.epoch]:
            raise ReplicationError(
                f"the master sends epoch {epoch}, but it was elected in {self._membership.epoch}"
            )
        if len(epoch) > 1:
            self._flow.confirmed = max(self._flow.confirmed, epoch[1])
        if offset in (wire.FACTS, wire.CONFIRMED):
            if self._facts is None or size == 0 or (offset == wire.CONFIRMED and size != wire.REPORT.size):
                raise ReplicationError(f"the master sent a frame of kind {offset} and {size} bytes")
            self._aside, self._aside_kind, self._aside_left = bytearray(size), offset, size
            return
        if self._asked_whole:
            offset, size = self._after_first_byte(offset, size)
        if self._copied.is_empty and self._copied.received == 0 and offset > 0 and size:
            self._copied.begin_at(offset)
        if offset != self._copied.received and size:
            raise ReplicationError(
                f"the master sent the log from {offset} on, but this log continues at {self._copied.received}"
            )
        self._flow.masters_end = max(self._flow.masters_end, offset + size)
        self._flow.left = size or -1
