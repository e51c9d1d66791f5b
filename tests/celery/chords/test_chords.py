"""Goal: a chord's body goes out when all parts are there, whoever is killed when, and nothing that it needs is cleaned away.
Method: real workers; for what a kill leaves, a backend that is led through single steps, and workers that die at named steps."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group, states
from celery.app.task import Context
from celery.exceptions import ChordError
from celery.result import AsyncResult

import cystore
from cystore import clock
from cystore.celery import history
from cystore.celery.base import records
from cystore.celery.chords import chord_runs, chord_steps
from tests.celery import work
from tests.celery.conftest import Fleet, wait_until
from tests.support.clock import turn

PATIENCE_S, HOUR_MS = 60, 3_600_000


def steps(store: cystore.MessageStore, group_id: str) -> list[str | None]:
    """The records of a chord, oldest first."""
    found = records.records_of(store, records.CHORDS, records.key_of(group_id), to_tombstone=False)
    return [message.tags for message in reversed(found)]


def add(fleet: Fleet, *numbers: int):
    return fleet.task(work.add).s(*numbers)


def alone(fleet: Fleet, result: AsyncResult) -> AsyncResult:
    """The result of a body without its parents, whose errors `get` raises first."""
    return AsyncResult(result.id, app=fleet.app)


def total(fleet: Fleet):
    return fleet.task(work.total).s()


def values(fleet: Fleet):
    return fleet.task(work.same).s()


# ---------------------------------------------------------------------------------------- with real workers


CANVASES = {
    "two": (lambda f: chord([add(f, 1, 1), add(f, 2, 2)], values(f)), [2, 4]),
    "one": (lambda f: chord([add(f, 1, 1)], values(f)), [2]),
    "none": (lambda f: chord([], values(f)), []),
    "in the header's order": (lambda f: chord([add(f, n, 0) for n in range(30)], values(f)), list(range(30))),
    "from a generator": (lambda f: chord((add(f, n, 0) for n in range(5)), values(f)), list(range(5))),
    "chains in the header": (lambda f: chord([add(f, 1, 1) | add(f, 1), add(f, 2, 2)], values(f)), [3, 4]),
    "groups in the header": (lambda f: chord([group(add(f, 1, 1), add(f, 2, 2)), add(f, 3, 3)], total(f)), 12),
    "a chain that ends in a group": (
        lambda f: chord([add(f, 1, 1) | group(add(f, 1), add(f, 2)), add(f, 5, 5)], values(f)),
        [[3, 4], 10],
    ),
    "a chord in the header": (lambda f: chord([chord([add(f, 1, 1), add(f, 2, 2)], total(f)), add(f, 3, 3)], values(f)), [6, 6]),
    "three deep": (
        lambda f: chord([chord([chord([add(f, 1, 1)], total(f)), add(f, 2, 2)], total(f)), add(f, 3, 3)], values(f)),
        [6, 6],
    ),
    "a chord as the body": (lambda f: chord([add(f, 1, 1)], chord([values(f)], values(f))), [[2]]),
    "a group as the body": (lambda f: chord([add(f, 1, 1), add(f, 2, 2)], group(values(f), total(f))), [[2, 4], 6]),
    "a chain as the body": (lambda f: chord([add(f, 1, 1), add(f, 2, 2)], total(f) | add(f, 1)), 7),
    "in a chain": (lambda f: chain(add(f, 1, 1), group(add(f, 1), add(f, 2)), total(f), group(add(f, 1), add(f, 2)), values(f)), [8, 9]),
    "in a group": (lambda f: group(chord([add(f, 1, 1)], total(f)), chord([add(f, 2, 2), add(f, 3, 3)], total(f))), [2, 10]),
    "a task that adds one": (lambda f: chord([f.task(work.adds_to_its_chord).s(1), add(f, 2, 2)], total(f)), 1 + 4 + 101),
    "a task replaced by a group": (lambda f: chord([f.task(work.becomes_a_group).s(1), add(f, 2, 2)], values(f)), [[2, 3], 4]),
    "tasks whose results are ignored": (lambda f: chord([add(f, 1, 1).set(ignore_result=True), add(f, 2, 2)], values(f)), [2, 4]),
}  # fmt: skip


@pytest.mark.parametrize("name", CANVASES)
def test_what_celery_promises_of_chords(fleet, name):
    make, expected = CANVASES[name]
    assert make(fleet).apply_async().get(timeout=PATIENCE_S) == expected


def test_every_step_is_a_record_and_the_body_has_its_frozen_id(fleet):
    result = chord([add(fleet, 1, 1), add(fleet, 2, 2)], total(fleet)).apply_async()
    assert result.get(timeout=PATIENCE_S) == 6
    store = fleet.backend.store
    wait_until(lambda: steps(store, result.parent.id)[-1] == "DONE", "the chord is done")
    found = Counter(steps(store, result.parent.id))
    # Both pool processes may have seen the last part: the first claim in the log holds.
    assert found.pop("CLAIM") in (1, 2)
    assert found == {"OPEN": 1, "SIZE": 1, "PART": 2, "DONE": 1}
    first = records.records_of(store, records.CHORDS, result.parent.id, to_tombstone=False)[-1]
    assert first.tags == "OPEN"
    assert result.id in bytes(first.body).decode()


def test_the_same_frozen_chord_twice(fleet):
    """Both applications have one group id and the same task ids; each is a run of its own."""
    frozen = chord([add(fleet, 1, 1), add(fleet, 2, 2)], total(fleet))
    frozen.freeze()
    first = frozen.apply_async()
    assert first.get(timeout=PATIENCE_S) == 6
    first.forget()
    second = frozen.apply_async()
    assert second.id == first.id
    assert second.parent.id == first.parent.id
    assert AsyncResult(second.id, app=fleet.app).get(timeout=PATIENCE_S) == 6
    store = fleet.backend.store
    wait_until(lambda: steps(store, first.parent.id).count("DONE") == 2, "both runs are done")
    assert Counter(steps(store, first.parent.id))["PART"] == 4


def test_two_entries_of_one_frozen_task_are_two_parts(fleet):
    task = add(fleet, 1, 1)
    task.freeze()
    assert chord([task, task], values(fleet)).apply_async().get(timeout=PATIENCE_S) == [2, 2]


def test_a_part_that_fails_fails_the_body_and_calls_its_error_callbacks(fleet, tmp_path):
    told = tmp_path / "told"
    body = total(fleet).on_error(fleet.task(work.tell_error).s(str(told)))
    result = chord(
        [add(fleet, 1, 1), fleet.task(work.fail).s("a part"), add(fleet, 2, 2)], body
    ).apply_async()
    with pytest.raises(ChordError, match=r"Dependency .* raised SpecialError\('a part'\)"):
        alone(fleet, result).get(timeout=PATIENCE_S)
    assert result.state == states.FAILURE
    wait_until(told.exists, "the error callback ran")
    assert told.read_text() == result.id
    store = fleet.backend.store
    wait_until(lambda: "DONE" in steps(store, result.parent.id), "the chord is done")


def test_a_chord_that_fails_inside_of_another_one_fails_that_too(fleet):
    inner = chord([add(fleet, 1, 1), fleet.task(work.fail).s("deep inside")], total(fleet))
    with pytest.raises(ChordError, match="deep inside"):
        chord([inner, add(fleet, 2, 2)], total(fleet)).apply_async().get(timeout=PATIENCE_S)


def test_a_group_body_of_a_chord_that_fails(fleet):
    result = chord(
        [fleet.task(work.fail).s("before a group")], group(total(fleet), values(fleet))
    ).apply_async()
    for one in result.results:
        with pytest.raises((work.SpecialError, ChordError), match="before a group"):
            one.get(timeout=PATIENCE_S)


def test_a_chain_whose_chord_fails_fails_to_its_end(fleet):
    result = chain(
        group(fleet.task(work.fail).s("early"), add(fleet, 1, 1)), total(fleet), add(fleet, 1)
    ).apply_async()
    with pytest.raises(ChordError, match="early"):
        alone(fleet, result).get(timeout=PATIENCE_S)


# ----------------------------------------------------------------------------------------------- single steps


class Steps:
    """A chord of two whose steps this process does one by one, as a worker does them."""

    def __init__(self, backend) -> None:
        self.backend, self.app = backend, backend.app

        self.body = self.app.tasks[work.same.name].s().set(task_id=str(uuid4()))
        self.group_id = str(uuid4())

    def open(self, size: int | None = 2) -> str:
        self.signature = dict(self.body)
        self.backend.apply_chord(
            (self.group_id, [AsyncResult(n, app=self.app) for n in "ab"]), self.signature
        )
        if size is not None:
            self.backend.set_chord_size(self.group_id, size)
        return self.signature[chord_steps.RUN]

    def request(self, task_id: str, index: int | None):
        return Context(
            id=task_id, group=self.group_id, group_index=index, chord=dict(self.signature), task="part"
        )

    def part(self, task_id: str, index: int | None, value: object = 1) -> None:
        self.backend.mark_as_done(task_id, value, self.request(task_id, index))

    def queued(self) -> list[list]:
        """The arguments of the bodies that went to the broker."""
        found = []
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.conf.task_default_queue)
            with suppress(queue.Empty):
                while True:
                    message = queue.get(block=False)
                    message.ack()
                    assert message.headers["id"] == self.body.id
                    found.append(message.payload[0][0])
        return found

    @property
    def run(self) -> chord_runs.Run:
        return chord_runs.read_run(self.backend.store, self.group_id, self.signature[chord_steps.RUN])

    def sweep(self) -> int:
        return chord_steps.sweep(self.app, self.backend.store)


@pytest.fixture
def led(make_backend):
    return Steps(make_backend(task_default_queue=f"q{uuid4()}"))


@pytest.fixture
def later(monkeypatch):
    """Moves the clock of this process; store timestamps have the real one."""
    return partial(turn, monkeypatch)


def claimed(led, monkeypatch):
    """The process that claimed the body is gone before it sent it."""
    monkeypatch.setattr(chord_steps.Chords, "_end", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        led.part("b", 1, "B")
    monkeypatch.undo()


def left_complete(led) -> None:
    """All parts are there, and the process with the last one is gone before it claimed."""
    led.open()
    led.part("a", 0, "A")
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(chord_steps.Chords, "settle", lambda *args: False)
        led.part("b", 1, "B")


def test_the_last_part_sends_the_body_once(led):
    led.open()
    led.part("b", 1, "B")
    assert led.queued() == []
    led.part("a", 0, "A")
    assert led.queued() == [["A", "B"]]
    led.part("a", 0, "again")
    led.part("b", 1, "again")
    assert led.queued() == []
    assert led.run.done


def test_a_duplicate_counts_once_and_its_success_counts(led):
    led.open()
    led.backend.mark_as_failure("a", ValueError("lost"), request=led.request("a", 0))
    led.part("a", 0, "redelivered")
    led.part("a", 0, "a third time")
    assert not led.run.complete
    led.part("b", 1, "B")
    assert led.queued() == [["redelivered", "B"]]


def test_part_and_result_are_one_append(led):
    """Any kill leaves both or none: Celery runs no task again whose success is stored."""
    led.open()
    before = led.backend.store.wrote_position
    led.part("a", 0)
    part, result = led.backend.store.scan(before)
    assert (part.topic, part.tags) == (records.CHORDS, "PART")
    assert (result.topic, result.tags) == (records.RESULTS, states.SUCCESS)
    assert part.properties["run"] == led.signature[chord_steps.RUN]


def test_parts_and_size_are_durable_at_once(led):
    store = led.backend.store

    def flushed() -> bool:
        return store.stats()["flushed"] == store.wrote_position

    led.open(size=3)
    assert flushed()
    led.part("a", 0)
    assert flushed()
    led.backend.on_chord_part_return(led.request("x", 1), states.FAILURE, ValueError("x"))
    assert flushed()


def test_parts_of_an_older_run_do_not_count(led):
    led.open()
    old = led.request("b", 1)
    led.part("a", 0, "A1")
    led.open()
    led.part("a", 0, "A2")
    led.backend.mark_as_done("b", "B1", old)
    assert led.queued() == [["A1", "B1"]]
    led.part("b", 1, "B2")
    assert led.queued() == [["A2", "B2"]]


def test_the_first_claim_in_the_log_wins(led):
    led.open()
    led.part("a", 0)
    led.part("b", 1)
    store, run = led.backend.store, led.signature[chord_steps.RUN]
    led.queued()
    for token in ("first", "second"):
        store.put(**chord_steps._record("CLAIM", "g", run, claim=token, lives_ms="60000"))
    found = chord_runs.read_run(store, "g", run)
    assert found.claim is not None
    assert found.claim.token == "first"
    assert found.is_claimed(clock.now_ms())
    assert not found.is_claimed(clock.now_ms() + 61_000)


def test_who_claims_second_sends_nothing(led, monkeypatch):
    """Somebody else's claim got between this one's look and its append."""
    put = chord_steps.Chords._put

    def late(self, home, fields, flush="sync"):
        if fields[0]["tags"] == "CLAIM":
            run = led.signature[chord_steps.RUN]
            put(self, home, [chord_steps._record("CLAIM", led.group_id, run, claim="else", lives_ms="60000")])
        put(self, home, fields, flush)

    led.open()
    led.part("a", 0)
    monkeypatch.setattr(chord_steps.Chords, "_put", late)
    led.part("b", 1)
    assert led.queued() == []
    assert led.run.claim is not None
    assert led.run.claim.token == "else"


def test_a_claim_holds_for_its_time(led, monkeypatch, later):
    led.open()
    led.part("a", 0, "A")
    claimed(led, monkeypatch)
    led.part("b", 1, "redelivered")
    later(20_000)
    assert led.sweep() == 0
    assert led.queued() == []
    assert steps(led.backend.store, led.group_id).count("CLAIM") == 1


def test_a_claim_that_was_lost_is_retaken_when_its_time_is_over(led, monkeypatch):
    led.app.conf.cystore_chord_claim_s = 0.0001
    led.open()
    led.part("a", 0, "A")
    claimed(led, monkeypatch)
    led.part("b", 1, "redelivered")
    assert led.queued() == [["A", "B"]]
    led.part("b", 1, "redelivered again")
    assert led.queued() == []


def test_what_was_killed_before_its_claim_is_swept(led, later):
    left_complete(led)
    assert led.queued() == []
    assert led.sweep() == 0  # it is young: the worker with the last part is about to send it
    later(10_000)
    assert led.sweep() == 1
    assert led.queued() == [["A", "B"]]
    assert led.sweep() == 0
    assert led.run.done


def test_a_body_that_the_store_heard_of_is_not_sent_again(led, monkeypatch, later):
    led.app.conf.cystore_chord_claim_s = 0.0001
    led.open()
    led.part("a", 0)
    claimed(led, monkeypatch)
    led.backend.store_result(led.body.id, None, states.STARTED)
    later(10_000)
    assert led.sweep() == 1
    assert led.queued() == []
    assert led.run.done


def test_a_second_body_shows_in_the_history(led, monkeypatch, later):
    """Killed after it sent the body and before it said so, and nobody began the body yet: it goes out again, under its id."""
    led.app.conf.cystore_chord_claim_s = 0.0001
    led.open()
    led.part("a", 0, "A")
    claimed(led, monkeypatch)
    later(10_000)
    assert led.sweep() == 1
    assert led.queued() == [["A", "B"]]
    assert steps(led.backend.store, led.group_id)[-3:] == ["CLAIM", "CLAIM", "DONE"]


def test_an_incomplete_chord_is_never_swept_and_given_up_with_a_warning(led, later, caplog):
    led.open()
    led.part("a", 0)
    for hours in (0, 1, 12):
        later(hours * HOUR_MS)
        assert led.sweep() == 0
    assert "open for" not in caplog.text
    later(25 * HOUR_MS)
    assert led.sweep() == 0
    assert "with 1 of 2 parts: its records may be cleaned now" in caplog.text
    led.part("b", 1)
    assert len(led.queued()) == 1


def test_a_sweep_with_nothing_open_reads_nothing_twice(led):
    led.open()
    led.part("a", 0)
    led.part("b", 1)
    led.sweep()
    before = led.backend.store.stats()["queries"]
    assert led.sweep() == 0
    assert led.backend.store.stats()["queries"] == before


def test_a_process_that_comes_later_sweeps_what_others_left(led, later):
    left_complete(led)
    chord_steps._sweepers.clear()
    chord_steps._tables.clear()
    later(10_000)
    assert led.sweep() == 1
    assert led.queued() == [["A", "B"]]


def test_open_chords_hold_their_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(chord_steps, "HOLD_STEP_BYTES", 1)
    url = f"cystore://{tmp_path}/small?mapped_file_size_commit_log_bytes=65536"
    app = Celery("test", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, task_default_queue=f"q{uuid4()}")
    app.backend.location = replace(app.backend.location, file_reserved_time_h=0)  # a result is kept for a day
    led = Steps(app.backend)
    led.open()
    led.part("a", 0, "A")
    store = led.backend.store

    def noise() -> None:
        for _ in range(300):
            store.put("noise", b"x" * 1000)
        store.dispatch()
        store.flush()

    noise()
    assert store.clean().min_physical_offset == 0
    led.sweep()
    assert store.clean().min_physical_offset == 0
    led.part("b", 1, "B")
    assert led.queued() == [["A", "B"]]
    store.configure(file_reserved_time_h=0)  # who sent the body made it what this app's results need
    noise()
    assert store.clean().segments == 0
    led.sweep()
    assert store.clean().segments > 0


def test_a_body_that_cannot_be_sent_fails(led, monkeypatch):
    led.open()
    led.part("a", 0)

    def refuse(*args, **kwargs):
        raise OSError("no broker")

    monkeypatch.setattr(led.app.amqp, "_retry_publish", refuse)
    led.part("b", 1)
    assert led.run.done
    with pytest.raises(ChordError, match="Callback error: OSError"):
        AsyncResult(led.body.id, app=led.app).get(timeout=PATIENCE_S)


def test_many_records_passed_while_this_process_had_no_part(led, monkeypatch):
    monkeypatch.setattr(chord_runs.Table, "FAR_BEHIND", 5)
    led.open(size=3)
    led.part("a", 0, "A")
    queue = chord_runs.queue_of(led.signature[chord_steps.RUN], led.group_id)
    for number in range(100):
        led.backend.store.put(
            records.CHORDS,
            b"",
            queue_id=queue if number % 2 else 0,
            keys=("other",),
            tags="SIZE",
            properties={"size": "1"},
        )
    led.part("b", 1, "B")
    led.part("c", 2, "C")
    assert led.queued() == [["A", "B", "C"]]


def test_only_a_part_that_may_be_the_last_one_is_looked_at(led, monkeypatch):
    """Parts of this process and of another one (with a table of its own), the first ones before the size is known."""
    looks, look, tables = [], chord_runs.Table.look, ({}, {})
    monkeypatch.setattr(chord_runs.Table, "look", lambda *args: looks.append(args) or look(*args))
    led.open(size=None)
    for number in range(9):
        monkeypatch.setattr(chord_steps, "_tables", tables[number % 2])
        led.part(f"p{number}", number, number)
        if number == 4:
            led.backend.set_chord_size(led.group_id, 10)
    assert len(looks) <= 4  # each of the two saw that the run began, and its size
    led.part("p9", 9, 9)
    assert led.queued() == [list(range(10))]


@pytest.mark.parametrize("kind", ["OPEN", "SIZE", "ADDED", "PART"])
def test_a_step_that_the_store_refuses_is_tried_again_where_the_app_wants_it(make_backend, kind):
    led = Steps(make_backend(result_backend_always_retry=True, task_default_queue=f"q{uuid4()}"))
    backend, store = led.backend, led.backend.store
    do = {
        "OPEN": lambda: led.open(size=None),
        "SIZE": lambda: backend.set_chord_size(led.group_id, 1),
        "ADDED": lambda: backend.add_to_chord(led.group_id, AsyncResult("more", app=led.app)),
        "PART": lambda: backend.mark_as_done("a", 1, led.request("a", 0), store_result=False),
    }
    if kind != "OPEN":
        led.open(size=None)
    store.set_writable(False)
    refused = []

    def on_error(error: Exception) -> None:
        refused.append(type(error))
        store.set_writable(len(refused) == 2)

    backend.on_backend_retryable_error = on_error
    do[kind]()
    assert refused == [cystore.StoreNotWritableError] * 2
    assert steps(store, led.group_id).count(kind) == 1


def test_what_is_done_takes_no_memory(led):
    """A process remembers a thousand runs: of large chords that would be much."""
    store = led.backend.store
    for _ in range(3):
        led.open()
        led.part("a", 0, "A")
        led.part("b", 1, "B")
    chord_steps._tables[str(store.path)].look(store, led.group_id, "another run")
    kept = chord_steps._tables[str(store.path)]._runs.values()
    assert [run.done for run in kept] == [True, True, True, False]
    assert not any(run.parts for run in kept)
    led.part("a", 0, "a late duplicate")
    assert led.queued() == [["A", "B"]] * 3


# ------------------------------------------------------------------------------------------------- killing


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["_opening", "_end", "_say_done"])
def test_a_worker_killed_on_the_way_to_the_body(fresh_fleet, tmp_path, monkeypatch, place):
    """SIGKILL between the last part and its claim, between claim and body, between body and DONE: the body runs once."""
    monkeypatch.setattr(chord_steps, "FIRST_LOOK_MS", 0)
    marker = tmp_path / "killed"
    fresh_fleet.app.conf.cystore_chord_claim_s = 0.5
    die = {work.DIE_IN: f"{chord_steps.__name__}:Chords.{place}", work.DIED: str(marker)}
    fresh_fleet.start("--concurrency=2", **die, **{work.CLAIM_S: "0.5"})
    result = chord([add(fresh_fleet, 1, 1), add(fresh_fleet, 2, 2)], total(fresh_fleet)).apply_async()
    store = fresh_fleet.backend.store
    wait_until(marker.exists, "somebody was killed")

    def swept() -> bool:
        chord_steps.sweep(fresh_fleet.app, store)
        return "DONE" in steps(store, result.parent.id)

    wait_until(swept, "the sweep ended the chord")
    assert result.get(timeout=PATIENCE_S) == 6
    lives = Counter(t.state for t in history.transitions(store, task_id=result.id))
    assert lives[states.SUCCESS] == 1


@pytest.mark.slow
def test_chords_whose_pool_processes_are_killed_at_random(fresh_fleet, rng, monkeypatch):
    """All chords end: header tasks and bodies that were cut off come again, the sweep does the rest. (The main process lives: what
    it takes out of Redis when it is killed, Celery loses.)"""
    monkeypatch.setattr(chord_steps, "FIRST_LOOK_MS", 0)
    store = fresh_fleet.backend.store
    fresh_fleet.app.conf.cystore_chord_claim_s = 1
    task, body = fresh_fleet.task(work.add), fresh_fleet.task(work.total)
    worker = fresh_fleet.start("--concurrency=2", **{work.CLAIM_S: "1"})
    assert task.delay(1, 1).get(timeout=PATIENCE_S) == 2  # a worker whose first pool process dies gives up
    sent = []
    for _ in range(30):
        wait_until(lambda: len(worker.children()) == 2, "the pool is whole again")
        for _ in range(5):
            size = rng.randrange(1, 6)
            sent.append((size, chord([task.s(n, n) for n in range(size)], body.s()).apply_async()))
        until, seen = store.wrote_position + rng.randrange(15_000), store.wrote_position
        while seen <= until and store.wait_log(seen, 1.0):
            seen = store.wrote_position
        os.kill(rng.choice(worker.children()), signal.SIGKILL)
        chord_steps.sweep(fresh_fleet.app, store)

    def swept() -> bool:
        chord_steps.sweep(fresh_fleet.app, store)
        return all(result.ready() for _, result in sent)

    wait_until(swept, "all chords ended", 2 * PATIENCE_S)
    assert [result.get(timeout=0) for _, result in sent] == [size * (size - 1) for size, _ in sent]
