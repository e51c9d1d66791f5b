"""Goal: a named dispatcher gives every record in order, at least once, whatever its function does, and holds up
nobody else. Method: functions that fail, hang and note what they get; cursors that are damaged, cut and moved; other
processes and children."""

from __future__ import annotations

import os
import re
import threading

import pytest

import cystore
from cystore.arrivals import cursor as cursors
from cystore.arrivals import dispatcher as dispatchers
from cystore.errors import (
    OffsetError,
    StoreClosedError,
    StoreConfigError,
    StoreFormatError,
    StoreLockedError,
    StoreNotWritableError,
    StoreResourceError,
)
from cystore.system import files
from tests.support.child import in_child
from tests.support.clock import turn
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, open_small

pytestmark = pytest.mark.unsanitized  # calls of programs: its kernels are those of every store

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        yield store


class Taken:
    """A function that notes what it gets."""

    def __init__(self, fails=0):
        self.bodies, self.batches, self.fails = [], [], fails
        self._more = threading.Condition()

    def __call__(self, messages):
        if self.fails:
            self.fails -= 1
            raise ValueError("not now")
        with self._more:
            self.bodies += [bytes(message.body) for message in messages]
            self.batches.append(len(messages))
            self._more.notify_all()

    def have(self, count):
        with self._more:
            return self._more.wait_for(lambda: len(self.bodies) >= count, WAIT_S)


def fill(store, begin, end, topic="orders"):
    for number in range(begin, end):
        store.put(topic, b"%d" % number, queue_id=number % 3)


def numbers(begin, end):
    return [b"%d" % number for number in range(begin, end)]


def state(store, name="search"):
    (found,) = [one for one in store.dispatchers.states() if one.name == name]
    return found


def test_every_record_comes_in_the_order_of_the_log(store):
    fill(store, 0, 700)
    taken = Taken()
    with store.dispatchers.add("search", taken, max_count=100) as search:
        assert search.wait(WAIT_S)
        assert (search.runs, search.lag_bytes, search.position) == (True, 0, store.wrote_position)
        fill(store, 700, 750)
        assert search.wait(WAIT_S)
    assert taken.bodies == numbers(0, 750)
    assert max(taken.batches) == 100
    assert state(store) == ("search", store.wrote_position, 0, False, 0, False)


def test_the_cursor_outlives_the_store_that_was_closed(tmp_path):
    for begin in (0, 10, 20):
        with cystore.open(tmp_path / "s") as store:
            fill(store, begin, begin + 10)
            taken = Taken()
            assert store.dispatchers.add("search", taken).wait(WAIT_S)
        assert taken.bodies == numbers(begin, begin + 10)


def test_a_function_that_fails_gets_the_same_messages_again(store, caplog):
    fill(store, 0, 10)
    taken = Taken(fails=3)
    with store.dispatchers.add("search", taken, max_count=4) as search:
        assert search.wait(WAIT_S)
        assert search.error is None
    assert taken.bodies == numbers(0, 10)
    told = [record.message for record in caplog.records if "dispatcher search failed at 0" in record.message]
    assert len(told) == 1  # the same error is told once


def test_while_a_function_fails_its_cursor_stays_and_others_continue(store, monkeypatch):
    monkeypatch.setattr(dispatchers, "RETRY_MAX_S", 0.1)
    fill(store, 0, 10)
    failing, other = Taken(fails=10**9), Taken()
    with store.dispatchers.add("failing", failing) as one, store.dispatchers.add("other", other) as two:
        assert two.wait(WAIT_S)
        while state(store, "failing").failures < 2:
            assert not one.wait(0.01)
        assert (one.position, type(one.error)) == (0, ValueError)
        assert store.get("orders", 0, 0).messages
        failing.fails = 0
        assert one.wait(WAIT_S)
        assert (one.error, state(store, "failing").failures) == (None, 0)
    assert failing.bodies == other.bodies == numbers(0, 10)


