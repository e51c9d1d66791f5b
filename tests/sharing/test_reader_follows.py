"""Goal: a read-only handle that was opened while nobody was attached follows the writers that come later, and holds
up none of them. Method: the reader is there first; other processes open the store, put, clean, roll, close and are
killed beside it."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

import cystore
from cystore.results import GetStatus
from tests.support.checks import check_chain, everything
from tests.support.cleaning import fill
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

OPEN = "import cystore; store = cystore.open(path, **settings)"
GONE = (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING)


def writer_at(path: Path, **more: object) -> Process:
    process = Process()
    process.do(OPEN, path=str(path), settings={**SETTINGS, **more})
    return process


def put(writer: Process, body: str) -> None:
    writer.do("store.put('T', body.encode(), keys=(body,))", body=body)


def bodies(reader: cystore.MessageStore) -> list[bytes]:
    return [bytes(message.body) for message in everything(reader).get(("T", 0), [])]


@contextlib.contextmanager
def alone(path: Path, *first: str) -> Iterator[cystore.MessageStore]:
    """A reader of a store that nobody has open, with these messages."""
    with open_small(path) as store:
        for body in first:
            store.put("T", body.encode(), keys=(body,))
    with open_small(path, read_only=True) as reader:
        assert reader.recovery is not None
        yield reader


# ------------------------------------------------------------------------------------- writers come and go


def test_it_sees_what_each_later_writer_put(tmp_path):
    """Seen: the handle showed what there was when it was opened, for ever."""
    with alone(tmp_path, "a") as reader:
        assert bodies(reader) == [b"a"]
        early = reader.get("T", 0, 0).messages[0]
        with writer_at(tmp_path) as writer:
            put(writer, "b")
            assert bodies(reader) == [b"a", b"b"]
            assert [bytes(m.body) for m in reader.query("T", "b")] == [b"b"]
            put(writer, "c")
            assert reader.next_queue_offset("T", 0) == 3
            assert [bytes(m.body) for m in reader.scan()] == [b"a", b"b", b"c"]
            assert reader.wait("T", 0, 2, 5)
            writer.do("store.close()")
            assert bodies(reader) == [b"a", b"b", b"c"]
        with writer_at(tmp_path) as second:
            put(second, "d")
            assert bodies(reader) == [b"a", b"b", b"c", b"d"]
            second.kill()
        assert bodies(reader) == [b"a", b"b", b"c", b"d"]
        with writer_at(tmp_path) as third:
            put(third, "e")
            assert bodies(reader)[-1] == b"e"
            assert check_chain(reader) == 5
        assert bytes(early.body) == b"a"


@pytest.mark.parametrize("end", ["store.close()", "kill"])
def test_it_sees_what_a_writer_put_that_came_and_left_between_two_reads(tmp_path, end):
    """Seen: as above. The handle reads alone before and after."""
    with alone(tmp_path, "a") as reader:
        for n in range(5):
            assert len(bodies(reader)) == n + 1
            with writer_at(tmp_path) as writer:
                put(writer, f"b{n}")
                if end == "kill":
                    writer.kill()
                else:
                    writer.do(end)
            assert reader.wait("T", 0, n + 1, 5)
        assert reader.recovery is not None and reader.recovery.abnormal == (end == "kill")
        assert bodies(reader) == [b"a", *(b"b%d" % n for n in range(5))]


def test_a_wait_that_began_alone_ends_with_the_put_of_a_later_writer(tmp_path):
    """Seen: it waited on memory of its own until its time was over."""
    with alone(tmp_path, "a"), Process() as waiter:
        waiter.do(OPEN, path=str(tmp_path), settings={**SETTINGS, "read_only": True})
        waiter.send("store.wait('T', 0, 1, 60), store.wait_log(store.wrote_position - 1, 1)")
        with writer_at(tmp_path) as writer:
            put(writer, "b")
            assert waiter.answer() == [True, True]


def test_a_scan_that_began_alone_goes_on_beside_a_writer(tmp_path, caplog):
    """The iterator keeps its place and its end. What was cleaned meanwhile is left out, and told."""
    with open_small(tmp_path, file_reserved_time_h=0) as store:
        fill(store, 400)
    with open_small(tmp_path, read_only=True) as reader:
        scan, other = reader.scan(), reader.scan()
        first = next(scan)
        next(other)
        with writer_at(tmp_path, file_reserved_time_h=0) as writer:
            fill_more = "from tests.support.cleaning import fill; "
            fill_more += "fill(store, 100, 400); store.dispatch(); store.flush()"
            writer.do(fill_more)
            assert len([first, *scan]) == 400
            assert writer.do("store.clean().segments") > 3
            assert reader.get("T", 0, 0).status in GONE
            left = [m.physical_offset for m in other]
            assert 0 < len(left) < 399
            assert "cleaned while it was read" in caplog.text
        assert bytes(first.body) == b"x" * 300


@pytest.mark.parametrize("end", ["", "store.close()"])
def test_cleaned_data_is_called_removed(tmp_path, end):
    """Seen: CorruptRecordError "the commit log file is missing" for segments that a writer had cleaned."""
    with open_small(tmp_path, file_reserved_time_h=0) as store:
        placed = fill(store, 400)
    with (
        open_small(tmp_path, read_only=True) as reader,
        writer_at(tmp_path) as writer,
    ):
        kept = reader.get("T", 0, 0).messages[0]
        writer.do(
            "from tests.support.cleaning import fill; fill(store, 10, 400); store.dispatch(); store.flush()"
        )
        assert writer.do("store.clean().segments") > 3
        writer.do(end)
        for n in range(0, 400, 7):
            result = reader.get("T", n % 2, placed[n].queue_offset)
            assert result.status in (*GONE, GetStatus.FOUND)
            found = reader.query("T", f"k{n}")
            assert (result.status is GetStatus.FOUND) == (len(found) == 1)
            assert found.damaged == []
        assert reader.get("T", 0, 0).status in GONE
        with pytest.raises(cystore.OffsetError):
            reader.read(placed[0].physical_offset)
        assert bytes(kept.body) == b"x" * 300


def test_a_handle_that_was_forked_follows_too(tmp_path):
    from tests.support.child import in_child

    with alone(tmp_path, "a") as reader:
        with writer_at(tmp_path) as writer:
            put(writer, "b")
            writer.do("store.close()")

        def read() -> None:
            assert bodies(reader) == [b"a", b"b"]

        assert in_child(read) == 0
        assert bodies(reader) == [b"a", b"b"]


def test_an_exclusive_writer_is_told_and_forgotten(tmp_path):
    with alone(tmp_path, "a") as reader, writer_at(tmp_path, exclusive=True) as writer:
        put(writer, "b")
        with pytest.raises(cystore.StoreLockedError, match="exclusively"):
            reader.get("T", 0, 0)
        writer.do("store.close()")
        assert bodies(reader) == [b"a", b"b"]


# -------------------------------------------------------------------------------------------- nobody waits

# The reader stands still in the middle of its private recovery. `show` ends it there.
STOPS = """
import os, signal
stops = [1]
def show(*_):
    if stops:
        stops.pop()
        os.kill(os.getpid(), signal.SIGSTOP)
