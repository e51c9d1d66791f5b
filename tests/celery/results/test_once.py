"""Goal: a task with `base=Once` that succeeded is not run again, and runs once at a time, whoever is killed when.
Method: real workers, tasks that note each run and wait for a word, SIGKILL for the one that runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from celery import Celery, chain, chord, group
from celery.app.task import Context
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore.celery import Once, history
from cystore.celery.base import records
from cystore.celery.once import OnceKeyError, OnceRunningError
from cystore.system.key_lock import KeyLock
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.celery.results.test_store_away import ready
from tests.support.celery import work
from tests.support.clock import turn


class Noted:
    """The runs of one task: a file with a line for each, and the pipe from which they read a word."""

    def __init__(self, folder: Path, name: str) -> None:
        self.runs, self.fifo = folder / f"{name}.runs", folder / f"{name}.fifo"
        os.mkfifo(self.fifo)

    @property
    def words(self) -> dict[str, str]:
        return {"runs": str(self.runs), "fifo": str(self.fifo)}

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.runs.read_text().splitlines()] if self.runs.exists() else []

    def begun(self, count: int) -> None:
        wait_until(lambda: len(self.lines()) == count, f"run {count} has begun")

    def end(self, word: str = "done") -> None:
        self.fifo.write_text(word)


def charge(a, b=1):
    return a


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Workers of two pools with two places each."""
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        workers = [fleet.start("--concurrency=2"), fleet.start("--concurrency=2", pool="threads")]
        for worker in workers:
            ready(worker)
        yield fleet


def log_has(fleet, text: str) -> None:
    wait_until(lambda: any(text in path.read_text() for path in fleet.folder.glob("worker*.log")), text)


def test_one_key_runs_once_at_a_time_and_not_again(tmp_path, fleet):
    task, noted = fleet.task(work.once_waits), Noted(tmp_path, "a")
    first = task.delay({"b": 1, "a": [2]}, **noted.words)
    noted.begun(1)
    second = task.apply_async(kwargs={"order": {"a": (2,), "b": 1}, **noted.words})
    other = task.delay("another", str(tmp_path / "other.runs"))
    assert other.get(timeout=PATIENCE_S)[0] == "at once"
    assert second.state in ("PENDING", "STARTED") and len(noted.lines()) == 1
    noted.end()
    assert first.get(timeout=PATIENCE_S) == second.get(timeout=PATIENCE_S) == ["done", first.id]
    third = task.delay({"b": 1, "a": [2]}, **noted.words)
    assert third.get(timeout=PATIENCE_S) == ["done", first.id]
    assert [run[0] for run in noted.lines()] == [first.id]

    # A failure is no reason not to run again, and who waited for it runs.
    failing, failed = Noted(tmp_path, "f"), []
    failed = [task.delay("failing", **failing.words)]
    failing.begun(1)
    failed.append(task.delay("failing", **failing.words))
    failing.end("fail")
    failing.begun(2)
    failing.end()
    assert failed[1].get(timeout=PATIENCE_S) == ["done", failed[1].id]
    with pytest.raises(Exception, match="fail"):
        failed[0].get(timeout=PATIENCE_S)

    # Forgotten is not run.
    first.forget()
    again = task.delay({"b": 1, "a": [2]}, **noted.words)
    noted.begun(2)
    noted.end("again")
    assert again.get(timeout=PATIENCE_S) == ["again", again.id]