def test_a_function_that_hangs_holds_up_nobody(store):
    inside, leave = threading.Event(), threading.Event()

    def hang(messages):
        inside.set()
        assert leave.wait(WAIT_S)

    store.put("orders", b"0")
    hanging = store.dispatchers.add("hanging", hang)
    assert inside.wait(WAIT_S)
    other = Taken()
    with store.dispatchers.add("other", other) as two:
        fill(store, 1, 50)
        assert two.wait(WAIT_S)
        assert len(store.get("orders", 1, 0, 100).messages) == 17
        assert store.dispatch() == 0
    assert not hanging.close(0.05)
    assert hanging.position == 0
    leave.set()
    assert hanging.close()
    assert other.bodies == numbers(0, 50)
    assert 0 < state(store, "hanging").position < store.wrote_position  # the batch that it had counts


def test_a_store_is_closed_while_a_function_hangs(tmp_path):
    inside, leave = threading.Event(), threading.Event()

    def hang(messages):
        inside.set()
        assert leave.wait(WAIT_S)

    store = cystore.open(tmp_path / "s")
    store.put("orders", b"0")
    hanging = store.dispatchers.add("hanging", hang)
    assert inside.wait(WAIT_S)
    store.close()
    with cystore.open(tmp_path / "s") as again:
        assert state(again, "hanging").runs  # no other process may run it yet
        leave.set()
        assert hanging.close(WAIT_S)
        assert state(again, "hanging")[1:4] == (again.wrote_position, 0, False)
    with pytest.raises(StoreClosedError):
        hanging.wait()


def test_begin_at_the_last_record_is_the_place_of_the_first_add(store):
    fill(store, 0, 5)
    with store.dispatchers.add("search", Taken(), begin="last"):
        pass
    fill(store, 5, 9)
    taken = Taken()
    with store.dispatchers.add("search", taken, begin="last") as search:
        assert search.wait(WAIT_S)
    assert taken.bodies == numbers(5, 9)


def test_one_handle_runs_a_name_at_a_time_and_the_other_takes_over(tmp_path):
    with cystore.open(tmp_path / "s") as first, cystore.open(tmp_path / "s") as second:
        one, two = Taken(), Taken()
        search = first.dispatchers.add("search", one)
        waits = second.dispatchers.add("search", two)
        fill(first, 0, 20)
        assert waits.wait(WAIT_S)
        assert (search.runs, waits.runs) == (True, False)
        with pytest.raises(StoreConfigError, match="is added to this store already"):
            first.dispatchers.add("search", one)
        search.close()
        fill(first, 20, 30)
        assert waits.wait(WAIT_S)
        assert (one.bodies, two.bodies) == (numbers(0, 20), numbers(20, 30))
        first.dispatchers.add("search", one)


def test_another_process_takes_over_when_the_one_that_runs_it_is_killed(tmp_path):
    with cystore.open(tmp_path / "s") as store, Process() as other:
        other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
        other.do("search = store.dispatchers.add('search', lambda messages: None)")
        fill(store, 0, 20)
        assert other.do("search.wait(60)")
        taken = Taken()
        search = store.dispatchers.add("search", taken)
        other.kill()
        fill(store, 20, 30)
        assert search.wait(WAIT_S)
        assert taken.bodies == numbers(20, 30)


def test_after_a_power_cut_the_durable_position_counts(tmp_path, monkeypatch):
    with cystore.open(tmp_path / "s", services="none") as store:
        fill(store, 0, 10)
        store.flush()
        durable = store.wrote_position
        assert store.dispatchers.add("search", Taken()).wait(WAIT_S)
        fill(store, 10, 20)
        search = store.dispatchers._store._parts.dispatchers["search"]
        assert search.wait(WAIT_S)
        search.close()
        assert state(store).position == store.wrote_position
        identity = cursors.platform.identity()
        monkeypatch.setattr(cursors.platform, "identity", lambda: {**identity, "boot_id": "0" * 36})
        assert state(store).position == durable
        taken = Taken()
        with store.dispatchers.add("search", taken) as search:
            assert search.wait(WAIT_S)
        assert taken.bodies == numbers(10, 20)