"""
READS = (
    STOPS
    + "import cystore; store = cystore.open(path, read_only=True, progress=show, **settings); store.stats()['wrote']"
)
LOOKS = (
    STOPS
    + """
from contextlib import contextmanager
from pathlib import Path
import cystore, cystore.operate.store_parts, cystore.operate.positions
@contextmanager
def progress():
    yield show
cystore.operate.store_parts.progress = progress
config = cystore.StoreConfig(read_only=True, **settings)
cystore.operate.store_parts.looked_at(Path(path), config, cystore.operate.positions.positions)["positions"]["wrote"]
"""
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reads", [READS, LOOKS], ids=["open", "info"])
@pytest.mark.parametrize("end", ["", "store.close()", "kill"])
def test_a_writer_opens_a_crashed_store_while_a_reader_recovers_it_for_itself(tmp_path, reads, end):
    """Seen: `cystore info` on a crashed store held the gate for as long as its private recovery took, and no writer
    could open it."""
    with writer_at(tmp_path) as crashed:
        crashed.do("from tests.support.cleaning import fill; len(fill(store, 400))")
        crashed.kill()
    assert (tmp_path / "abort").exists()
    with Process() as reader:
        reader.send(reads, path=str(tmp_path), settings=SETTINGS)
        reader.wait_stopped()
        with writer_at(tmp_path) as writer:
            put(writer, "new")
            wrote = writer.do("store.wrote_position")
            if end == "kill":
                writer.kill()
            else:
                writer.do(end)
            reader.go_on()
            assert reader.answer() == wrote
        assert not select.select([reader.answers], [], [], 0)[0]


def test_a_reader_gives_up_when_somebody_comes_each_time(tmp_path):
    """It never holds the gate, so it may be outrun: then it says so."""
    with alone(tmp_path, "a"):
        pass

    def come(*_: object) -> None:
        os.utime(tmp_path)

    with pytest.raises(cystore.StoreLockedError, match="20 times"):
        open_small(tmp_path, read_only=True, progress=come)
