"""Targets for replication: the kernel that copies records, and both ends of a connection whose peer says anything."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
from functools import cache

import cystore
from cystore._native.append import copied
from cystore._native.memory.mapping import MappedFile
from cystore._native.replication import outflow
from cystore.config import StoreConfig
from cystore.consumers.replicated import ReplicatedOffsets
from cystore.engine.manifest.removed_queues import RemovedQueue
from cystore.errors import CorruptRecordError, StoreError
from cystore.ha.connection import SlaveConnection
from cystore.ha.copied_log import CopiedLog
from cystore.ha.epochs.history import Begin, History, parse_history
from cystore.ha.epochs.in_sync import InSync
from cystore.ha.epochs.session import Session
from cystore.ha.facts.collected import Sealed
from cystore.ha.facts.followed import FollowedFacts
from cystore.ha.facts.shipment import Shipment
from cystore.ha.link import wire
from cystore.ha.link.sockets import ours
from cystore.ha.slave import Slave
from tests.fuzz import records
from tests.fuzz.stores import LOG_BYTES, ROOT, SETTINGS
from tests.fuzz.target import Target, Wrong, edit, overlay, same
from tests.oracle.record import NotValid, Record, parse
from tests.support import parts

BATCH_BYTES = 700  # of a frame; records are cut anywhere
TURNS = 64
WORDS_BYTES = 4096  # of a slave
EPOCH = 7  # of the master
FACTS = b'{"facts": 1}'


@cache
def _log() -> bytes:
    return bytes(records.log_of(LOG_BYTES).files[0])


def run_copied(data: bytes) -> None:
    """Edited records: what is appended is sound, at its place, and all before the first that is not."""
    log = bytearray(_log())
    overlay(data, [log])
    control = parts.control_block(StoreConfig(**SETTINGS), 64)
    step = control.more_queue_bytes()
    if step is not None:
        control.publish_queue_capacity(step[1])
    control.allocated = 2 * LOG_BYTES
    segment = MappedFile.anonymous(0, LOG_BYTES)
    batch = copied.CopiedRecords(control)
    at, piece = 0, 64 + 8 * (data[-1] if data else 0)
    with contextlib.suppress(CorruptRecordError):
        while (given := min(at + piece, len(log))) > at:
            if not batch.check(log, at, given, at, LOG_BYTES):
                if batch.blank or given == len(log):
                    break
                piece *= 2
            elif batch.append(segment) != copied.DONE:
                break
            else:
                at += batch.length
    batch.forget()
    same("the log", segment.read(0, at), bytes(log[:at]))
    same("its end", control.wrote, at)
    position = 0
    while position < at:
        try:
            record = parse(bytes(log), position)
        except NotValid as error:
            raise Wrong(f"appended at {position}: {error}") from None
        if not isinstance(record, Record):
            raise Wrong(f"a blank was appended at {position}")
        position += record.size


def _stream() -> bytes:
    """What a master sends: heartbeats, facts, and the log in frames."""
    log, facts = _log(), Shipment({"T@g": {"0": 3}}, {"delete_when": "05"}, (RemovedQueue("U", 1, 4, 9),), 0)
    data, confirmed = facts.data(), wire.REPORT.pack(BATCH_BYTES)
    frames = [wire.HEADER.pack(0, 0), wire.HEADER.pack(wire.FACTS, len(data)) + data]
    frames.append(wire.HEADER.pack(wire.CONFIRMED, len(confirmed)) + confirmed)
    for begin in range(0, len(log), BATCH_BYTES):
        piece = log[begin : begin + BATCH_BYTES]
        frames.append(wire.HEADER.pack(begin, len(piece)) + piece)
    return b"".join(frames)


_numbers = itertools.count()


def run_slave(data: bytes) -> None:
    """A master that says anything: the slave's log is sound, and it opens again."""
    stream = bytearray(_stream())
    overlay(data, [stream])
    root = ROOT / f"slave-{next(_numbers)}"
    settings = {**SETTINGS, "broker_role": "slave", "ha_master_address": "127.0.0.1:1"}
    mine, theirs = socket.socketpair()
    try:
        with theirs, cystore.open(root, **settings) as store:
            inside = store._attached()
            config = inside.config
            log = CopiedLog(
                inside.control,
                inside.commit_log,
                inside.appender.policy,
                inside.manifest,
                config.max_message_size_bytes,
            )
            facts = FollowedFacts(
                inside.control,
                inside.manifest,
                inside.queues,
                inside.dispatcher,
                inside.remover,
                inside.compactor,
                inside.appender.policy,
                ReplicatedOffsets(inside),
                config,
            )
            slave = Slave(inside.control, inside.commit_log, log, config, "127.0.0.1:1", facts=facts)
            slave._call.socket = ours(mine)
            slave._heard_s = slave._reported_s = float("inf")
            theirs.sendall(stream)
            theirs.shutdown(socket.SHUT_WR)
            try:
                while True:
                    slave.turn()
            except (OSError, StoreError):
                slave.close()
            end = store.stats()["wrote"]
            _check_records(store)
        with cystore.open(root, services="none") as store:
            same("the log's end", store.stats()["wrote"], end)
            _check_records(store)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _check_records(store: cystore.MessageStore) -> None:
    for message in store.scan():
        raw = bytes(store.read(message.physical_offset).body)
        same("a body", raw, bytes(message.body))