def test_nothing_that_is_not_durable_is_given_if_so_asked(tmp_path):
    with cystore.open(tmp_path / "s", services="none") as store:
        taken = Taken()
        with store.dispatchers.add("search", taken, durable_only=True) as search:
            fill(store, 0, 10)
            assert not search.wait(0.3)
            assert taken.bodies == []
            store.flush()
            assert search.wait(WAIT_S)
    assert taken.bodies == numbers(0, 10)


def fill_segments(store, count):
    for number in range(count):
        store.put("orders", b"%03d" % number + bytes(LOG_BYTES // 4 - 200))


def test_a_hold_keeps_what_was_not_given_and_moves_with_the_cursor(tmp_path):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        fill_segments(store, 20)
        search = store.dispatchers.add("search", Taken(fails=10**9), hold=True)
        assert store.clean().min_physical_offset == 0
        search.close()
        assert state(store).holds
        assert store.clean().min_physical_offset == 0
        with store.dispatchers.add("search", Taken(), hold=True) as search:
            assert search.wait(WAIT_S)
            store.flush()
            fill_segments(store, 20)
            assert search.wait(WAIT_S)
        assert 0 < store.clean().min_physical_offset <= store.wrote_position
        store.dispatchers.add("search", Taken()).close()
        assert not store.holds()


def test_without_a_hold_what_was_cleaned_is_told_and_stepped_over(tmp_path, caplog):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        store.dispatchers.add("search", Taken()).close()
        fill_segments(store, 20)
        minimum = store.clean().min_physical_offset
        assert minimum > 0
        taken = Taken()
        with store.dispatchers.add("search", taken) as search:
            assert search.wait(WAIT_S)
        left = [bytes(message.body) for message in store.scan()]
    assert taken.bodies == left
    assert f"the log from 0 to {minimum} was cleaned before the dispatcher came to it" in caplog.text


def test_damage_is_told_and_stepped_over(store, caplog):
    fill(store, 0, 10)
    store.dispatch()
    bad = store.read(store.get("orders", 0, 1).messages[0].physical_offset)
    segment = next((store.path / "commitlog").glob("0*"))
    with open(segment, "r+b") as file:
        file.seek(bad.physical_offset + 95)
        file.write(b"\xff\xff\xff")
    taken = Taken()
    with store.dispatchers.add("search", taken) as search:
        assert search.wait(WAIT_S)
    assert taken.bodies == [body for body in numbers(0, 10) if body != b"3"]
    assert (
        f"dispatcher search steps over {bad.size_bytes} damaged bytes at {bad.physical_offset}" in caplog.text
    )


def test_reset_and_remove(store):
    fill(store, 0, 10)
    third = [message.physical_offset for message in store.scan()][3]
    taken = Taken()
    with store.dispatchers.add("search", taken) as search:
        assert search.wait(WAIT_S)
        for call in (
            lambda: store.dispatchers.reset("search", "first"),
            lambda: store.dispatchers.remove("search"),
        ):
            with pytest.raises(StoreLockedError, match="a process runs the dispatcher search"):
                call()
    assert store.dispatchers.reset("search", third) == third
    with pytest.raises(OffsetError):
        store.dispatchers.reset("search", third + 1)
    with pytest.raises(StoreConfigError, match="there is no dispatcher other"):
        store.dispatchers.reset("other", "last")
    with store.dispatchers.add("search", taken) as search:
        assert search.wait(WAIT_S)
    assert taken.bodies == numbers(0, 10) + numbers(3, 10)
    assert store.dispatchers.reset("search", "last") == store.wrote_position
    assert store.dispatchers.remove("search")
    assert not store.dispatchers.remove("search")
    assert store.dispatchers.states() == []


def test_a_removed_cursor_is_made_anew_by_who_waits_for_its_lock(tmp_path):
    with cystore.open(tmp_path / "s") as first, cystore.open(tmp_path / "s") as second:
        fill(first, 0, 5)
        search = first.dispatchers.add("search", Taken())
        assert search.wait(WAIT_S)
        taken = Taken()
        second.dispatchers.add("search", taken)
        # So that the other one holds a file that is gone when its turn comes.
        cursors.path_of(first.path, "search").unlink()
        search.close()
        fill(first, 5, 8)
        assert taken.have(8)
        assert taken.bodies == numbers(0, 8)


@pytest.mark.parametrize("name", ["", "a b", ".a", "a/b", "x" * 49, "ü", "a.bak", "a.spare", 3, None])
def test_names(store, name):
    with pytest.raises(StoreConfigError, match="name"):
        store.dispatchers.add(name, Taken())


async def _coroutine(messages):
    pass


class _Asynchronous:
    async def __call__(self, messages):
        pass


def test_a_coroutine_is_an_error_and_moves_nothing(store):
    store.put("orders", b"")
    failed = store.dispatchers.add("search", lambda messages: _coroutine(messages))
    while not state(store).failures:
        assert not failed.wait(0.01)
    assert isinstance(failed.error, StoreConfigError)
    failed.close()
    work = Taken()
    with store.dispatchers.add("search", work) as search:
        assert search.wait(WAIT_S)


def test_a_batch_of_large_messages_ends_early(store, monkeypatch):
    monkeypatch.setattr("cystore.arrivals.dispatcher.BATCH_BYTES", 4096)
    for _ in range(10):
        store.put("orders", bytes(3000))
    counts = []
    with store.dispatchers.add("search", lambda messages: counts.append(len(messages))) as search:
        assert search.wait(WAIT_S)
    assert counts == [2] * 5


def test_a_closed_dispatcher_is_not_remembered_for_ever(store):
    before = len(store._attached().at_stop)
    for _ in range(5):
        store.dispatchers.add("search", Taken()).close()
    assert len(store._attached().at_stop) <= before + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": None}, {"function": _coroutine}, {"function": _Asynchronous()},
        {"begin": 3}, {"begin": "middle"}, {"max_count": 0},
        {"max_count": "1"},
        {"hold": True, "hold_max_age_ms": -1},
    ],
)  # fmt: skip
def test_wrong_arguments(store, wrong):
    with pytest.raises(StoreConfigError):
        store.dispatchers.add("search", **{"function": Taken(), **wrong})
    store.dispatchers.add("search", Taken()).close()


