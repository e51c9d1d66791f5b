"""Goal: a chord whose worker died between two steps is completed by another one, and its body runs once. Method: a
backend that is led through single steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import ChordError
from celery.result import AsyncResult

import cystore
from cystore import clock
from cystore.celery.base import records
from cystore.celery.chords import chord_runs, chord_steps
from tests.celery.conftest import PATIENCE_S
from tests.support.celery import work
from tests.support.clock import turn

HOUR_MS = 3_600_000


def steps(store: cystore.MessageStore, group_id: str) -> list[str | None]:
    """The records of a chord, oldest first."""
    found = records.records_of(store, records.CHORDS, records.key_of(group_id), to_tombstone=False)
    return [message.tags for message in reversed(found)]


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
    """Killed after it sent the body and before it said so, and nobody began the body yet: it goes out again, under
    its id."""
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


@pytest.mark.parametrize("ends", [True, False])
def test_chords_that_have_ended_keep_nothing_from_cleaning(led, ends):
    """A chord that is opened afterwards is held again."""
    led.open()
    led.part("a", 0, "A")
    if ends:
        led.part("b", 1, "B")
    led.sweep()
    store = led.backend.store
    owners = [need.owner for need in store._attached().cleaner.needs()]
    assert (chord_steps.HOLD in owners) is not ends
    led.group_id = str(uuid4())
    led.open()
    assert chord_steps.HOLD in [need.owner for need in store._attached().cleaner.needs()]
    assert store.holds()[chord_steps.HOLD].physical_offset <= led.run.opened_at


def test_a_chord_that_is_opened_while_a_sweep_ends_the_hold_is_held(led, monkeypatch):
    """The chord's record comes behind the sweep's look, and before the hold ends; then the other way round."""
    led.open()
    led.part("a", 0, "A")
    led.part("b", 1, "B")
    store, real = led.backend.store, cystore.MessageStore.hold
    other = Steps(led.backend)

    def late(self, name, place, *, max_age_ms=None):
        monkeypatch.undo()
        other.open()
        return real(self, name, place, max_age_ms=max_age_ms)

    monkeypatch.setattr(cystore.MessageStore, "hold", late)
    led.sweep()
    held = store.holds()[chord_steps.HOLD]
    assert held.max_age_ms and held.physical_offset <= other.run.opened_at
    other.part("a", 0)
    other.part("b", 1)

    put = chord_steps.Chords._put

    def swept(self, *args, **kwargs):
        monkeypatch.undo()
        led.sweep()
        put(self, *args, **kwargs)

    monkeypatch.setattr(chord_steps.Chords, "_put", swept)
    third = Steps(led.backend)
    third.open()
    held = store.holds()[chord_steps.HOLD]
    assert held.max_age_ms and held.physical_offset <= third.run.opened_at


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
    chord_steps._tables[str(store.path), 0].look(store, led.group_id, "another run")
    kept = chord_steps._tables[str(store.path), 0]._runs.values()
    assert [run.done for run in kept] == [True, True, True, False]
    assert not any(run.parts for run in kept)
    led.part("a", 0, "a late duplicate")
    assert led.queued() == [["A", "B"]] * 3
