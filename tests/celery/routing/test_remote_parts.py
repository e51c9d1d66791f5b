"""Goal: a large result comes from its home in parts until the timeout, whatever becomes of single parts, and not for
longer. Method: a home that answers as the test says, on a Redis of its own; a real worker that is killed between two
parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.result import AsyncResult

from cystore.celery import homes
from cystore.celery.base.identity import store_id_of
from cystore.celery.routing import client as client_module
from cystore.celery.routing import lists, result_look
from cystore.celery.routing.messages import Answer, Found, Request
from cystore.clock import monotonic_s
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.celery.routing.test_homes import UNKNOWN_HOME
from tests.celery.routing.test_remote import FalseHome, client_of, serves
from tests.support.celery import work
from tools.redis_server import redis_server

TEXT = "0123456789" * 40
BODY = json.dumps({"status": "SUCCESS", "result": TEXT, "task_id": "t"}).encode()
PART_BYTES = 100


@pytest.fixture(scope="module")
def fleet() -> Iterator[SimpleNamespace]:
    """A Redis, and nobody at work."""
    with redis_server(own=True) as redis:
        yield SimpleNamespace(environment={work.BROKER: redis.broker_url})


@pytest.fixture
def app(fleet) -> Celery:
    app = work.make_app(fleet.environment[work.BROKER], "cystore+remote://", cystore_home=UNKNOWN_HOME)
    homes.remember(app.backend, "t", UNKNOWN_HOME)
    return app


def part_of(request: Request, part_bytes: int = PART_BYTES) -> bytes:
    begin = request.part[1] if request.part else 0
    here = BODY[begin : begin + part_bytes]
    found = Found("t", "SUCCESS", True, None, 1, len(BODY), begin, here, "application/json", "utf-8")
    return Answer(request.id, UNKNOWN_HOME, (found,)).encoded()


def troubled(trouble, times: int = 3):
    """Answers of a home that gives `trouble` for a part, so many times, before it gives the part."""
    left = [times]

    def answer(request: Request) -> bytes | None:
        if request.part and request.part[1] == 2 * PART_BYTES and left[0]:
            left[0] -= 1
            return trouble(request)
        return part_of(request)

    return answer


TROUBLES = {
    "silent": lambda request: None,
    "refused": lambda request: Answer(request.id, UNKNOWN_HOME, (), "busy").encoded(),
    "nonsense": lambda request: b"nonsense",
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_part_that_does_not_come_is_asked_for_again(app, fleet, monkeypatch, trouble):
    """Seen: a home that was away, or busy, for one part ended the whole `get`, whatever its timeout was."""
    monkeypatch.setattr(result_look, "ANSWER_S", 0.1)
    monkeypatch.setattr(result_look, "AGAIN_S", 0.05)
    with FalseHome(fleet, troubled(trouble)):
        assert AsyncResult("t", app=app).get(timeout=PATIENCE_S) == TEXT
    with FalseHome(fleet, troubled(trouble, 10**6)) as false:
        with pytest.raises(homes.HomeAwayError, match=f"store {UNKNOWN_HOME} did not answer"):
            AsyncResult("t", app=app).get(timeout=2)
        assert 3 < false.asked < 5 + 2 / result_look.AGAIN_S, "asked again, and not in a loop"


def test_parts_of_a_home_with_many_requests(app, fleet, monkeypatch):
    """Seen: a part that found the list of requests full ended the `get`."""
    full, push = [3], lists.Line.push

    def pushed(line: lists.Line, request: Request, lives_ms: int) -> bool:
        if request.part and full[0]:
            full[0] -= 1
            return False
        return push(line, request, lives_ms)

    monkeypatch.setattr(lists.Line, "push", pushed)
    with FalseHome(fleet, part_of):
        assert AsyncResult("t", app=app).get(timeout=PATIENCE_S) == TEXT
    assert not full[0]


def test_parts_end_when_the_time_is_over(app, fleet, monkeypatch):
    """Seen: a home that gave a byte at a time held a `get` of 2 s for minutes. A `get` without a timeout ends when
    the home is silent."""
    monkeypatch.setattr(result_look, "ANSWER_S", 2.0)  # a home that answers later than that is silent
    monkeypatch.setattr(client_module, "SILENT_S", 1.0)  # a backend asks for it once

    def slowly(request: Request) -> bytes:
        lists.sleep(0.05)
        return part_of(request, 1)

    with FalseHome(fleet, slowly) as false:
        began = monotonic_s()
        with pytest.raises(ResultTimeoutError) as caught:
            AsyncResult("t", app=app).get(timeout=1)
        assert not isinstance(caught.value, homes.HomeAwayError)
        with pytest.raises(homes.HomeAwayError, match="arrive too slowly"):
            _ = AsyncResult("t", app=app).state
        assert false.asked < len(BODY), "it ended before the result had come"
        assert monotonic_s() - began < PATIENCE_S
    with (
        FalseHome(fleet, troubled(TROUBLES["silent"], 10**6)),
        pytest.raises(homes.HomeAwayError, match="missing"),
    ):
        AsyncResult("t", app=app).get()


def test_a_worker_that_is_killed_between_two_parts(tmp_path, monkeypatch):
    """Another worker of the home gives the others."""
    monkeypatch.setattr(result_look, "ANSWER_S", 0.5)
    text = "0123456789" * 900_000
    with redis_server(own=True) as reader:
        option = f"?reader={quote(reader.broker_url, safe='')}"
        with fleet_in(tmp_path, option) as fleet:
            first = fleet.start("--concurrency=1")
            wait_until(lambda: serves(first, fleet.store_path), "the first worker answers")
            fleet.backend.store_result("large", text, states.SUCCESS)
            app = client_of(
                fleet, f"cystore+remote://{option}", cystore_home=store_id_of(fleet.backend.store)
            )
            push, started = lists.Line.push, []

            def kills(line: lists.Line, request: Request, lives_ms: int) -> bool:
                if request.part and not started:
                    first.kill()
                    started.append(fleet.start("--concurrency=1"))
                return push(line, request, lives_ms)

            monkeypatch.setattr(lists.Line, "push", kills)
            assert AsyncResult("large", app=app).get(timeout=PATIENCE_S) == text
            assert started
