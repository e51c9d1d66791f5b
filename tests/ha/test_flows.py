"""Goal: the kernels that ship and receive the log do the part that repeats, and leave everything else to the caller,
untouched. Method: both ends of a socket in one process, a peer that says something else, and a file that cannot be
written to."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

import cystore
from cystore._native.append import copied
from cystore._native.replication.outflow import Outflow, serve
from cystore.errors import CorruptRecordError
from cystore.ha.copied_log import CopiedLog
from cystore.ha.link import wire
from cystore.ha.link.sockets import ours
from cystore.ha.slave import Slave
from cystore.ha.slave_progress import REPORTED
from cystore.system import files
from tests.support.ha.ha_pair import check_equal, fill, slaves, wrote
from tests.support.small_stores import open_small

FILE_BYTES = 1 << 20
LARGE = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "mapped_file_size_consume_queue_bytes": 20_000}


@pytest.fixture
def master(tmp_path) -> Iterator[cystore.MessageStore]:
    with open_small(tmp_path / "master", **LARGE) as store:
        yield store


class Ends:
    """A slave, and the socket of its master."""

    def __init__(self, store: cystore.MessageStore) -> None:
        inside = store._attached()
        self.store, self.control = store, inside.control
        self.log = CopiedLog(
            inside.control,
            inside.commit_log,
            inside.appender.policy,
            inside.manifest,
            inside.config.max_message_size_bytes,
        )
        self.slave = Slave(inside.control, inside.commit_log, self.log, inside.config, "127.0.0.1:1")
        mine, self.master = socket.socketpair()
        self.slave._call.socket = ours(mine)
        self.slave._heard_s = self.slave._reported_s = float("inf")
        self.mine = mine.fileno()

    def turns(self, end: int) -> None:
        """Turns until the log ends at `end`; the first records go step by step, because the slave needs a file."""
        while wrote(self.store) < end:
            self.slave.turn()

    def follow(self, *, reports: bool = True) -> tuple[int, bool]:
        return self.log.flow.follow(self.mine, 0, reports)


@pytest.fixture
def ends(tmp_path) -> Iterator[Ends]:
    with cystore.open(tmp_path / "slave", **{**slaves(1, **LARGE), "services": "none"}) as store:
        both = Ends(store)
        with both.master:
            yield both
            both.slave.close()


def frames(store: cystore.MessageStore, frame_bytes: int) -> bytes:
    """The log as a master ships it."""
    end, log, found = wrote(store), store._attached().commit_log, []
    begin = 0
    while begin < end:
        upto = min(end, begin + frame_bytes, begin - begin % FILE_BYTES + FILE_BYTES)
        found.append(wire.HEADER.pack(begin, upto - begin) + bytes(log.piece(begin, upto)))
        begin = upto
    return b"".join(found)


def reports(peer: socket.socket) -> list[int]:
    peer.setblocking(False)
    try:
        data = peer.recv(1 << 20)
    except BlockingIOError:
        return []
    return [wire.REPORT.unpack(data, at)[0] for at in range(0, len(data), wire.REPORT.size)]


@pytest.mark.parametrize("frame_bytes", [700, 100_000, FILE_BYTES])
def test_a_slave_takes_a_log_that_arrives_in_pieces(master, ends, rng, frame_bytes):
    """Short and long records, several files: pieces are appended through the mapping and through the descriptor."""
    for start in range(0, 600, 200):
        fill(master, 200, start=start)
        master.put("T", bytes(range(256)) * 1000, keys=("long",))
        master.put_many([cystore.Message(topic="T0", body=b"x" * 1000)] * 400)
    stream = frames(master, frame_bytes)

    def sends() -> None:
        at = 0
        while at < len(stream):
            piece = rng.choice((1, 13, 1000, 70_000, 400_000))
            ends.master.sendall(stream[at : at + piece])
            at += piece

    sender = threading.Thread(target=sends)
    sender.start()
    ends.turns(wrote(master))
    sender.join()
    check_equal(master, ends.store)
    assert reports(ends.master)[-1] == wrote(master)


def test_a_short_piece_behind_a_long_one_needs_no_caller(master, ends):
    """A long piece goes through the descriptor, so the pages behind it are not in memory."""
    fill(master, 20)
    ends.master.sendall(frames(master, FILE_BYTES))
    ends.turns(wrote(master))
    segment = ends.store._attached().commit_log.files.get(0)
    ends.log.flow.append_to(segment, 0, ends.log._opened(segment).fd)  # as if no page were in memory
    for pieces in ((b"long" * 20_000, b"short"), (b"long" * 20_000,), (b"short",)):
        stream = b""
        for body in pieces:
            begin = wrote(master)
            master.put("T", body)
            piece = bytes(master._attached().commit_log.piece(begin, wrote(master)))
            stream += wire.HEADER.pack(begin, len(piece)) + piece
        ends.master.sendall(stream)
        assert ends.follow() == (len(stream), False)
    check_equal(master, ends.store)


def test_what_does_not_continue_the_log_stays_in_the_socket(master, ends):
    fill(master, 3)
    first = frames(master, 1 << 20)
    ends.master.sendall(first)
    ends.turns(wrote(master))
    assert reports(ends.master)[-1] == wrote(master)
    for header in (
        wire.HEADER.pack(wrote(master) + 1, 5),
        wire.HEADER.pack(wire.FACTS, 5),
        wire.HEADER.pack(wrote(master), -1),
    ):
        ends.master.sendall(header)
        assert ends.follow() == (0, True)
        assert os.read(ends.mine, 100) == header
    ends.log.flow.epoch = 7
    header = wire.EPOCH_HEADER.pack(wrote(master), 5, 8)
    ends.master.sendall(header)
    assert ends.follow() == (0, True)
    assert os.read(ends.mine, 100) == header
    ends.master.sendall(header[:15])
    assert ends.follow() == (0, True)
    assert reports(ends.master) == []


def test_a_heartbeat_is_no_work_and_the_caller_may_report_itself(master, ends):
    fill(master, 30)
    before = wrote(master)
    ends.master.sendall(frames(master, 1 << 20))
    ends.turns(before)
    ends.master.sendall(wire.HEADER.pack(before, 0))
    assert ends.follow() == (wire.HEADER.size, False)
    fill(master, 5)
    more = bytes(master._attached().commit_log.piece(before, wrote(master)))
    reports(ends.master)
    ends.master.sendall(wire.HEADER.pack(before, len(more)) + more)
    assert ends.follow(reports=False) == (wire.HEADER.size + len(more), False)
    assert wrote(ends.store) == wrote(master)
    assert reports(ends.master) == []


def test_i3_a_member_reports_only_what_it_synced(master, ends):
    flow, policy = ends.log.flow, ends.store._attached().appender.policy

    def shipped() -> int:
        """Ships five messages. Returns the length of the log that the member has then."""
        begin = wrote(master)
        fill(master, 5, start=begin)
        more = bytes(master._attached().commit_log.piece(begin, wrote(master)))
        ends.master.sendall(wire.EPOCH_HEADER.pack(begin, len(more), flow.epoch) + more)
        assert ends.follow() == (wire.EPOCH_HEADER.size + len(more), False)
        assert wrote(ends.store) == wrote(master)
        return wrote(master)

    fill(master, 5)
    ends.master.sendall(frames(master, 1 << 20))
    ends.turns(wrote(master))
    reports(ends.master)
    flow.epoch = 7
    end = shipped()
    assert reports(ends.master) == []  # only Python knows the name of the file
    policy.make_durable(end)
    end = shipped()
    assert ends.control.flushed == end
    assert reports(ends.master) == [end, 7]
    flow.commits.enabled = False
    shipped()
    assert ends.control.flushed == end
    assert reports(ends.master) == []


def test_a_damaged_record_is_not_appended(master, ends):
    fill(master, 30)
    stream = bytearray(frames(master, 1 << 20))
    ends.master.sendall(stream[:5000])
    ends.turns(1)
    stream[5100] ^= 1
    ends.master.sendall(stream[5000:])
    with pytest.raises(CorruptRecordError, match="not an intact record"):
        ends.turns(wrote(master))
    assert 0 < wrote(ends.store) <= 5100 - wire.HEADER.size
    assert not ends.slave.is_connected


def test_a_write_that_fails_leaves_the_append_to_be_repaired(master, ends):
    """The queue offsets are claimed by then, and the log has some of the bytes."""
    master.put_many([cystore.Message(topic="T", body=b"x" * 1000)] * 100)
    data = bytearray(master._attached().commit_log.piece(0, wrote(master)))
    inside, records = ends.store._attached(), copied.CopiedRecords(ends.control)
    assert records.check(data, 0, len(data), 0, FILE_BYTES) == 100
    policy = inside.appender.policy
    policy.make_room(len(data) + 8)
    policy.more_queues()
    segment, path = policy.segment_at(0), inside.commit_log.files.path(0)
    with (
        files.open_file(path, os.O_RDONLY) as fd,
        pytest.raises(OSError, match=str(path)),
        ends.control.held("append"),
    ):
        records.append(segment, fd)
    assert ends.control.repair_is_due("append")
    segment.write(500, b"\xff" * 100)
    assert wrote(ends.store) == 0
    with ends.control.held("append"):
        assert ends.control.intent is None
    assert bytes(segment.read(0, len(data))) == bytes(len(data))
    with files.open_file(path, os.O_RDWR) as fd, ends.control.held("append"):
        assert records.append(segment, fd) == copied.DONE
    records.forget()
    assert wrote(ends.store) == len(data)
    assert [message.queue_offset for message in ends.store.scan()] == list(range(100))


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname(), 5.0)
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener.accept()[0], there


class Peers:
    """A flow to a slave that follows from the log's begin, and the slave's socket."""

    def __init__(self, store: cystore.MessageStore) -> None:
        inside = store._attached()
        self.control, self.file_bytes = inside.control, inside.commit_log.file_bytes
        self.flushed: int | None = self.control.flushed
        mine, self.slave = connected()
        self.bell, self.ringing = socket.socketpair()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.mine = ours(mine)
        mine.setblocking(False)
        self.file = files.open_file(inside.commit_log.files.path(0), os.O_RDONLY)
        self.flow = Outflow(mine.fileno(), 1000, 0.0)
        self.flow.next, self.flow.acknowledged = 0, 0
        self.flow.file, self.flow.file_base = self.file.fd, 0

    def serve(self, turn_ms: int = 0, *, publishes: bool = True) -> None:
        key = REPORTED if publishes else None
        serve(
            self.control,
            [self.flow],
            self.bell.fileno(),
            self.listener.fileno(),
            self.file_bytes,
            turn_ms,
            turn_ms,
            key,
            self.flushed,
        )

    def received(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self.slave.recv(count - len(found))
        return found

    def close(self) -> None:
        for one in (self.mine, self.slave, self.bell, self.ringing, self.listener):
            one.close()
        self.file.close()


@pytest.fixture
def peers(master) -> Iterator[Peers]:
    fill(master, 20)
    both = Peers(master)
    yield both
    both.close()


def test_the_log_goes_out_in_frames_and_reports_are_published(master, peers):
    peers.serve()
    wanted = frames(master, 1000)
    assert peers.received(len(wanted)) == wanted
    peers.slave.sendall(wire.REPORT.pack(1000) + wire.REPORT.pack(wrote(master)))
    while peers.flow.acknowledged < wrote(master):
        peers.serve()
    assert peers.flow.acknowledged == peers.control.replicated == wrote(master)


def test_the_caller_publishes_when_its_own_disk_has_more(master, peers):
    """The members may have reported the log before this store's disk had it."""
    peers.flow.epoch = 7
    thread = threading.Thread(target=peers.serve, args=(60_000,), kwargs={"publishes": False})
    thread.start()
    master.flush()
    peers.ringing.send(b"!")
    thread.join(100)
    ended = not thread.is_alive()
    peers.slave.close()  # ends it in any case
    thread.join()
    assert ended


