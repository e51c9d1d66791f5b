"""Compaction: a process is killed while it compacts a store that lives on, or whose last process it was (I7). The
newest record of each key is found before and after, and the next compaction ends what it began."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.engine.files.compacted_file import numbers
from cystore.verify import verify
from tests.crash.episodes import armed
from tests.support.aftermath import aftermath
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

TOPIC = "state"
COMPACTED: dict[str, Any] = {**SETTINGS, "file_reserved_time_h": 0, "compacted_topics": TOPIC}
# Place: how often it may be passed before.
PLACES = {
    "compact.records": 1,
    "new_file.written": 1,
    "new_file.synced": 1,
    "new_file.named": 1,
    "compact.published": 1,
    "compact.entered": 1,
    "compact.old_gone": 1,
    "clean.published": 1,
    "clean.segment_gone": 1,
}


def put_round(store: cystore.MessageStore, model: dict[str, bytes], round_: int) -> None:
    """Newer values for a third of the keys, the end of a sixth of them, and a log of several segments around them."""
    for number in range(round_ % 3, 90, 3):
        body = b"" if number % 6 == round_ % 6 else b"%d of %d" % (number, round_)
        store.put(TOPIC, body, keys=[f"k{number}"])
        store.put("other", bytes(800))
        model[f"k{number}"] = body
    store.flush()


def check(store: cystore.MessageStore, model: Mapping[str, bytes]) -> None:
    for key, body in model.items():
        found = store.latest(TOPIC, key)
        assert (b"" if found is None else bytes(found.body)) == body, key
    kept = {message.keys[0]: bytes(message.body) for message in store.compacted(TOPIC)}
    assert kept == {key: body for key, body in model.items() if body}


def killed_at(
    place: str,
    rng: random.Random,
    folder: Path,
    environment: Mapping[str, str],
    *,
    survivors: bool,
    planted: str = "",
) -> None:
    path = folder / "store"
    model: dict[str, bytes] = {}
    rounds = rng.randint(1, 3)  # before the one that is killed
    hits = rng.randint(1, PLACES[place])
    with Process(armed(environment, place, hits)) as victim:
        store = cystore.open(path, **COMPACTED)
        for number in range(rounds):
            put_round(store, model, number)
            store.compact()
            store.clean()
        put_round(store, model, rounds)
        victim.do(
            f"import cystore; store = cystore.open(path, **settings)\n{planted}",
            path=str(path),
            settings=COMPACTED,
        )
        if not survivors:
            store.close()
        with pytest.raises(EOFError):
            victim.do("store.clean()")  # which compacts first
        assert victim.wait() == -signal.SIGKILL
    if not survivors:
        store = cystore.open(path, **COMPACTED)
    with store:
        check(store, model)
        put_round(store, model, rounds + 1)
        check(store, model)
        assert store.clean().segments
        check(store, model)
        assert len(numbers(path)) == 1
    assert list(verify(path, cystore.StoreConfig(**COMPACTED))) == []
    with cystore.open(path, **COMPACTED) as store:
        check(store, model)
    aftermath(path, COMPACTED, lambda store: check(store, model))
