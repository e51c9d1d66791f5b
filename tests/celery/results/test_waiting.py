"""Goal: whoever waits is woken by the append, and no wake-up is ever lost. Method: real appends from other processes
and threads, with every periodic second look taken away: then a lost wake-up is a thread that waits for ever."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from celery import states
from celery.exceptions import ChordError, SoftTimeLimitExceeded
from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.result import AsyncResult, ResultSet
from kombu.exceptions import DecodeError

import cystore
from cystore.celery.backend import CystoreBackend
from cystore.celery.base.records import RESULTS
from cystore.celery.results import consumer
from cystore.celery.routing import other_homes
from cystore.clock import monotonic_s
from cystore.surface import waits
from tests.celery.conftest import PATIENCE_S, wait_until
from tests.support.process import Process

HANGS_AFTER_S = PATIENCE_S
NEVER_S = 3600.0

BEGIN = """
from celery import Celery
app = Celery("writer", broker="memory://", backend=url)
app.backend.store.wrote_position
"""


@contextmanager
def writer_of(url: str) -> Iterator[Process]:
    """A process with an app of its own on the same store, open."""
    with Process() as writer:
        writer.do(BEGIN, url=url)
        yield writer


def write(writer: Process, task_id: str, state: str = states.SUCCESS) -> None:
    """Has a result stored, at some time from now on."""
    result = "ValueError(task_id)" if state in states.EXCEPTION_STATES else "task_id"
    writer.send(f"app.backend.store_result(task_id, {result}, state); None", task_id=task_id, state=state)


@pytest.fixture
def no_second_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits end by an append alone: the store's slices and Celery's interval are an hour."""
    monkeypatch.setattr(waits, "WAIT_SLICE_S", NEVER_S)
    monkeypatch.setattr(waits, "KEY_SLICE_S", NEVER_S)
    monkeypatch.setattr(other_homes, "FIRST_LOOK_S", NEVER_S)


@pytest.fixture
def backend(make_backend: Callable[..., CystoreBackend], no_second_looks: None) -> CystoreBackend:
    backend = make_backend()
    drain = backend.result_consumer.drain_events
    backend.result_consumer.drain_events = lambda timeout=None: drain(NEVER_S)
    return backend


class Waiter(threading.Thread):
    """A thread that calls something which waits; `answer` is what that gave or raised."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._wait = wait
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._wait()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.answer = error

    def finish(self) -> object:
        self.join(HANGS_AFTER_S)
        assert not self.is_alive(), "a wake-up was lost"
        return self.answer


class Sleeps:
    """The sleeps of a backend's waiters."""

    def __init__(self) -> None:
        self.begun, self.count = threading.Event(), 0


def counted_sleeps(backend: CystoreBackend) -> Sleeps:
    """Counts the sleeps from now on."""
    sleeps, drain = Sleeps(), backend.result_consumer.drain_events

    def counted(timeout: float | None = None) -> None:
        sleeps.count += 1
        sleeps.begun.set()
        drain(timeout)

    backend.result_consumer.drain_events = counted
    return sleeps


def test_get_is_woken_by_another_process(backend, url):
    with writer_of(url) as writer:
        for number in range(200):
            task_id = f"t{number}"
            waiter = Waiter(AsyncResult(task_id, backend=backend).get)
            if number % 2:
                backend.store.put("noise", b"x" * 3000)
            write(writer, task_id, states.STARTED)
            write(writer, task_id)
            assert waiter.finish() == task_id


@pytest.mark.parametrize(
    ("options", "replica", "longest_s"),
    [
        ({}, False, consumer.IDLE_S),
        ({"timeout": 3.0}, False, 3.0),
        ({"on_interval": lambda: None}, False, consumer.INTERVAL_S),
        ({}, True, consumer.INTERVAL_S),
    ],
    ids=["nothing else to do", "a shorter timeout", "a caller that wants a turn", "a replica"],
)
def test_a_wait_for_one_id_sleeps_as_long_as_it_may(make_backend, monkeypatch, options, replica, longest_s):
    """Seen: 200 idle waiters woke up once a second, looked, and cost 9 % of the throughput."""
    monkeypatch.setattr(other_homes, "FIRST_LOOK_S", NEVER_S)
    monkeypatch.setattr(consumer, "is_replica", lambda store: replica)
    backend = make_backend()
    slept: list[float] = []

    def wait_key(store: cystore.MessageStore, key: str, seen: int, timeout_s: float | None = None) -> bool:
        slept.append(timeout_s)
        backend.store_result("t", 1, states.SUCCESS)
        return True

    monkeypatch.setattr(cystore.MessageStore, "wait_key", wait_key)
    assert AsyncResult("t", backend=backend).get(**options) == 1
    assert slept == [pytest.approx(longest_s, abs=0.5)]


