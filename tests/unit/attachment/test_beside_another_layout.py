"""Goal: readers of one version read beside live writers of another layout, and never touch their control block.
Method: processes whose own layout is another one, as far as their looks at the control block go; they write,
dispatch, clean, die and leave meanwhile."""

from __future__ import annotations

import random
import shutil

import pytest

import cystore
from cystore.engine.inspect.control_head import read_head
from cystore.engine.inspect.control_words import read_words
from cystore.system import files
from cystore.system.ranges import file_ranges
from tests.support.clock import turn
from tests.support.process import Failed, Process, processes
from tests.support.small_stores import SETTINGS, body_for, open_small

pytestmark = pytest.mark.unsanitized  # processes of another layout, slow there

HOUR_MS = 3_600_000

# From here on the process takes blocks with this layout's number for those of another version.
ANOTHER_LAYOUT = """
import cystore
from tests.support.small_stores import open_small
from cystore.engine.inspect import control_head
control_head.FINGERPRINT += 1

def got(begin=0):
    while True:
        result = store.get("T", 0, begin, 99)
        if not result.messages:
            return
        yield from result.messages
        begin = result.next_offset
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def newer():
    with Process() as process:
        process.do(ANOTHER_LAYOUT)
        yield process


def opened(process, path, **settings):
    process.do(
        "store = open_small(path, **settings)", path=str(path), settings={"read_only": True, **settings}
    )


ENDS_WITH_AN_ERROR = """
try:
    while True:
        list(store.scan())
except cystore.StoreMovedError:
    pass
