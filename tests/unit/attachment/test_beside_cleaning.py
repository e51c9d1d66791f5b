"""Goal: a reader beside a control block of another layout reads on while the others clean: a file that a cleaner took
away is skipped. Method: another process cleans at chosen moments of the reader's recovery, or all the time."""

from __future__ import annotations

import logging
import os

import pytest

from cystore.engine.inspect import control_head
from cystore.engine.inspect.control_words import read_words
from cystore.recovery.walk.log_reader import LogReader
from tests.support.process import Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # processes of another layout, slow there

WRITER = """
import os
from tests.support.small_stores import open_small
from cystore.system import files
store = open_small(path, file_reserved_time_h=0)
put = 0

def fill(queues=1):
    global put
    for _ in range(40):
        store.put("T", str(put).encode() * 200, queue_id=put % queues, keys=("k",))
        put += 1

def stop_before_the_first_unlink():
    real = files.remove
    def remove(*args, **kwargs):
        files.remove = real
        open(stopped, "w").close()
        open(going_on).close()
        return real(*args, **kwargs)
    files.remove = remove
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def writer(path, monkeypatch):
    """Another process, for whose control block this one has another layout."""
    with Process() as process:
        process.do(WRITER, path=str(path))
        process.do("fill()")
        monkeypatch.setattr(control_head, "FINGERPRINT", control_head.FINGERPRINT + 1)
        yield process


def after_each_list(monkeypatch, times, work):
    """Does something after each of the first lists of the log's files that a recovery makes."""
    real, left = LogReader._list, [times]

    def listed(self):
        found = real(self)
        if left[0]:
            left[0] -= 1
            work()
        return found

    monkeypatch.setattr(LogReader, "_list", listed)


def all_reads(store):
    """The numbers of the messages, by each way to read them."""
    begin = store.topics()["T"][0].min_offset
    return (
        [m.queue_offset for m in store.scan()],
        [m.queue_offset for m in store.get("T", 0, begin, 999).messages],
        [m.queue_offset for m in store.query("T", "k", 999)][::-1],
        [m.queue_offset for m in store.query_many("T", ["k"], 999)["k"]][::-1],
    )


def test_a_segment_goes_between_the_new_minimum_and_its_own_end(path, writer, monkeypatch, tmp_path):
    """Seen: `StoreIOError: No such file or directory`, for the words were the same before and after, and a segment
    that was listed was not there any more."""
    stopped, going_on = tmp_path / "stopped", tmp_path / "going_on"
    os.mkfifo(stopped)
    os.mkfifo(going_on)
    writer.do("stop_before_the_first_unlink()", stopped=str(stopped), going_on=str(going_on))
    writer.send("store.clean().segments", stopped=str(stopped), going_on=str(going_on))
    stopped.open().close()
    assert read_words(path).minimum > 0

    def go_on():
        going_on.open("w").close()
        assert writer.answer() > 0

    after_each_list(monkeypatch, 1, go_on)
    with open_small(path, read_only=True) as store:
        assert all_reads(store)[0]
        assert len({tuple(numbers) for numbers in all_reads(store)}) == 1


def test_cleaning_is_no_coming_and_going(path, writer, monkeypatch):
    """Seen: `StoreLockedError: other processes opened and closed the store 20 times`, where nobody had."""
    after_each_list(monkeypatch, 25, lambda: writer.do("fill(); store.clean()"))
    with open_small(path, read_only=True) as store:
        wanted = writer.do("[m.queue_offset for m in store.scan()]")
        assert wanted and all(numbers == wanted for numbers in all_reads(store))


def test_a_view_follows_what_is_cleaned(path, writer, monkeypatch, caplog):
    """Also where the clean comes between the look at the words and the read. Nothing is taken for damage."""
    with open_small(path, read_only=True) as store, caplog.at_level(logging.ERROR):
        for _ in range(5):
            writer.do("fill(3); store.dispatch()")
            assert store.next_queue_offset("T", 0) == writer.do("store.next_queue_offset('T', 0)")
            writer.do("store.clean()")
            wanted = writer.do("[[q, s.min_offset, s.max_offset] for q, s in store.topics()['T'].items()]")
            found = [[q, s.min_offset, s.max_offset] for q, s in store.topics()["T"].items()]
            # A queue without messages may be listed for a moment longer.
            assert [row for row in found if row[1] < row[2]] == [row for row in wanted if row[1] < row[2]]
            scanned = store.scan()
            next(scanned)
            writer.do("fill(3); store.clean()")
            assert store.query("T", "k", 999).damaged == []
            assert writer.do("[m.physical_offset for m in store.scan()]") == [
                m.physical_offset for m in store.scan()
            ]
    assert caplog.messages == []


def test_reads_beside_a_writer_that_cleans_all_the_time(path, writer):
    writer.send("for _ in range(30): fill(2); store.clean()")
    seen = -1
    while seen < 30 * 40:
        with open_small(path, read_only=True) as store:
            for _ in range(5):
                newest = store.query_many("T", ["k"])["k"][0].physical_offset
                assert store.stats()["wrote"] > newest
                assert store.query("T", "k").damaged == []
                seen = max(seen, sum(store.next_queue_offset("T", queue_id) for queue_id in (0, 1)))
    writer.answer()