def test_a_wait_finds_a_result_that_no_process_woke_it_for(make_backend, url, monkeypatch):
    """The process that stored it was killed before it woke the waiters."""
    monkeypatch.setattr(consumer, "IDLE_S", 0.05)
    monkeypatch.setattr(cystore.MessageStore, "wake_key", lambda store, key: None)
    backend = make_backend()
    sleeps = counted_sleeps(backend)
    waiter = Waiter(AsyncResult("t", backend=backend).get)
    assert sleeps.begun.wait(HANGS_AFTER_S)
    backend.store_result("t", 1, states.SUCCESS)
    assert waiter.finish() == 1


def test_a_timeout_is_kept(make_backend):
    begun = monotonic_s()
    with pytest.raises(ResultTimeoutError):
        AsyncResult("t", backend=make_backend()).get(timeout=0.1)
    assert monotonic_s() - begun >= 0.1


def test_a_failure_wakes_too(backend, url):
    with writer_of(url) as writer:
        waiter = Waiter(AsyncResult("t", backend=backend).get)
        write(writer, "t", states.FAILURE)
        error = waiter.finish()
    assert isinstance(error, ValueError)
    assert error.args == ("t",)


def test_threads_that_share_a_backend(backend, url, rng: random.Random):
    """Whichever thread reads on delivers for all; those it delivered to must notice although nothing is appended any
    more."""
    threads, rounds = 8, 40
    ids = [[f"{thread}-{number}" for number in range(rounds)] for thread in range(threads)]

    def get_all(mine: list[str]) -> list[object]:
        return [AsyncResult(task_id, backend=backend).get() for task_id in mine]

    with writer_of(url) as writer:
        waiters = [Waiter(lambda mine=mine: get_all(mine)) for mine in ids]
        everything = [task_id for mine in ids for task_id in mine]
        rng.shuffle(everything)
        for task_id in everything:
            write(writer, task_id)
        assert [waiter.finish() for waiter in waiters] == ids


def test_a_set_of_results_arrives_as_it_gets_ready(backend, url, rng: random.Random):
    ids = [f"t{number}" for number in range(300)]
    results = ResultSet(
        [AsyncResult(task_id, backend=backend, app=backend.app) for task_id in ids], app=backend.app
    )
    for task_id in ids[:50]:
        backend.store_result(task_id, task_id, states.SUCCESS)
    with writer_of(url) as writer:
        waiter = Waiter(lambda: [task_id for task_id, _ in results.iter_native()])
        order = ids[50:]
        rng.shuffle(order)
        for task_id in order:
            write(writer, task_id)
        assert sorted(waiter.finish()) == sorted(ids)
    assert results.join_native() == ids


def test_a_wait_for_many(backend, url):
    backend.store_result("ready", 1, states.SUCCESS)
    with writer_of(url) as writer:
        waiter = Waiter(lambda: [task_id for task_id, _ in backend.get_many(["ready", "later"])])
        write(writer, "later")
        assert waiter.finish() == ["ready", "later"]


def test_callbacks_may_wait_themselves(backend, url):
    """A callback runs in the thread that reads, in the middle of delivering."""
    got = []
    first = AsyncResult("first", backend=backend)
    first.then(lambda result: got.append(AsyncResult("second", backend=backend).get()))
    with writer_of(url) as writer:
        waiter = Waiter(first.get)
        write(writer, "first")
        write(writer, "second")
        assert waiter.finish() == "first"
    assert got == ["second"]


