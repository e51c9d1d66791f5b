"""Goal: `query` as programs call it reads its arguments as the method does. Method: stores with keys of many
kinds, dispatched and not; each call is made in both ways, with good and bad arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import cystore
from cystore.errors import StoreError
from tests.support.small_stores import open_small
from tests.unit.reading.test_query_many import KEYS, in_each_state, places

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *((("T", key), {}) for key in KEYS),
    *((("T", key, count), {}) for key in KEYS for count in (1, 2, 31, 32, 33, 64, 65, 1000)),
    *((("T", key), {"max_count": count}) for key in KEYS[:3] for count in (1, 3, 500)),
    (("T", "k1"), {"begin_ms": 0, "end_ms": 1 << 60}),
    (("T", "k1"), {"end_ms": 1}),
    ((), {"topic": "T", "key": "k1"}),
    (("T",), {"key": "k1", "max_count": 2}),
    (("unknown", "k1"), {}),
    (("T", ""), {}),
    (("T" * 200, "k1"), {}),
    (("T", "k1", 0), {}),
    (("T", "k1", -1), {}),
    (("T", "k1", 1 << 31), {}),
    (("T", "k1", 1 << 80), {}),
    (("T", "k1", True), {}),
    (("T", "k1", 1.0), {}),
    (("T", "k1", "1"), {}),
    (("T", "k1", None), {}),
    (("T", b"k1"), {}),
    ((b"T", "k1"), {}),
    (("T", None), {}),
    (("T", "k1", 1), {"max_count": 1}),
    (("T", "k1", 1, 2), {}),
    (("T", "k1"), {"count": 1}),
    (("T",), {}),
    ((), {}),
]


def answer(call: Callable[..., list[cystore.Message]], arguments: Any, named: Any) -> Any:
    try:
        return places(call(*arguments, **named))
    except (StoreError, TypeError, ValueError) as error:
        return type(error), str(error).replace("MessageStore.", "")


def general(store: cystore.MessageStore) -> Callable[..., Any]:
    return cystore.MessageStore.query.__get__(store)


def check(store: cystore.MessageStore) -> None:
    assert store.query.__module__ is not None and store.query != general(store)
    for arguments, named in CALLS:
        asked = answer(store.query, arguments, named)
        assert asked == answer(general(store), arguments, named), (arguments, named)


def test_answers_and_errors_are_those_of_the_general_path(tmp_path):
    in_each_state(tmp_path / "s", check)


def test_more_messages_than_the_first_room_holds(tmp_path):
    with open_small(tmp_path / "s") as store:
        for number in range(400):
            store.put("T", b"%d" % number, keys=("k", "k1") if number % 2 else "k")
        newest = [b"%d" % number for number in reversed(range(400))]
        for count in (1, 63, 64, 65, 128, 129, 399, 400, 401):
            assert [bytes(message.body) for message in store.query("T", "k", count)] == newest[:count]
            assert len(store.query("T", "k1", max_count=count)) == min(count, 200)


def test_a_closed_store_refuses(tmp_path):
    store = open_small(tmp_path / "s")
    query = store.query
    store.close()
    with pytest.raises(cystore.errors.StoreClosedError):
        query("T", "k")


def test_damage_is_reported_with_any_count(tmp_path):
    chance = random.Random(1)
    with open_small(tmp_path / "s") as store:
        put = [store.put("T", b"body", keys=("k",)) for _ in range(6)]
        store.dispatch()
        at = chance.choice(put).physical_offset
        segment = next((tmp_path / "s" / "commitlog").glob("0*"))
        with open(segment, "r+b") as file:
            file.seek(at + 90)
            file.write(b"\x55")
        for count in (6, 32, 100):
            found = store.query("T", "k", count)
            assert len(found) == 5 and [error.offset for error in found.damaged] == [at]