@cache
def _master() -> cystore.MessageStore:
    store = cystore.open(ROOT / "master", **SETTINGS)
    for number in range(60):
        store.put("T", b"x" * (number * 7 % 90))
    return store


def run_master(data: bytes) -> None:
    """A slave that says anything: what it is sent is the log."""
    store = _master()
    inside = store._attached()
    hello = wire.Hello("store", 0, inside.control.wrote, inside.commit_log.file_bytes, "", EPOCH)
    members = InSync("m", frozenset({"m"}), 1.0)
    history = History("log", (Begin(EPOCH, 0),))
    session = Session("g", EPOCH, history, members, lambda: None, lambda wanted: None)
    mine, theirs = socket.socketpair()
    connection = SlaveConnection(
        ours(mine),
        "fuzz",
        inside.control,
        inside.commit_log,
        inside.config,
        lambda nonce: hello,
        None,
        session,
    )
    connection.offer(Sealed(0, FACTS))
    mine.setblocking(False)
    theirs.setblocking(False)
    got = bytearray()
    with theirs, contextlib.closing(connection), contextlib.suppress(OSError, StoreError):
        data = data[:WORDS_BYTES]
        middle = len(data) // 2
        for turn in range(TURNS):
            if turn < 2:  # the second part may come to a slave that already gets the log
                theirs.sendall(data[middle:] if turn else data[:middle])
            if turn == 1:
                theirs.shutdown(socket.SHUT_WR)
            if connection.flows:
                outflow.serve(inside.control, [connection.flow], -1, -1, hello.file_bytes, 0, 0, None)
            connection.receive()
            connection.offer(Sealed(0, FACTS))
            connection.send()
            with contextlib.suppress(BlockingIOError):
                got += theirs.recv(1 << 20)
    _check_frames(store, bytes(got))


def _check_frames(store: cystore.MessageStore, got: bytes) -> None:
    inside = store._attached()
    at, headers = 0, wire.HEADER
    while at + headers.size <= len(got):
        offset, size, *epoch = headers.unpack(got, at)
        piece = got[at + headers.size : at + headers.size + size]
        wire.check_frame(offset, size)
        same("the epoch", epoch[:1], [] if headers is wire.HEADER else [EPOCH])
        length = headers.size + size
        if offset == wire.JOIN:
            headers = wire.CONFIRMED_HEADER if wire.Joined.parse(piece).confirms else wire.EPOCH_HEADER
        if offset == wire.FACTS and len(piece) == size:
            same("the facts", piece, FACTS)
        if offset >= 0 and len(piece) == size and size:
            expected = inside.commit_log.piece(offset, offset + size)
            same(f"the log at {offset}", piece, None if expected is None else bytes(expected))
        at += length