def test_who_waits_may_see_every_state_on_the_way(make_backend, url):
    backend = make_backend()
    seen, waits = [], threading.Event()
    pending = AsyncResult("t", backend=backend)
    waiter = Waiter(lambda: pending.get(on_message=seen.append, on_interval=waits.set))
    with writer_of(url) as writer:
        assert waits.wait(HANGS_AFTER_S)
        for state in (states.STARTED, "PROGRESS", states.RETRY, states.SUCCESS):
            write(writer, "t", state)
        assert waiter.finish() == "t"
    assert [meta["status"] for meta in seen] == [states.STARTED, "PROGRESS", states.RETRY, states.SUCCESS]


def test_a_stopped_dispatcher_holds_no_result_up(backend, url, tmp_path):
    """Queries see nothing new behind it; the log does."""
    backend.store_result("before", 1, states.SUCCESS)
    assert backend.get_result("before") == 1
    with writer_of(url) as writer, Process() as dispatcher:
        dispatcher.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "store"))
        dispatcher.do("turn = store._attached().control.held('dispatch'); turn.__enter__()")
        dispatcher.stop()
        write(writer, "behind")
        writer.answer()
        assert Waiter(AsyncResult("behind", backend=backend).get).finish() == "behind"
        waiter = Waiter(AsyncResult("later", backend=backend).get)
        write(writer, "later")
        assert waiter.finish() == "later"


def test_a_busy_store_fails_no_task(backend, url, tmp_path):
    """Storing a result outlasts a process that stands still inside an append for longer than RocketMQ would wait."""
    with Process() as appender:
        appender.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "store"))
        backend.store_result("before", 1, states.SUCCESS)
        appender.do("control = store._attached().control; turn = control.held('append'); turn.__enter__()")
        waiter = Waiter(lambda: backend.store_result("t", 1, states.SUCCESS))
        waiter.join(2 * cystore.StoreConfig().os_page_cache_busy_timeout_ms / 1000)
        assert waiter.is_alive()
        appender.do("turn.__exit__(None, None, None)")
        assert waiter.finish() == 1
    assert backend.get_result("t") == 1


def test_much_log_passed_while_nobody_waited(backend):
    pending = AsyncResult("t", backend=backend)
    with pytest.raises(ResultTimeoutError):
        pending.get(timeout=0)
    for _ in range(50):
        backend.store.put("noise", b"x" * 100_000)
    backend.store_result("t", 1, states.SUCCESS)
    assert pending.get(timeout=0) == 1


def test_timeouts(make_backend):
    backend = make_backend()
    with pytest.raises(ResultTimeoutError):
        AsyncResult("never", backend=backend).get(timeout=0)
    with pytest.raises(ResultTimeoutError):
        AsyncResult("never", backend=backend).get(timeout=0.2)
    backend.store_result("there", 1, states.SUCCESS)
    assert AsyncResult("there", backend=backend).get(timeout=0) == 1


def test_a_result_that_cannot_be_read_is_an_error_not_a_hang(make_backend, no_second_looks):
    """Each time: what was read when it failed is read again."""
    writer = make_backend(result_serializer="pickle", accept_content=["pickle"])
    reader = make_backend(accept_content=["json"])
    reader.store_result("readable", 1, states.SUCCESS)
    assert AsyncResult("readable", backend=reader).get(timeout=0) == 1
    writer.store_result("unreadable", 1, states.SUCCESS)
    pending = AsyncResult("unreadable", backend=reader)
    for _ in range(2):
        assert type(Waiter(pending.get).finish()).__name__ == "ContentDisallowed"


def test_a_thread_notices_what_another_one_delivered_to_it(backend):
    """Between its look whether the result is there and its sleep, another thread read on, and nothing comes after
    that."""
    mine, *others = (AsyncResult(task_id, backend=backend) for task_id in ("mine", "other", "third"))
    backend.add_pending_result(mine)
    backend.result_consumer.on_wait_for_pending(mine)
    assert not mine.on_ready.ready
    waiter = Waiter(ResultSet(others, app=backend.app).get)
    for number, task_id in enumerate(("mine", "other", "third")):
        backend.store_result(task_id, number, states.SUCCESS)
    assert waiter.finish() == [1, 2]
    assert mine.on_ready.ready
    rescue = threading.Timer(HANGS_AFTER_S, lambda: backend.store.put("noise", b"too late"))
    rescue.start()
    backend.result_consumer.drain_events()
    rescue.cancel()
    assert "noise" not in backend.store.topics(), "slept on"