def test_the_own_disk_ends_no_turn_while_a_report_must_come_first(master, peers):
    peers.flow.epoch, peers.flushed = 7, None
    master.flush()
    peers.slave.sendall(wire.EPOCH_REPORT.pack(500, 7))
    peers.serve(30_000, publishes=False)
    assert peers.flow.acknowledged == 500


def test_reports_of_members_are_left_to_the_caller_to_publish(master, peers):
    peers.flow.epoch = 7
    peers.serve(publishes=False)
    peers.slave.sendall(wire.EPOCH_REPORT.pack(500, 7))
    peers.serve(30_000, publishes=False)
    assert (peers.flow.acknowledged, peers.control.replicated) == (500, 0)


@pytest.mark.parametrize("word", ["beyond", "back", "half", "epoch", "hello"])
def test_a_word_that_is_no_good_report_stays_in_the_socket(master, peers, word):
    peers.serve()
    end = wrote(master)
    peers.slave.sendall(wire.REPORT.pack(500))
    said = {
        "beyond": wire.REPORT.pack(end + 1),
        "back": wire.REPORT.pack(499),
        "half": wire.REPORT.pack(600)[:5],
        "epoch": wire.EPOCH_REPORT.pack(600, 8),
        "hello": wire.REPORT.pack(wire.HELLO),
    }[word]
    while word == "epoch" and peers.flow.acknowledged < 500:
        peers.serve()
    peers.flow.epoch = 7 if word == "epoch" else -1
    peers.slave.sendall(said)
    peers.serve(30_000)
    assert peers.flow.acknowledged == 500
    assert peers.mine.recv(100) == said


