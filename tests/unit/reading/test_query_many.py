"""Goal: `query_many` says of each key what `query` says, whatever is dispatched, damaged or cleaned, and looks at the
store once. Method: stores with keys of many kinds, answers side by side."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import cystore
from cystore.errors import CorruptRecordError, MessageIllegalError
from tests.support.process import Process
from tests.support.small_stores import open_small

KEYS = [f"k{n}" for n in range(40)] + ["ä", "\ufffd", "unknown", "Aa", "BB"]


class Cycle:
    def __init__(self, other: object) -> None:
        self.other = other


def places(found: list[cystore.Message]) -> list[int]:
    return [message.physical_offset for message in found]


def filled(store: cystore.MessageStore, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        keys = tuple(dict.fromkeys(chance.choices([key for key in KEYS if key != "unknown"], k=2)))
        store.put(
            chance.choice("TU"), b"x" * chance.randrange(80), keys=keys, unique_key=f"u{chance.randrange(50)}"
        )


def in_each_state(path: Path, check: Callable[[cystore.MessageStore], None]) -> None:
    """Calls `check` with a store that is empty, has messages that are not dispatched, has them all dispatched, and is
    open for reading only."""
    with open_small(path, max_index_num=300) as store:
        check(store)
        for seed in range(3):
            filled(store, 120, seed)
            check(store)
            store.dispatch()
            check(store)
    with open_small(path, max_index_num=300, read_only=True) as alone:
        check(alone)


def check(store: cystore.MessageStore) -> None:
    keys = [*KEYS, *(f"u{n}" for n in range(50)), "k1"]
    for topic in ("T", "U", "V"):
        for count in (1, 5, 1000):
            found = store.query_many(topic, keys, count)
            assert list(found) == list(dict.fromkeys(keys))
            assert {key: places(rows) for key, rows in found.items()} == {
                key: places(store.query(topic, key, count)) for key in keys
            }
    assert store.query_many("T", []) == {}


def test_each_key_has_the_answer_of_a_query(tmp_path):
    in_each_state(tmp_path / "s", check)


def test_a_reader_that_may_not_dispatch(tmp_path):
    with open_small(tmp_path / "s") as store:
        filled(store, 60, 1)
        store.dispatch()
        with open_small(tmp_path / "s", read_only=True) as reader:
            filled(store, 60, 2)
            check(reader)


def test_damage_is_named_and_hides_nothing_else(tmp_path):
    with open_small(tmp_path / "s") as store:
        for n in range(6):
            store.put("T", b"body", keys=("k", f"k{n}"))
        store.dispatch()
        at = store.query("T", "k3")[0].physical_offset
        segment = next((tmp_path / "s" / "commitlog").glob("0*"))
        with open(segment, "r+b") as file:
            file.seek(at + 90)
            file.write(b"\x55")
        found = store.query_many("T", ["k", "k3", "k4"])
        assert [len(found[key]) for key in found] == [5, 0, 1]
        assert [type(error) for error in found["k3"].damaged] == [CorruptRecordError] and not found[
            "k4"
        ].damaged


def test_what_is_no_key_is_refused(tmp_path):
    with open_small(tmp_path / "s") as store:
        for wrong in ([1], [b"k"], [None]):
            with pytest.raises(cystore.StoreError):
                store.query_many("T", wrong)
        with pytest.raises(cystore.StoreError):
            store.query_many("T", ["k"], 0)


@pytest.mark.parametrize("keys", ["k1", b"k1", None, 5])
def test_what_is_not_several_keys_is_refused(tmp_path, keys):
    """Seen: the letters of a text were looked for, and None was a raw TypeError."""
    with (
        open_small(tmp_path / "s") as store,
        pytest.raises(MessageIllegalError, match="keys: must be a list"),
    ):
        store.query_many("T", keys)


def test_an_empty_key_finds_no_message_without_a_unique_key(tmp_path):
    """Seen: a reader that may not dispatch was given every message."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"", keys=("k",))
        with open_small(tmp_path / "s", read_only=True) as reader:
            assert reader.query_many("T", ["", "k"])[""] == reader.query("T", "") == []


def test_the_garbage_collector_sees_results_and_runs_among_them(tmp_path):
    """Results are lists, so a program may close a cycle through one."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"", keys=("k",))
        keys = [f"k{n}" for n in range(3 * gc.get_threshold()[0])]
        found = store.query_many("T", ["k", "k", "ä", *keys])
        assert gc.is_tracked(found) and all(map(gc.is_tracked, found.values()))
        assert [key for key, messages in found.items() if messages] == ["k"]
        found["k"].append(Cycle(found))  # type: ignore[arg-type]
        gone = weakref.ref(found["k"][-1])
        del found
        gc.collect()
        assert gone() is None


def test_beside_writers(tmp_path):
    """Everything that was acknowledged before the call is in its answer."""
    with open_small(tmp_path / "s") as store, Process() as writer:
        writer.do(
            "from tests.support.small_stores import open_small; store = open_small(path)",
            path=str(tmp_path / "s"),
        )
        for turn in range(20):
            writer.do("for n in range(50): store.put('T', b'', keys=(f'k{n}',))")
            writer.send("for n in range(200): store.put('T', b'', keys=(f'k{n % 50}',))")
            found = store.query_many("T", [f"k{n}" for n in range(50)], 1000)
            assert min(map(len, found.values())) >= turn * 5 + 1
            writer.answer()