def test_a_thread_that_waits_for_one_id_looks_up_no_other(backend, monkeypatch):
    """Seen: 200 idle waiters read everything that was appended, which cost the workers 8 % of their rate."""
    looked, known_of = [], backend.result_consumer._known_of

    def noted(task_ids: list[str]) -> list[cystore.Message]:
        looked.extend(task_ids)
        return known_of(task_ids)

    monkeypatch.setattr(backend.result_consumer, "_known_of", noted)
    monkeypatch.setattr(backend.store, "scan", None)
    waiter = Waiter(AsyncResult("mine", backend=backend).get)
    idle = Waiter(AsyncResult("idle", backend=backend).get)
    for number in range(300):
        backend.store_result(f"of others {number}", number, states.SUCCESS)
    backend.store_result("mine", 1, states.SUCCESS)
    assert waiter.finish() == 1
    backend.store_result("idle", 2, states.SUCCESS)
    assert idle.finish() == 2
    assert set(looked) == {"mine", "idle"}


def test_a_wait_for_one_id_inside_of_a_wait_for_several_hides_none_of_these(backend):
    """Seen: a group whose child was a group itself waited for ever for a result that was there."""
    mine, third, inner = (AsyncResult(task_id, backend=backend) for task_id in ("mine", "third", "inner"))
    backend.add_pending_result(mine)
    backend.add_pending_result(third)
    backend.result_consumer.on_wait_for_pending(ResultSet([mine, third], app=backend.app))
    backend.store_result("mine", 1, states.SUCCESS)
    backend.store_result("inner", 2, states.SUCCESS)
    assert inner.get(timeout=NEVER_S) == 2
    rescue = threading.Timer(HANGS_AFTER_S, lambda: backend.store.put("noise", b"too late"))
    rescue.start()
    backend.result_consumer.drain_events()
    rescue.cancel()
    assert mine.on_ready.ready
    assert "noise" not in backend.store.topics(), "slept on"


def test_waiting_is_no_polling(make_backend):
    """While nothing is appended a waiting thread sleeps in the store, and reads nothing."""
    backend = make_backend()
    pending = AsyncResult("t", backend=backend)
    backend.add_pending_result(pending)
    backend.result_consumer.on_wait_for_pending(pending)
    before = backend.store.stats()["queries"]
    for _ in range(3):
        with pytest.raises(TimeoutError):
            backend.result_consumer.drain_events(timeout=0.3)
    assert backend.store.stats()["queries"] == before
    backend.store_result("t", 1, states.SUCCESS)
    backend.result_consumer.drain_events(timeout=NEVER_S)
    assert pending.result == 1


def test_a_result_is_handed_over_without_a_pause(backend, url, monkeypatch):
    """Celery's own consumer sleeps for no time after each result, which takes a thread longer than the rest of the
    way."""

    def pause(seconds: float) -> None:
        raise AssertionError(f"it slept for {seconds} s")

    monkeypatch.setattr("celery.backends.asynchronous.sleep", pause)
    with writer_of(url) as writer:
        for task_id in ("a", "b"):
            waiting = Waiter(
                lambda task_id=task_id: AsyncResult(task_id, app=backend.app).get(timeout=NEVER_S)
            )
            write(writer, task_id)
            assert waiting.finish() == task_id


def test_a_celery_that_looks_for_waiters_in_another_way(backend, url, monkeypatch):
    monkeypatch.setattr(consumer, "waiting_on", None)
    with writer_of(url) as writer:
        waiting = Waiter(lambda: AsyncResult("a", app=backend.app).get(timeout=NEVER_S))
        write(writer, "a")
        assert waiting.finish() == "a"


def test_a_parent_that_fails_ends_the_wait(backend, url, monkeypatch):
    """Nobody waits for the parent itself, and what waits for it never runs."""
    monkeypatch.setattr(consumer, "INTERVAL_S", NEVER_S)  # the failure itself is noticed, not the time
    result = AsyncResult("child", app=backend.app)
    result.parent = AsyncResult("parent", app=backend.app)
    more = backend.add_pending_results([AsyncResult(f"{n}", app=backend.app) for n in range(50)])
    sleeps = counted_sleeps(backend)
    with writer_of(url) as writer:
        waiting = Waiter(lambda: result.get(timeout=NEVER_S))
        wait_until(sleeps.begun.is_set, "it sleeps")
        write(writer, "of others")
        write(writer, "parent", states.FAILURE)
        assert isinstance(waiting.finish(), ValueError)
    assert not any(one.ready() for one in more)