def test_a_damaged_cursor_is_an_error_that_names_the_file(store):
    store.dispatchers.add("search", Taken()).close()
    path = cursors.path_of(store.path, "search")
    data = bytearray(path.read_bytes())
    for at in (20, 20 + cursors.PLACE_BYTES):
        data[at] ^= 0xFF
    path.write_bytes(data)
    for call in (store.dispatchers.states, lambda: store.dispatchers.add("search", Taken())):
        with pytest.raises(StoreFormatError, match=re.escape(str(path))):
            call()


def test_one_damaged_place_gives_the_older_one(store):
    taken = Taken()
    with store.dispatchers.add("search", taken, max_count=1) as search:
        fill(store, 0, 3)
        assert search.wait(WAIT_S)
    path = cursors.path_of(store.path, "search")
    cursor = cursors.Cursor(store._parts, "search", write=False)
    newest = cursor.read().write
    cursor.close()
    data = bytearray(path.read_bytes())
    data[newest % 2 * cursors.PLACE_BYTES + 20] ^= 0xFF
    path.write_bytes(data)
    with store.dispatchers.add("search", taken) as search:
        assert search.wait(WAIT_S)
    assert taken.bodies[:3] == numbers(0, 3)
    assert taken.bodies[-1:] == numbers(2, 3)


def test_a_cursor_that_was_made_and_never_written_begins(store):
    fill(store, 0, 3)
    (store.path / "config").mkdir(exist_ok=True)
    cursors.path_of(store.path, "search").write_bytes(bytes(cursors.FILE_BYTES))
    assert state(store).position == 0
    taken = Taken()
    with store.dispatchers.add("search", taken) as search:
        assert search.wait(WAIT_S)
    assert taken.bodies == numbers(0, 3)