"""

BODIES = "[bytes(m.body).decode() for m in {}]"
SCAN, QUERY, GET = (BODIES.format(call) for call in ("store.scan()", "store.query('T', 'k', 99)", "got()"))


def test_a_reader_reads_beside_writers_of_another_layout(path, newer):
    """Seen: `StoreFormatError: the store is in use by another version`, for readers too. A writer is still refused."""
    with open_small(path) as store:
        store.put("T", b"0", keys=("k",))
        store.dispatch()
        store.put("T", b"1", keys=("k",))  # not dispatched
        head = files.read_all(path / "control")
        opened(newer, path)
        assert files.read_all(path / "control") == head
        assert newer.do(SCAN) == newer.do(GET) == ["0", "1"]
        assert newer.do(QUERY) == ["1", "0"]
        for n in range(2, 6):
            store.put("T", str(n).encode(), keys=("k",))
            store.put("U", str(n).encode(), queue_id=n)
            if n % 2:
                store.dispatch()
            assert newer.do(QUERY) == [str(m) for m in range(n, -1, -1)]
            assert newer.do(GET) == [str(m) for m in range(n + 1)]
            assert newer.do("store.next_queue_offset('T', 0), len(store.topics()['U'])") == [n + 1, n - 1]
            assert newer.do("store.stats()['wrote'] == wrote", wrote=store.wrote_position)
        with pytest.raises(Failed, match="StoreNotWritableError"):
            newer.do("store.put('T', b'no')")
        with pytest.raises(Failed, match="in use by another version"):
            newer.do("open_small(path)")
        assert not read_head(path).handover and store.put("T", b"6").queue_offset == 6


def test_a_wait_beside_another_layout_ends_with_a_put(path, newer):
    with open_small(path) as store:
        opened(newer, path)
        newer.send("bool(store.wait('T', 0, 0, 60.0))")
        store.put("T", b"1", keys=("k",))
        assert newer.answer() is True
        newer.do("seen = store.key_seen('k')")
        newer.send(
            "bool(store.wait_key('k', seen, 60.0)), [bytes(m.body).decode() for m in store.query('T', 'k')]"
        )
        store.put("T", b"2", keys=("k",))
        assert newer.answer() == [True, ["2", "1"]]


@pytest.mark.parametrize("back", [True, False], ids=["in use", "open nowhere"])
def test_a_reader_beside_another_layout_follows_its_path(path, newer, back):
    """Seen: it read the directory that was moved away, for ever."""
    with open_small(path) as store:
        store.put("T", b"before", keys=("k",))
        opened(newer, path)
        assert newer.do(SCAN) == ["before"]
        elsewhere = path.rename(path.with_name("elsewhere"))
        newer.do(ENDS_WITH_AN_ERROR)
        with open_small(path) as restored:
            restored.put("T", b"0", keys=("k",))
            restored.put("T", b"1", keys=("k",))
            if not back:
                restored.close()
            wanted = ["0", "1"]
            assert newer.do(SCAN) == newer.do(GET) == wanted
            assert newer.do(QUERY) == ["1", "0"]
            assert newer.do("store.followed") == 1
        shutil.rmtree(path)
        elsewhere.rename(path)


def test_the_reader_does_not_keep_the_new_version_out(path, newer):
    """The last old process shuts the store down although somebody reads; the next writer makes its own layout, and
    the reader goes on."""
    with open_small(path) as store:
        store.put("T", b"1", keys=("k",))
        opened(newer, path)
        assert newer.do(SCAN) == ["1"]
    assert not (path / "control").exists() and not (path / "abort").exists()
    assert newer.do(QUERY) == ["1"]
    with open_small(path) as store:
        store.put("T", b"2", keys=("k",))
        assert newer.do(QUERY) == ["2", "1"]
        assert newer.do("store.close()") is None


def test_a_killed_writer_of_another_layout(path, newer):
    """It dies before a record that it has written is committed: nobody sees that, as long as nobody repairs or
    recovers."""
    with Process() as old:
        old.do("from tests.support.small_stores import open_small; store = open_small(path)", path=str(path))
        old.do("store.put('T', b'1')")
        opened(newer, path)
        old.kill()
        assert newer.do(GET) == ["1"]
    with open_small(path) as store:
        store.put("T", b"2")
        assert newer.do(GET) == ["1", "2"]


def test_cleaning_of_another_layout_beside_a_reader(path, newer, monkeypatch):
    with open_small(path, file_reserved_time_h=72) as store:
        opened(newer, path)
        record = body_for(1024)
        for _ in range(64):
            store.put("T", record)
        store.dispatch()
        store.flush()
        assert newer.do("store.topics()['T'][0].min_offset") == 0
        turn(monkeypatch, 73 * HOUR_MS)
        assert store.clean().segments > 1
        wanted = [m.queue_offset for m in store.scan()]
        assert 0 < len(wanted) < 64
        assert newer.do("[m.queue_offset for m in store.scan()]") == wanted
        assert newer.do("[m.queue_offset for m in got(store.topics()['T'][0].min_offset)]") == wanted


def test_answers_are_those_of_a_writer_at_every_moment(path, newer):
    """Several writers of the other layout put, dispatch and die. Whatever the reader says was acknowledged; whatever
    was acknowledged before it was asked is in the answer, by offset, by key and in the log."""
    chance = random.Random(14)
    with open_small(path), processes(2) as writers:
        for writer in writers:
            writer.do(
                "from tests.support.small_stores import open_small; store = open_small(path)", path=str(path)
            )
        opened(newer, path)
        put = 0
        for turn in range(25):
            writer = chance.choice(writers)
            count = chance.randrange(1, 30)
            writer.do(
                "for n in range(first, first + count): store.put('T', str(n).encode() * 9, keys=(f'k{n % 7}',))",
                first=put,
                count=count,
            )
            put += count
            if chance.random() < 0.4:
                writer.do("store.dispatch()")
            assert newer.do("store.next_queue_offset('T', 0)") == put
            key = chance.randrange(7)
            wanted = [n for n in range(put) if n % 7 == key][::-1][:32]
            assert newer.do(f"[m.queue_offset for m in store.query('T', 'k{key}')]") == wanted
            at = chance.randrange(put)
            assert newer.do(f"[m.queue_offset for m in got({at})]") == list(range(at, put))
            if turn == 12:
                writers[0].kill()
                del writers[0]
        assert newer.do("[m.queue_offset for m in store.scan()]") == list(range(put))


def test_a_block_that_makes_no_sense_is_refused(path):
    """Somebody wrote over it: nothing is believed of it, and the reader does not ask for a terabyte of memory."""
    with Process() as process:
        process.do(
            "from tests.support.small_stores import open_small; store = open_small(path)", path=str(path)
        )
        file_ranges.write_at(path / "control", [(8, b"\x11" * 8), (32, b"\x77" * 32)])
        with pytest.raises(cystore.StoreFormatError, match="impossible values"):
            open_small(path, read_only=True)


def test_words_are_read_while_they_change(path):
    with open_small(path) as store:
        before = read_words(path)
        store.put("T", b"1")
        after = read_words(path)
        assert (before.generation, before.wrote) == (
            after.generation,
            0,
        ) and after.wrote == store.wrote_position
        assert (after.commit_log_file_bytes, after.max_index_num) == (
            SETTINGS["mapped_file_size_commit_log_bytes"],
            SETTINGS["max_index_num"],
        )
        assert after.dispatched <= after.wrote and after.minimum == 0
    assert read_words(path) is None
    with pytest.raises(cystore.StoreFormatError):
        cystore.open(path.parent / "none", read_only=True)