def test_a_failed_result_with_a_failed_parent_raises_the_cause(backend, monkeypatch):
    """A chord's body fails just after one of its parts: the waiter may wake only when both have. Celery raises the
    part's error then, as with Redis."""
    result = AsyncResult("body", app=backend.app)
    result.parent = AsyncResult("part", app=backend.app)
    drain = backend.result_consumer.drain_events

    def late(timeout=None):
        backend.store_result("part", KeyError("the cause"), states.FAILURE)
        backend.store_result("body", ChordError("a part failed"), states.FAILURE)
        drain(timeout)

    monkeypatch.setattr(backend.result_consumer, "drain_events", late)
    with pytest.raises(KeyError, match="the cause"):
        result.get(timeout=NEVER_S)


def test_a_wait_with_parents_sleeps_through_appends_for_others(backend, url):
    """Fifty parents, as those of a chord's body: each look after an append would cost fifty queries."""
    parts = [AsyncResult(f"part {number}", app=backend.app) for number in range(50)]
    result = AsyncResult("body", app=backend.app)
    result.parent = ResultSet(backend.add_pending_results(parts), app=backend.app)
    result.parent.parent = None
    sleeps = counted_sleeps(backend)
    waiting = Waiter(lambda: result.get(timeout=NEVER_S))
    wait_until(sleeps.begun.is_set, "it sleeps")
    asked, store = backend.store.stats()["queries"], backend.store
    for number in range(50):
        store.put("noise", b"x")
        store.wake_key(f"of others {number}")
        backend.store_result(f"part {number}", 1, states.SUCCESS)
    backend.store_result("body", "done", states.SUCCESS)
    assert waiting.finish() == "done"
    assert sleeps.count < 10  # some keys share a word with this one's
    assert store.stats()["queries"] - asked <= 2 * 52 * sleeps.count


@pytest.mark.parametrize(("count", "gathers"), [(5, False), (50, True)])
def test_a_wait_for_many_takes_results_in_batches(backend, url, monkeypatch, count, gathers):
    """Seen: a group of a thousand looked after each append of its workers."""
    naps: list[float] = []
    monkeypatch.setattr(consumer, "time", SimpleNamespace(sleep=naps.append))
    results = [AsyncResult(f"{number}", app=backend.app) for number in range(count)]
    sleeps = counted_sleeps(backend)
    waiting = Waiter(lambda: ResultSet(results, app=backend.app).join_native(timeout=NEVER_S))
    wait_until(sleeps.begun.is_set, "it sleeps")
    with writer_of(url) as writer:
        for number in range(count):
            write(writer, f"{number}")
        assert waiting.finish() == [f"{number}" for number in range(count)]
    assert bool(naps) == gathers
    assert all(0 < nap_s <= consumer.GATHER_MOST_S for nap_s in naps)


def test_a_result_nobody_waits_for_any_more(backend):
    pending = AsyncResult("t", backend=backend)
    backend.add_pending_result(pending)
    assert "t" in backend.result_consumer._awaited
    backend.remove_pending_result(pending)
    assert not backend.result_consumer._awaited
    assert not backend.result_consumer._new


def test_appends_for_other_ids_wake_nobody(make_backend):
    """Seen: each append woke every waiter; twenty of them took more of the CPU than the tasks."""
    backend = make_backend()
    sleeps = counted_sleeps(backend)
    waiter = Waiter(lambda: backend.app.AsyncResult("mine").get(timeout=HANGS_AFTER_S))
    wait_until(sleeps.begun.is_set, "it sleeps")
    for number in range(3000):
        backend.store_result(f"other-{number}", number, states.SUCCESS)
    backend.store_result("mine", "done", states.SUCCESS)
    assert waiter.finish() == "done"
    assert sleeps.count < 300


UNREADABLE = b"{ no JSON"