def test_a_report_of_what_was_not_sent_yet_is_not_believed(master, peers):
    while wrote(master) < FILE_BYTES - 200_000:
        master.put("T", bytes(100_000))
    peers.flow.frame_bytes = FILE_BYTES
    for end in (peers.mine, peers.slave):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    peers.serve()
    assert peers.flow.left > 0
    said = wire.REPORT.pack(peers.flow.next)
    peers.slave.sendall(said)
    peers.serve(30_000)
    assert peers.flow.acknowledged == 0
    assert peers.mine.recv(100) == said


def test_a_put_rings_the_bell_of_the_thread_that_ships(master, peers):
    peers.serve()
    peers.received(len(frames(master, 1000)))
    assert not peers.control.ring()  # no thread of this process serves slaves
    peers.control.bell = peers.ringing.fileno()
    serving = threading.Thread(target=peers.serve, args=(30_000,))
    serving.start()
    try:
        before = wrote(master)
        fill(master, 1)
        assert peers.control.ring()
        assert peers.received(wire.HEADER.size) == wire.HEADER.pack(before, wrote(master) - before)
    finally:
        peers.control.bell = -1
        peers.slave.sendall(b"odd")
        serving.join()


def test_a_peer_that_left_is_left_to_the_caller(master, peers):
    peers.slave.close()
    peers.serve(30_000)
    with pytest.raises(OSError):
        peers.mine.send(b"x")
