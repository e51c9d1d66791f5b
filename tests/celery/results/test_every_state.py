"""Goal: `.get(on_message=...)` is told each state of its task once, in order, from the first on. Method: a process
that appends without a pause beside the task's states."""

from __future__ import annotations

import threading
from typing import Any

from celery.result import ResultSet

from cystore.celery.results.consumer import BYTES_PER_QUERY
from tests.celery.results.test_waiting import writer_of

LIMIT_S = 60
STATES = 120
# Results of others between the states: more log than what is read record by record.
WRITE = """
import threading
backend = app.backend
def write(task_id, states, others):
    for number in range(states):
        backend.store_result(task_id, number, "PROGRESS")
        for other in range(others):
            backend.store_result(f"other-{number}-{other}", "x" * 200, "SUCCESS")
    backend.store_result(task_id, states, "SUCCESS")
thread = threading.Thread(target=write, args=(task_id, states, others))
thread.start()
"""


def numbers(states: list[dict[str, Any]], task_id: str) -> list[int]:
    return [meta["result"] for meta in states if meta["task_id"] == task_id]


def test_each_state_once_and_in_order_beside_a_busy_writer(make_backend, url):
    """Seen: one state up to 57 times, and states between two looks not at all."""
    backend, told = make_backend(), []
    with writer_of(url) as writer:
        writer.do(WRITE, task_id="mine", states=STATES, others=30)
        result = backend.app.AsyncResult("mine")
        assert result.get(timeout=LIMIT_S, on_message=told.append) == STATES
        writer.do("thread.join()")
    assert numbers(told, "mine") == list(range(STATES + 1))
    assert {meta["task_id"] for meta in told} == {"mine"}


def test_who_comes_late_is_told_the_states_before(make_backend):
    backend, told = make_backend(), []
    for number in range(40):
        backend.store_result("mine", number, "PROGRESS")
    backend.store_result("mine", 40, "SUCCESS")
    assert backend.app.AsyncResult("mine").get(timeout=LIMIT_S, on_message=told.append) == 40
    assert numbers(told, "mine") in (list(range(41)), [40]), "a result that is there is given at once"


def test_states_before_the_call_are_told_too(make_backend, url):
    backend, told = make_backend(), []
    for number in range(10):
        backend.store_result("mine", number, "PROGRESS")
    result = backend.app.AsyncResult("mine")
    with writer_of(url) as writer:
        writer.send("app.backend.store_result('mine', 10, 'SUCCESS'); None")
        assert result.get(timeout=LIMIT_S, on_message=told.append) == 10
    assert numbers(told, "mine") == list(range(11))


def test_threads_are_told_of_their_own_tasks(make_backend, url):
    """Seen: the thread that asked last decided who was told."""
    backend = make_backend()
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in ("a", "b")}

    def wait(name: str) -> None:
        backend.app.AsyncResult(name).get(timeout=LIMIT_S, on_message=told[name].append)

    threads = [threading.Thread(target=wait, args=(name,)) for name in told]
    for thread in threads:
        thread.start()
    with writer_of(url) as writer:
        for name in told:
            writer.do(WRITE, task_id=name, states=20, others=3)
            writer.do("thread.join()")
    for thread in threads:
        thread.join()
    assert {name: numbers(states, name) for name, states in told.items()} == {
        name: list(range(21)) for name in told
    }
    assert all({meta["task_id"] for meta in states} == {name} for name, states in told.items())


def test_a_set_of_results_tells_the_states_of_all_its_tasks(make_backend, url):
    backend, told = make_backend(), []
    results = ResultSet([backend.app.AsyncResult(name) for name in ("a", "b")], app=backend.app)
    with writer_of(url) as writer:
        for name in ("a", "b"):
            writer.do(WRITE, task_id=name, states=20, others=2 * BYTES_PER_QUERY // 200)
        assert dict(results.iter_native(timeout=LIMIT_S, on_message=told.append)).keys() == {"a", "b"}
    for name in ("a", "b"):
        assert numbers(told, name) == list(range(21))
