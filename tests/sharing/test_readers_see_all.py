"""Goal: a read-only handle sees every acknowledged message in every kind of read, whether the dispatch has come that
far or not. Method: a writer that never dispatches by itself, alive, closed, killed or come later; each read against
what was acknowledged."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.cli.program import main
from cystore.results import GetStatus
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

COUNT = 9
TOPIC = "T"
# (queue offset, physical offset, store timestamp) of each acknowledged message, by queue.
PUT = """
placed = {"0": [], "1": []}
def put(first, end):
    for n in range(first, end):
        for queue_id in (0, 1):
            one = store.put("T", b"%d" % n, queue_id=queue_id, keys=(f"k{n}", f"q{queue_id}k{n}"), tags=f"t{n % 2}")
            placed[str(queue_id)].append((one.queue_offset, one.physical_offset, one.store_timestamp_ms))
"""
OPEN = "import cystore; store = cystore.open(path, **settings)\n" + PUT
Placed = dict[str, list[tuple[int, int, int]]]


def begun(path: Path, dispatched: int, writer: Process) -> None:
    """The writer has the store open, and `dispatched` messages of each queue are dispatched."""
    writer.do(OPEN, path=str(path), settings=SETTINGS)
    writer.do(f"put(0, {dispatched}); store.dispatch()")


@contextlib.contextmanager
def live(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    with Process() as writer:
        begun(path, dispatched, writer)
        placed = writer.do(f"put({dispatched}, {COUNT}); placed")
        with open_small(path, read_only=True) as reader:
            yield reader, placed


@contextlib.contextmanager
def live_and_read_before(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    with Process() as writer:
        begun(path, dispatched, writer)
        with open_small(path, read_only=True) as reader:
            reader.get(TOPIC, 0, 0)
            yield reader, writer.do(f"put({dispatched}, {COUNT}); placed")


@contextlib.contextmanager
def closed(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    with Process() as writer:
        begun(path, dispatched, writer)
        with open_small(path, read_only=True) as reader:
            placed = writer.do(f"put({dispatched}, {COUNT}); placed")
            writer.do("store.close()")
            yield reader, placed


@contextlib.contextmanager
def killed(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    with Process() as writer:
        begun(path, dispatched, writer)
        with open_small(path, read_only=True) as reader:
            placed = writer.do(f"put({dispatched}, {COUNT}); placed")
            writer.kill()
            yield reader, placed


@contextlib.contextmanager
def killed_before(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    with Process() as writer:
        begun(path, dispatched, writer)
        placed = writer.do(f"put({dispatched}, {COUNT}); placed")
        writer.kill()
    with open_small(path, read_only=True) as reader:
        yield reader, placed


@contextlib.contextmanager
def come_later(path: Path, dispatched: int) -> Iterator[tuple[cystore.MessageStore, Placed]]:
    open_small(path).close()
    with open_small(path, read_only=True) as reader, Process() as writer:
        assert reader.topics() == {}
        begun(path, dispatched, writer)
        yield reader, writer.do(f"put({dispatched}, {COUNT}); placed")


# ------------------------------------------------------------------------------------------------------ reads


def numbers(messages: list[cystore.Message]) -> list[int]:
    return [int(bytes(message.body)) for message in messages]


def to_max_offset(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    """Whoever reads on to `max_offset` finds everything, also when only the first answer tells it."""
    for queue_id in (0, 1):
        for count in (1, 2, 32):
            got = reader.get(TOPIC, queue_id, 0, count)
            assert (got.min_offset, got.max_offset, got.behind) == (0, COUNT, False)
            found, first_told = numbers(got.messages), got.max_offset
            while got.next_offset < first_told:
                got = reader.get(TOPIC, queue_id, got.next_offset, count)
                assert got.status is GetStatus.FOUND and got.max_offset == COUNT
                found += numbers(got.messages)
            assert found == list(range(COUNT))


def each_offset(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    for queue_id, messages in placed.items():
        for queue_offset, physical_offset, _ in reversed(messages):
            for raw in (False, True):
                got = reader.get(TOPIC, int(queue_id), queue_offset, 1, raw=raw)
                assert (got.status, got.next_offset, got.max_offset) == (
                    GetStatus.FOUND,
                    queue_offset + 1,
                    COUNT,
                )
            assert reader.read(physical_offset).queue_offset == queue_offset


def tags(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    at, found = 0, []
    while at < COUNT:
        got = reader.get(TOPIC, 0, at, tags="t1")
        assert got.max_offset == COUNT and got.next_offset > at
        at, found = got.next_offset, found + numbers(got.messages)
    assert found == list(range(1, COUNT, 2))
    assert reader.get(TOPIC, 0, 0, tags="none").max_offset == COUNT


def beyond(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    """An offset without a message is answered as in a handle that may write."""
    got = reader.get(TOPIC, 0, COUNT)
    assert (got.status, got.next_offset, got.max_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, COUNT, COUNT)
    got = reader.get(TOPIC, 0, COUNT + 1)
    assert (got.status, got.next_offset, got.max_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0, COUNT)
    got = reader.get(TOPIC, 0, -1)
    assert (got.status, got.next_offset, got.max_offset) == (GetStatus.OFFSET_TOO_SMALL, 0, COUNT)


def counts(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    assert reader.topics() == {TOPIC: {0: (0, COUNT), 1: (0, COUNT)}}
    assert [reader.next_queue_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [COUNT, COUNT]
    assert reader.catch_up() == reader.wrote_position == reader.stats()["wrote"]
    assert reader.wait(TOPIC, 0, COUNT - 1, 0) and not reader.wait(TOPIC, 0, COUNT, 0)


def by_time(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    for queue_id, messages in placed.items():
        times = [ms for _, _, ms in messages]
        for ms in times:
            assert reader.offset_by_time(TOPIC, int(queue_id), ms) == times.index(ms)
        assert reader.offset_by_time(TOPIC, int(queue_id), 0) == 0
        assert times[reader.offset_by_time(TOPIC, int(queue_id), 1 << 60)] == times[-1]


def by_key(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    for n in range(COUNT):
        assert [(m.queue_id, m.queue_offset) for m in reader.query(TOPIC, f"k{n}")] == [(1, n), (0, n)]
        assert len(reader.query(TOPIC, f"k{n}", 1)) == 1
    keys = [f"q{queue_id}k{n}" for queue_id in (0, 1) for n in range(COUNT)]
    assert [len(found) for found in reader.query_many(TOPIC, keys).values()] == [1] * len(keys)


def scan(reader: cystore.MessageStore, placed: Placed, path: Path) -> None:
    offsets = sorted(at for messages in placed.values() for _, at, _ in messages)
    assert [m.physical_offset for m in reader.scan()] == offsets
    assert [m.physical_offset for m in reader.scan(offsets[3], offsets[-1])] == offsets[3:-1]


READS = [to_max_offset, each_offset, tags, beyond, counts, by_time, by_key, scan]
STATES = [live, live_and_read_before, closed, killed, killed_before, come_later]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dispatched", [0, 1, COUNT])
@pytest.mark.parametrize("state", STATES)
def test_a_reader_sees_what_was_acknowledged(tmp_path, state, dispatched):
    """Seen: `get` said `max_offset` 1 while 2 messages were there; whoever read on to it missed the rest."""
    with state(tmp_path, dispatched) as (reader, placed):
        for read in READS:
            read(reader, placed, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dispatched", [0, 1, COUNT])
@pytest.mark.parametrize("state", [live, closed, killed])
def test_a_command_shows_what_was_acknowledged(tmp_path, capsys, state, dispatched):
    """Seen: `cystore info` counted dispatched messages only."""

    def lines(*arguments: str) -> list[dict[str, Any]]:
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with state(tmp_path, dispatched):
        (info,) = lines("info", str(tmp_path))
        assert [(q["min_offset"], q["max_offset"], q["next_offset"]) for q in info["queues"]] == [
            (0, COUNT, COUNT)
        ] * 2
        assert [(q["min_offset"], q["max_offset"], q["count"]) for q in lines("topics", str(tmp_path))] == [
            (0, COUNT, COUNT)
        ] * 2
        assert len(lines("tail", "-n", "100", str(tmp_path), TOPIC)) == 2 * COUNT
        assert len(lines("dump", str(tmp_path))) == 2 * COUNT
        assert len(lines("query", str(tmp_path), TOPIC, f"k{COUNT - 1}")) == 2