def test_a_cursor_that_another_process_uses_stays_when_its_maker_fails(store, monkeypatch):
    """Seen: the maker could not make the name durable and unlinked the file, in which another process kept its
    position meanwhile: the next process of that dispatcher would have begun anew."""
    sync_directory, used = files.sync_directory, []
    path = cursors.path_of(store._parts.root, "search")

    def without_descriptor(folder):
        if used or not path.exists():
            return sync_directory(folder)
        used.append(None)
        used[0] = cursors.Cursor.make(store._parts, "search")
        raise StoreResourceError("no descriptor is left", path=folder)

    monkeypatch.setattr(files, "sync_directory", without_descriptor)
    with pytest.raises(StoreResourceError, match="no descriptor is left"):
        cursors.Cursor.make(store._parts, "search")
    assert os.fstat(used[0]._file.fd).st_nlink == 1
    taken = Taken()
    fill(store, 0, 3)
    store.dispatchers.add("search", taken, begin="first")
    assert taken.have(3)


def test_a_reader_sees_the_states_and_adds_nothing(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        fill(store, 0, 3)
        search = store.dispatchers.add("search", Taken())
        assert search.wait(WAIT_S)
        with cystore.open(tmp_path / "s", read_only=True) as reader:
            assert state(reader) == ("search", store.wrote_position, 0, True, 0, False)
            with pytest.raises(StoreNotWritableError):
                reader.dispatchers.add("other", Taken())


def test_a_forked_child_has_no_dispatcher_and_adds_its_own(store):
    taken = Taken()
    search = store.dispatchers.add("search", taken)

    def child():
        with pytest.raises(StoreClosedError, match=f"belongs to process {os.getppid()}"):
            search.wait()
        assert search.close()
        mine = store.dispatchers.add("mine", Taken())
        assert mine.wait(WAIT_S)
        assert not store.dispatchers.add("search", Taken()).runs

    fill(store, 0, 5)
    assert in_child(child) == 0
    assert search.wait(WAIT_S)
    assert search.runs
    assert taken.bodies == numbers(0, 5)


def test_a_function_may_close_its_own_dispatcher_and_use_the_store(store):
    seen = []

    def work(messages):
        seen.append(len(messages))
        if messages[0].topic == "orders":
            store.put("copies", messages[0].body)
            search.close()

    fill(store, 0, 1)
    ready = threading.Event()
    search = store.dispatchers.add("search", lambda messages: ready.wait(WAIT_S) and work(messages))
    ready.set()
    search._thread.join(WAIT_S)
    assert search.stopped
    assert store.get("copies", 0, 0).messages
    assert state(store).lag_bytes > 0


def test_a_function_may_take_the_messages_out_of_its_list(store, monkeypatch):
    """Seen: the dispatcher slept behind each list, up to a minute; and an error behind that was counted nowhere."""
    slept_behind, found, sleep = [], [], dispatchers.Dispatcher._sleep

    def watched(self, pause_s):
        if not pause_s and self._position < self._parts.control.wrote:
            slept_behind.append(self._position)
        sleep(self, pause_s)

    def work(messages):
        while messages:
            found.append(bytes(messages.pop(0).body))

    def fails(messages):
        messages.clear()
        raise ValueError("not now")

    monkeypatch.setattr(dispatchers.Dispatcher, "_sleep", watched)
    fill(store, 0, 50)
    store.dispatch()
    assert store.dispatchers.add("search", work, max_count=5).wait(WAIT_S)
    assert found == numbers(0, 50)
    assert not slept_behind
    with store.dispatchers.add("fails", fails) as failing:
        while not state(store, "fails").failures:
            failing.wait(0.01)
        assert isinstance(failing.error, ValueError)


def test_the_lag_counts_only_log_that_can_still_be_got(tmp_path, monkeypatch):
    """Seen: it counted log that cleaning had removed, so an alarm on it never ended."""
    with open_small(tmp_path / "s") as store:
        with store.dispatchers.add("search", lambda messages: None) as search:
            assert search.wait(WAIT_S)
        position = state(store).position
        for number in range(200):
            store.put("orders", bytes(500), queue_id=number % 2)
        store.dispatch()
        assert state(store).lag_bytes == store.wrote_position - position
        store.flush()
        turn(monkeypatch, 100 * 3_600_000)
        store.clean()
        left = store.wrote_position - store.stats()["min_physical_offset"]
        assert store.stats()["min_physical_offset"] > position
        assert state(store).lag_bytes == left
