"""Goal: `.get(on_message=...)` is told each state of its task once, in order, from the first on. Method: a process
that appends without a pause beside the task's states."""

from __future__ import annotations

from typing import Any

from celery.result import ResultSet

from cystore.celery.results.consumer import BYTES_PER_QUERY
from tests.celery.conftest import PATIENCE_S, wait_until
from tests.celery.results.test_waiting import Waiter, writer_of

STATES = 120
# Results of others between the states: more log than what is read record by record. The end comes with END, when
# somebody waits: who asks for a result that is there gets it at once, without the states before.
WRITE = """
import threading
backend = app.backend
def write(task_id, states, others):
    for number in range(states):
        backend.store_result(task_id, number, "PROGRESS")
        for other in range(others):
            backend.store_result(f"other-{number}-{other}", "x" * 200, "SUCCESS")
thread = threading.Thread(target=write, args=(task_id, states, others))
thread.start()
"""
END = "thread.join(); backend.store_result(task_id, states, 'SUCCESS')"


def numbers(states: list[dict[str, Any]], task_id: str) -> list[int]:
    return [meta["result"] for meta in states if meta["task_id"] == task_id]


def test_each_state_once_and_in_order_beside_a_busy_writer(make_backend, url):
    """Seen: one state up to 57 times, and states between two looks not at all."""
    backend, told = make_backend(), []
    with writer_of(url) as writer:
        writer.do(WRITE, task_id="mine", states=STATES, others=30)
        result = backend.app.AsyncResult("mine")
        waiter = Waiter(lambda: result.get(timeout=PATIENCE_S, on_message=told.append))
        wait_until(lambda: told, "it waits, and is told")
        writer.do(END, task_id="mine", states=STATES)
        assert waiter.finish() == STATES
    assert numbers(told, "mine") == list(range(STATES + 1))
    assert {meta["task_id"] for meta in told} == {"mine"}


def test_who_comes_late_is_told_the_states_before(make_backend):
    backend, told = make_backend(), []
    for number in range(40):
        backend.store_result("mine", number, "PROGRESS")
    backend.store_result("mine", 40, "SUCCESS")
    assert backend.app.AsyncResult("mine").get(timeout=PATIENCE_S, on_message=told.append) == 40
    assert numbers(told, "mine") in (list(range(41)), [40]), "a result that is there is given at once"


def test_states_before_the_call_are_told_too(make_backend, url):
    backend, told = make_backend(), []
    for number in range(10):
        backend.store_result("mine", number, "PROGRESS")
    result = backend.app.AsyncResult("mine")
    with writer_of(url) as writer:
        waiter = Waiter(lambda: result.get(timeout=PATIENCE_S, on_message=told.append))
        wait_until(lambda: told, "it waits, and is told")
        writer.do("app.backend.store_result('mine', 10, 'SUCCESS')")
        assert waiter.finish() == 10
    assert numbers(told, "mine") == list(range(11))


def test_threads_are_told_of_their_own_tasks(make_backend, url):
    """Seen: the thread that asked last decided who was told."""
    backend = make_backend()
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in ("a", "b")}

    def wait(name: str) -> object:
        return backend.app.AsyncResult(name).get(timeout=PATIENCE_S, on_message=told[name].append)

    waiters = [Waiter(lambda name=name: wait(name)) for name in told]
    with writer_of(url) as writer:
        for name, states in told.items():
            writer.do(WRITE, task_id=name, states=20, others=3)
            wait_until(lambda states=states: states, "its thread waits, and is told")
            writer.do(END, task_id=name, states=20)
    assert [waiter.finish() for waiter in waiters] == [20, 20]
    assert {name: numbers(states, name) for name, states in told.items()} == {
        name: list(range(21)) for name in told
    }
    assert all({meta["task_id"] for meta in states} == {name} for name, states in told.items())


def test_a_set_of_results_tells_the_states_of_all_its_tasks(make_backend, url):
    backend, told = make_backend(), []
    results = ResultSet([backend.app.AsyncResult(name) for name in ("a", "b")], app=backend.app)
    with writer_of(url) as writer:
        waiter = Waiter(lambda: dict(results.iter_native(timeout=PATIENCE_S, on_message=told.append)))
        for name in ("a", "b"):
            writer.do(WRITE, task_id=name, states=20, others=2 * BYTES_PER_QUERY // 200)
            wait_until(lambda name=name: numbers(told, name), "it waits, and is told")
            writer.do(END, task_id=name, states=20)
        assert waiter.finish().keys() == {"a", "b"}
    for name in ("a", "b"):
        assert numbers(told, name) == list(range(21))
