"""Goal: a chord's body goes out when all parts are there, whoever is killed when, and nothing that it needs is
cleaned away. Method: real workers, some of which die at named steps."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError
from celery.result import AsyncResult

import cystore
from cystore.celery import history
from cystore.celery.base import records
from cystore.celery.chords import chord_steps
from tests.celery.conftest import PATIENCE_S, Fleet, wait_until
from tests.support.celery import work

CLAIM_S = 3  # of workers; longer than a process of a busy machine stands still between claim and body


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
    "a chord in the header": (lambda f: chord([chord([add(f, 1, 1), add(f, 2, 2)], total(f)), add(f, 3, 3)],
                                              values(f)), [6, 6]),
    "three deep": (
        lambda f: chord([chord([chord([add(f, 1, 1)], total(f)), add(f, 2, 2)], total(f)), add(f, 3, 3)], values(f)),
        [6, 6],
    ),
    "a chord as the body": (lambda f: chord([add(f, 1, 1)], chord([values(f)], values(f))), [[2]]),
    "a group as the body": (lambda f: chord([add(f, 1, 1), add(f, 2, 2)], group(values(f), total(f))), [[2, 4], 6]),
    "a chain as the body": (lambda f: chord([add(f, 1, 1), add(f, 2, 2)], total(f) | add(f, 1)), 7),
    "in a chain": (lambda f: chain(add(f, 1, 1), group(add(f, 1), add(f, 2)), total(f), group(add(f, 1), add(f, 2)),
                                   values(f)), [8, 9]),
    "in a group": (lambda f: group(chord([add(f, 1, 1)], total(f)), chord([add(f, 2, 2), add(f, 3, 3)], total(f))),
                   [2, 10]),
    "a task that adds one": (lambda f: chord([f.task(work.adds_to_its_chord).s(1), add(f, 2, 2)], total(f)),
                             1 + 4 + 101),
    "a task replaced by a group": (lambda f: chord([f.task(work.becomes_a_group).s(1), add(f, 2, 2)], values(f)),
                                   [[2, 3], 4]),
    "tasks whose results are ignored": (lambda f: chord([add(f, 1, 1).set(ignore_result=True), add(f, 2, 2)],
                                                        values(f)), [2, 4]),
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
    wait_until(
        lambda: told.exists() and told.read_text() == result.id, "the error callback wrote the id of the body"
    )
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["_opening", "_end", "_say_done"])
def test_a_worker_killed_on_the_way_to_the_body(fresh_fleet, tmp_path, monkeypatch, place):
    """SIGKILL between the last part and its claim, between claim and body, between body and DONE: the body runs
    once."""
    monkeypatch.setattr(chord_steps, "FIRST_LOOK_MS", 0)
    marker = tmp_path / "killed"
    fresh_fleet.app.conf.cystore_chord_claim_s = 600
    die = {work.DIE_IN: f"{chord_steps.__name__}:Chords.{place}", work.DIED: str(marker)}
    fresh_fleet.start("--concurrency=2", **die, **{work.CLAIM_S: str(CLAIM_S)})
    result = chord([add(fresh_fleet, 1, 1), add(fresh_fleet, 2, 2)], total(fresh_fleet)).apply_async()
    store = fresh_fleet.backend.store
    wait_until(marker.exists, "somebody was killed")
    if (
        place == "_say_done"
    ):  # before its body begins, nobody knows that it was sent, and it would be sent again
        assert result.get(timeout=PATIENCE_S) == 6

    def swept() -> bool:
        chord_steps.sweep(fresh_fleet.app, store)
        return "DONE" in steps(store, result.parent.id)

    wait_until(swept, "the sweep ended the chord")
    assert result.get(timeout=PATIENCE_S) == 6
    lives = Counter(t.state for t in history.transitions(store, task_id=result.id))
    assert lives[states.SUCCESS] == 1


@pytest.mark.slow
def test_chords_whose_pool_processes_are_killed_at_random(fresh_fleet, rng, monkeypatch):
    """All chords end: header tasks and bodies that were cut off come again, the sweep does the rest. (The main
    process lives: what it takes out of Redis when it is killed, Celery loses.)"""
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