def unreadable(backend: CystoreBackend) -> AsyncResult:
    """The result of a task whose record cannot be decoded."""
    result = backend.app.AsyncResult(f"unreadable-{random.random()}")
    backend._append(RESULTS, result.id, UNREADABLE, tag=states.SUCCESS)
    return result


@pytest.mark.parametrize("others", [1, 3])
def test_an_undecodable_result_is_the_error_of_its_own_id_alone(backend, others):
    """Seen: all later waits of the process for more than one id raised it, too."""
    broken = unreadable(backend)
    for _ in range(2):
        with pytest.raises(DecodeError):
            broken.get()
    ids = [f"intact-{number}" for number in range(others)]
    for task_id in ids:
        backend.store_result(task_id, task_id, states.SUCCESS)
    asked = ResultSet([backend.app.AsyncResult(one) for one in ids], app=backend.app)
    assert asked.get() == ids
    with pytest.raises(DecodeError):
        ResultSet([broken, *asked.results], app=backend.app).get()


def test_each_wait_for_an_undecodable_result_raises(backend):
    """One thread reads the record. The wait of the other one ends, too."""
    broken = backend.app.AsyncResult("broken")
    sets = [
        ResultSet([backend.app.AsyncResult("broken"), backend.app.AsyncResult(f"other-{n}")], app=backend.app)
        for n in range(2)
    ]
    waits_too = ResultSet([backend.app.AsyncResult(f"intact-{n}") for n in range(2)], app=backend.app)
    waiters = [Waiter(one.get) for one in (*sets, waits_too)]
    wait_until(lambda: len(backend.result_consumer._awaited) == 5, "all wait")
    backend._append(RESULTS, broken.id, UNREADABLE, tag=states.SUCCESS)
    for waiter in waiters[:2]:
        waiter.join(HANGS_AFTER_S)
        assert isinstance(waiter.answer, DecodeError)
    for n in range(2):
        backend.store_result(f"intact-{n}", n, states.SUCCESS)
    waiters[2].join(HANGS_AFTER_S)
    assert waiters[2].answer == [0, 1]


def test_what_a_signal_raises_while_a_result_is_decoded_is_no_error_of_it(backend, monkeypatch):
    backend.store_result("a", 1, states.SUCCESS)
    backend.store_result("b", 2, states.SUCCESS)
    decode, raised = backend.meta_of, []

    def interrupted(message: cystore.Message) -> dict[str, object]:
        if not raised:
            raised.append(message)
            raise SoftTimeLimitExceeded
        return decode(message)

    monkeypatch.setattr(backend, "meta_of", interrupted)
    asked = ResultSet([backend.app.AsyncResult(one) for one in "ab"], app=backend.app)
    waiter = Waiter(asked.get)
    waiter.join(HANGS_AFTER_S)
    assert isinstance(waiter.answer, SoftTimeLimitExceeded)
    assert asked.get() == [1, 2]


@pytest.mark.parametrize("alone", [True, False])
def test_a_result_is_given_when_it_can_be_decoded_at_last(backend, monkeypatch, alone):
    """The program imports what the result needs, for example, and asks once more."""
    backend.store_result("a", 1, states.SUCCESS)
    backend.store_result("b", 2, states.SUCCESS)
    decode = backend.meta_of

    def refuses(message: cystore.Message) -> dict[str, object]:
        if message.keys == ("a",):
            raise DecodeError("no module named 'shapes'")
        return decode(message)

    asked = ResultSet([backend.app.AsyncResult(one) for one in "ab"], app=backend.app)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "meta_of", refuses)
        for _ in range(2):
            with pytest.raises(DecodeError):
                asked.get()
    if alone:
        assert asked.results[0].get() == 1
    assert asked.get() == [1, 2]


def test_the_error_of_an_undecodable_result_keeps_no_frame(backend):
    """Seen: the error that was kept for other waits kept all variables of the caller of this one."""
    asked = ResultSet([unreadable(backend), backend.app.AsyncResult("other")], app=backend.app)

    def ask() -> weakref.ref[ResultSet]:
        mine = ResultSet([], app=backend.app)
        with suppress(DecodeError):
            asked.get()
        return weakref.ref(mine)

    there = ask()
    gc.collect()
    assert there() is None