def run_words(data: bytes) -> None:
    """Words of a peer about its group: read, or refused, and read again from what was written."""
    with contextlib.suppress(StoreError):
        joined = wire.Joined.parse(data)
        history = parse_history(joined.history)
        same("the history", parse_history(history.as_json()), history)
        for end in (0, 1, history.begins[-1].start if history.begins else 0, 1 << 61):
            common = history.common_end(end, history, end)
            first = history.begins[0].start if history.begins else end
            same("the common part with itself", common, end if end > first else -1)
    with contextlib.suppress(StoreError):
        facts = Shipment.parse(data)
        same("the facts", Shipment.parse(facts.data()), facts)
    with contextlib.suppress(StoreError):
        join = wire.Join.parse(data)
        word = join.word()
        same("the member", wire.Join.parse(word[wire.REPORT.size + wire.LENGTH.size :]), join)


EDITS = [b"", *(edit(0, 40 * n, b"\xff" * (n % 9 + 1)) for n in range(12))]
WORDS = [
    wire.REPORT.pack(0),
    b"".join(wire.REPORT.pack(word) for word in (wire.HELLO, 0, 91, 182)),
    wire.REPORT.pack(wire.HELLO)
    + wire.REPORT.pack(wire.DIGEST)
    + wire.RANGE.pack(0, 91)
    + wire.REPORT.pack(0),
    wire.REPORT.pack(wire.PROOF) + bytes(64),
    b"".join(wire.REPORT.pack(word) for word in (wire.HELLO, wire.FACTS, 0, 91)),
    wire.REPORT.pack(wire.HELLO)
    + wire.Join("g", "a", EPOCH, "log", confirms=True).word()
    + wire.REPORT.pack(wire.FACTS)
    + wire.EPOCH_REPORT.pack(0, EPOCH) * 3,
    wire.REPORT.pack(1 << 40),
    b"\0" * 7,
    wire.REPORT.pack(wire.HELLO)
    + wire.Join("g", "a", EPOCH, "log").word()
    + wire.EPOCH_REPORT.pack(0, EPOCH) * 3,
    wire.REPORT.pack(wire.HELLO)
    + wire.Join("g", "a", EPOCH, "log", confirms=True).word()
    + wire.EPOCH_REPORT.pack(0, EPOCH) * 3,
    wire.REPORT.pack(wire.HELLO)
    + wire.Join("g", "a", EPOCH + 1, "log").word()
    + wire.EPOCH_REPORT.pack(0, EPOCH),
]
GROUP_WORDS = [
    wire.Joined(EPOCH, History("log", (Begin(3, 0), Begin(EPOCH, 900))).as_json()).frame()[
        wire.HEADER.size :
    ],
    wire.Join("g", "a", EPOCH, "log").word()[wire.REPORT.size + wire.LENGTH.size :],
    wire.Join("g", "a", EPOCH, "log", confirms=True).word()[wire.REPORT.size + wire.LENGTH.size :],
    Shipment({"T@g": {"0": 3}}, {"delete_when": "05"}, (RemovedQueue("U", 1, 4, 9),), 0).data(),
    b"{}",
    b'{"epoch": 1, "history": {"log_id": "", "begins": [[1, -1]]}}',
]
TARGETS = (
    Target("copied", run_copied, lambda: EDITS, None, 3_000),
    Target("slave", run_slave, lambda: EDITS, None, 20, python=True),
    Target("master", run_master, lambda: WORDS, None, 300, python=True),
    Target("group-words", run_words, lambda: GROUP_WORDS, None, 3_000, python=True),
)