def test_what_a_duplicate_gets(tmp_path, fleet):
    joins, noted = fleet.task(work.once_joins), Noted(tmp_path, "j")
    first = joins.delay(1, **noted.words)
    noted.begun(1)
    assert joins.delay(1, **noted.words).id == first.id
    noted.end()
    assert first.get(timeout=PATIENCE_S) == ["done", first.id]
    assert joins.delay(1, **noted.words).id == first.id
    assert joins.delay(2, str(tmp_path / "x")).get(timeout=PATIENCE_S)[0] == "at once"

    # Seen: the sender made another key of numbers as keys than the worker that got them as text, and did not find the
    # run.
    by_number, noted = {10: "ten", 9: {2: "two", 11: "eleven"}}, Noted(tmp_path, "n")
    first = joins.delay(by_number, **noted.words)
    noted.begun(1)
    assert joins.delay(by_number, **noted.words).id == first.id
    noted.end()
    assert first.get(timeout=PATIENCE_S) == ["done", first.id]
    assert joins.delay(dict(reversed(by_number.items())), **noted.words).id == first.id

    refuses, noted = fleet.task(work.once_refuses), Noted(tmp_path, "r")
    first = refuses.delay(1, **noted.words)
    noted.begun(1)
    with pytest.raises(OnceRunningError) as refused:
        refuses.delay(1, **noted.words)
    assert refused.value.task_id == first.id
    sent = fleet.app.send_task(
        refuses.name, (1,), noted.words, queue=work.QUEUE
    )  # as from a host without the store
    with pytest.raises(Exception, match=f"{first.id} runs now with the same key"):
        sent.get(timeout=PATIENCE_S)
    noted.end()
    assert first.get(timeout=PATIENCE_S) == ["done", first.id]
    assert refuses.delay(1, **noted.words).get(timeout=PATIENCE_S) == ["done", first.id]

    by_id, noted = fleet.task(work.once_by_id), Noted(tmp_path, "i")
    first = by_id.apply_async(kwargs=noted.words, task_id="order-7")
    noted.begun(1)
    again = by_id.apply_async(kwargs=noted.words, task_id="order-7")
    noted.end()
    assert first.get(timeout=PATIENCE_S) == ["done", "order-7"]
    by_id.apply_async(kwargs={"runs": str(noted.runs)}, task_id="order-7")
    log_has(fleet, "not run again, order-7 succeeded")
    assert len(noted.lines()) == 1 and again.get(timeout=PATIENCE_S) == ["done", "order-7"]


def test_what_others_wait_for_is_sent(tmp_path, fleet):
    """Seen: with "running" the call gave the id of the task that runs, and what was hung on the call was lost: the
    rest of a chain, a chord's body, a callback, a task id. With "refuse" a group raised when some of its members had
    been sent."""
    joins, same, noted = fleet.task(work.once_joins), fleet.task(work.same), Noted(tmp_path, "w")
    first = joins.delay("w", **noted.words)
    noted.begun(1)
    chained = chain(joins.s("w", **noted.words), same.s()).apply_async()
    named = joins.apply_async(("w",), noted.words, task_id="named-w")
    assert named.id == "named-w" and chained.parent.id != first.id
    noted.end()
    told = ["done", first.id]
    assert first.get(timeout=PATIENCE_S) == chained.get(timeout=PATIENCE_S) == told
    assert named.get(timeout=PATIENCE_S) == told

    body = chord([joins.s("w", **noted.words), same.s(1)], same.s()).apply_async()
    linked = joins.apply_async(("w",), noted.words, link=same.s().set(task_id="linked-w"))
    members = group(joins.s("w", **noted.words), same.s(2)).apply_async()
    assert body.get(timeout=PATIENCE_S) == [told, 1] and linked.id != first.id
    assert members.get(timeout=PATIENCE_S) == [told, 2]
    assert fleet.app.AsyncResult("linked-w").get(timeout=PATIENCE_S) == told
    assert joins.apply_async(("w",), noted.words, link=[], link_error=None).id == first.id
    assert len(noted.lines()) == 1

    refuses, noted = fleet.task(work.once_refuses), Noted(tmp_path, "v")
    first = refuses.delay("v", **noted.words)
    noted.begun(1)
    members = group(same.s(3), refuses.s("v", **noted.words)).apply_async()
    with pytest.raises(Exception, match=f"{first.id} runs now with the same key"):
        members[1].get(timeout=PATIENCE_S)
    noted.end()
    assert members[0].get(timeout=PATIENCE_S) == 3
    assert first.get(timeout=PATIENCE_S) == ["done", first.id]


