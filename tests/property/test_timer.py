"""Goal: messages with a time of their own follow a list of what waits, whatever is done in between (I9). Method: a
store that is put to, cancelled, moved, delivered, cleaned, closed and robbed of its files at random, beside a list."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import clock
from tests.property.test_store import few, scratch
from tests.support.checks import check_closed
from tests.support.clock import turn
from tests.support.small_stores import LOG_BYTES, SETTINGS

TIMED = {**SETTINGS, "file_reserved_time_h": 100_000, "max_clock_jump_s": 86_400 * 366}
HOUR_MS = 3_600_000
HOURS = st.integers(1, 30)


@dataclass
class Waiting:
    """One message as the list knows it."""

    key: str
    due_ms: int
    queue_id: int


class Model:
    """The store and its list."""

    def __init__(self, path, patch) -> None:
        self.path, self.patch = path, patch
        self.begin_ms, self.shift_ms = clock.now_ms(), 0
        self.number = 0
        self.waiting: list[Waiting] = []
        self.delivered: list[str] = []
        self.store = cystore.open(path, **TIMED)

    def put(self, hours: int, same_key: bool) -> None:
        key = f"k{self.number // 3 if same_key else self.number}"
        due_ms = self.begin_ms + hours * HOUR_MS
        self.store.put("T", key.encode(), queue_id=self.number % 2, keys=(key,), deliver_at_ms=due_ms)
        self.number += 1
        # Puts have the real clock, which no turn moves.
        self.waiting.append(Waiting(key, due_ms, self.number % 2))

    def cancel(self, key: str) -> None:
        there = any(one.key == key for one in self.waiting)
        assert self.store.cancel("T", key) is there
        self.waiting = [one for one in self.waiting if one.key != key]

    def move(self, key: str, hours: int) -> None:
        due_ms = self.begin_ms + hours * HOUR_MS
        there = any(one.key == key for one in self.waiting)
        assert self.store.reschedule("T", key, due_ms) is there
        for one in self.waiting:
            if one.key == key:
                one.due_ms = due_ms

    def turn(self, hours: int) -> None:
        self.shift_ms = hours * HOUR_MS + 1
        turn(self.patch, self.shift_ms)

    def deliver(self, limit: int | None) -> None:
        now_ms = clock.now_ms()
        due = sorted(one.due_ms for one in self.waiting if one.due_ms <= now_ms)[:limit]
        assert self.store.deliver(max_messages=limit) == len(due)
        found = self.found()
        fresh = found[len(self.delivered) :]
        assert len(fresh) == len(due)
        for key, due_ms in zip(fresh, due, strict=True):
            one = next(one for one in self.waiting if one.key == key and one.due_ms == due_ms)
            self.waiting.remove(one)
        self.delivered = found

    def found(self) -> list[str]:
        messages = [
            m
            for queue_id in self.store.topics().get("T", {})
            for m in self.store.get("T", queue_id, 0, 1000).messages
        ]
        return [bytes(m.body).decode() for m in sorted(messages, key=lambda m: m.physical_offset)]

    def reopen(self, lost: str) -> None:
        self.store.close()
        check_closed(self.path, TIMED)
        if lost == "timer":
            shutil.rmtree(self.path / "timer", ignore_errors=True)
        elif lost == "table":
            for file in (self.path / "config").glob("delayOffset*"):
                file.unlink()
        elif lost == "queues":
            shutil.rmtree(self.path / "consumequeue", ignore_errors=True)
        self.store = cystore.open(self.path, **TIMED)

    def carry(self) -> None:
        """Carries what waits forward, as a clean of expired segments does."""
        while self.store.wrote_position % LOG_BYTES < LOG_BYTES // 2:
            self.store.put("other", bytes(2_000))
        self.store.dispatch()
        carrier = self.store._attached().cleaner._carrier
        carrier.run(self.store.wrote_position // LOG_BYTES * LOG_BYTES)

    def compare(self) -> None:
        expected = sorted((one.due_ms, one.key) for one in self.waiting)
        found = [(m.deliver_at_ms, m.keys[0]) for m in self.store.pending("T")]
        assert sorted(found) == expected
        assert [due_ms for due_ms, _ in found] == sorted(due_ms for due_ms, _ in found)
        assert self.store.stats()["delayed"] == ({0: len(expected)} if expected else {})


@few
@given(st.data())
def test_i9_the_timer_follows_the_list(data):
    with scratch() as path, pytest.MonkeyPatch.context() as patch:
        model = Model(path, patch)
        for _ in range(data.draw(st.integers(1, 30))):
            what = data.draw(
                st.sampled_from(["put", "put", "put", "cancel", "move", "turn", "deliver", "reopen", "carry"])
            )
            key = f"k{data.draw(st.integers(0, max(model.number, 1)))}"
            if what == "put":
                model.put(data.draw(HOURS), data.draw(st.booleans()))
            elif what == "cancel":
                model.cancel(key)
            elif what == "move":
                model.move(key, data.draw(HOURS))
            elif what == "turn":
                model.turn(data.draw(st.integers(0, 30)))
            elif what == "deliver":
                model.deliver(data.draw(st.none() | st.integers(1, 5)))
            elif what == "reopen":
                model.reopen(data.draw(st.sampled_from(["", "timer", "table", "queues"])))
            else:
                model.carry()
            model.compare()
        model.turn(31)
        model.deliver(None)
        assert model.waiting == []
        model.store.close()
        check_closed(path, TIMED)