@pytest.mark.parametrize("task", [work.once_refuses_and_goes_on, work.once_joins_and_goes_on])
def test_a_run_sends_itself_again(tmp_path, fleet, task):
    """Seen: a retry inside of a run met the lock of this very run. With "refuse" the task became a FAILURE, with
    "running" nothing was sent, and it stayed in RETRY for ever."""
    sent = fleet.task(task).delay(1, str(tmp_path / "runs"))
    assert sent.get(timeout=PATIENCE_S) == 5
    runs = (tmp_path / "runs").read_text().splitlines()
    assert runs[:4] == [sent.id] * 4 and len(runs) == 5


@pytest.mark.parametrize(
    ("once", "words"),
    [
        ({"key": ["a"]}, "no option 'key'"),
        ({"keys": ["c"]}, "has 'c', which is not an argument"),
        ({"keys": "a"}, "must be names of arguments"),
        ({"keys": 5}, "keys must be names of arguments, not 5"),
        ({"keys": b""}, "must be names of arguments"),
        ({"keys": iter(["a"])}, "must be names of arguments"),
        ({"window_s": 0}, "window_s must be"),
        ({"window_s": True}, "window_s must be a finite number of seconds above 0, or None, not True"),
        ({"window_s": float("inf")}, "window_s must be"),
        ({"window_s": float("nan")}, "window_s must be"),
        ({1: 2, "x": 3}, "has no option 'x'"),
        (None, "once must be a dict of options, not None"),
        ([], r"once must be a dict of options, not \[\]"),
        ({"on_duplicate": "drop"}, "on_duplicate must be one of wait, refuse, running"),
    ],
)
def test_options_that_make_no_sense(once, words):
    app = Celery("shop", broker="memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=words):
        app.task(base=Once, once=once, name="shop.charge", shared=False)(charge).name  # noqa: B018 - makes the task


def test_keys_and_the_window(make_backend, monkeypatch):
    backend = make_backend()
    task = backend.app.task(
        base=Once, once={"keys": ["b", "a"], "window_s": 60}, name="shop.charge", shared=False
    )(charge)
    key = task._once_key("", (1,), {})
    assert key == task._once_key("", (), {"b": 1, "a": 1}) != task._once_key("", (1, 2), {})
    for wrong in ((1, 2, 3), ()):
        with pytest.raises(TypeError):
            task._once_key("", wrong, {})
    with pytest.raises(
        OnceKeyError,
        match=r"^shop.charge: once cannot make a key from the argument 'b': two keys of a dict are the",
    ):
        task._once_key("", (1, {"x": {1: 2, "1": 3}}), {})
    for sent, received in (
        ({10: "a", 9: "b", None: "c", 1.5: "d"}, {"9": "b", "10": "a", "null": "c", "1.5": "d"}),
        ([{True: {10: 1, 9: 2}}], [{"true": {"9": 2, "10": 1}}]),
    ):
        assert task._once_key("", (1, sent), {}) == task._once_key("", (1, received), {}), (
            "a worker gets JSON"
        )
    assert task._once_key("", (1, {1: 2}), {}) != task._once_key("", (1, {2: 1}), {})
    with pytest.raises(OnceKeyError, match="argument 'a': Object of type object is not JSON"):
        task._once_key("", (object(),), {})
    assert task._once_key("", ({"y": 1, "x": (2,)},), {}) == task._once_key("", ({"x": [2], "y": 1},), {})
    request = task.request_stack
    request.push(type(task.request)(id="first", cystore_once_key=key))
    backend.store_result("first", 5, "SUCCESS", request=task.request)
    assert records.id_of(task._succeeded(key, "").keys[0]) == "first"
    backend.forget("first")
    assert task._succeeded(key, "") is None
    backend.store_result("second", 6, "SUCCESS", request=task.request)
    turn(monkeypatch, 61_000)
    assert task._succeeded(key, "") is None
    assert task(3) == 3 and task.apply((4,)).get() == 4  # not by a worker: not guarded
    assert isinstance(backend.store, cystore.MessageStore)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", ["a pool process", "a worker"])
def test_a_killed_run_gives_its_key_back_at_once(tmp_path, victim):
    """The process that runs is killed with SIGKILL. A task with the same key that waits runs then; the killed one
    comes again, waits for that, and gets its result."""
    with fleet_in(tmp_path) as fleet:
        if victim == "a pool process":
            ready(fleet.start("--concurrency=2"))
        else:
            for _ in range(2):
                ready(fleet.start("--concurrency=1", pool="threads", **work.SOON))
        task, noted = fleet.task(work.once_waits), Noted(tmp_path, "k")
        first = task.delay(7, **noted.words)
        noted.begun(1)
        second = task.delay(7, **noted.words)
        waits = lambda: any(history.transitions(fleet.backend.store, task_id=second.id, states=["STARTED"]))  # noqa: E731
        wait_until(waits, "the second one waits")
        assert len(noted.lines()) == 1
        os.kill(int(noted.lines()[0][1]), signal.SIGKILL)
        noted.begun(2)
        ran = noted.lines()[1][0]
        assert ran in (first.id, second.id)
        noted.end("second run")
        assert second.get(timeout=PATIENCE_S) == first.get(timeout=PATIENCE_S) == ["second run", ran]
        assert len(noted.lines()) == 2


@pytest.mark.slow  # a worker of its own
def test_greenlets_of_one_process_exclude_each_other(tmp_path):
    """A greenlet that waits for a key lets the others run, also the one that has the key."""
    with fleet_in(tmp_path) as fleet:
        ready(fleet.start("--concurrency=10", pool="gevent"))
        task, runs, word = fleet.task(work.once_waits), tmp_path / "runs", tmp_path / "word"
        sent = [task.delay(1, str(runs), str(word)) for _ in range(4)]
        wait_until(runs.exists, "the first one runs")
        assert task.delay(2, str(tmp_path / "other")).get(timeout=PATIENCE_S)[0] == "at once"
        (tmp_path / "draft").write_text("done")
        (tmp_path / "draft").rename(word)
        assert len({tuple(result.get(timeout=PATIENCE_S)) for result in sent}) == 1
        assert len(runs.read_text().splitlines()) == 1


def test_a_run_whose_result_is_stored_refuses_nobody(make_backend):
    """Seen: a caller that had the result, and sent the task again at once, got an OnceRunningError: the lock goes a
    moment after the result is stored."""
    backend = make_backend()
    task = backend.app.task(
        base=Once, once={"keys": ["a"], "on_duplicate": "refuse"}, name="shop.charge", shared=False
    )(charge)
    key, store = task._once_key("", (1,), {}), backend.store
    store.put("celery_once", b"", keys=(key,), tags="RUNNING", properties={"task_id": "first"})
    lock = KeyLock(store.path / "config" / "once.lock", key)
    lock.take(lambda: None)
    with pytest.raises(OnceRunningError, match="first runs now"):
        task.delay(1)
    with pytest.raises(OnceRunningError, match="first runs now"):
        task._met(key, {"second"})
    task._met(key, {"first"})
    backend.store_result("first", 1, "SUCCESS")
    task._met(key, {"second"})
    assert task.delay(1).id != "first"
    lock.give()


def test_a_run_refuses_nobody_it_replaced_itself_with(make_backend, monkeypatch):
    """The head of a chain that replaces a run has an id of its own, and may come to a worker before that run has
    ended."""
    task = make_backend().app.task(
        base=Once, once={"keys": ["a"], "on_duplicate": "refuse"}, name="shop.charge", shared=False
    )(charge)
    key, store, met = task._once_key("", (1,), {}), task.backend.store, task._met
    store.put("celery_once", b"", keys=(key,), tags="RUNNING", properties={"task_id": "first"})
    lock = KeyLock(store.path / "config" / "once.lock", key)
    lock.take(lambda: None)

    def meet(*told):
        met(*told)
        lock.give()  # the first run ends

    monkeypatch.setattr(task, "_met", meet)

    def run(task_id, **header):
        task.request_stack.push(Context(id=task_id, called_directly=False, parent_id="first", **header))
        try:
            return task(1)
        finally:
            task.after_return("SUCCESS", 1, task_id, (1,), {}, None)
            task.request_stack.pop()

    with pytest.raises(OnceRunningError, match="first runs now"):
        run("sent by the first run")
    assert run("head", replaced_task_nesting=1) == 1
