"""Light queues: a process is killed inside of a put into several of them, or of its dispatch; the next put and every
queue agree."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.processes.writers import arm
from tests.support.small_stores import SETTINGS, open_small

LIGHT: dict[str, Any] = {**SETTINGS, "enable_lmq": True, "enable_multi_dispatch": True}
OLD, NEW = "%LMQ%old", "%LMQ%new"
# Place: whether the message counts.
PLACES = {
    "append.light_added:1": False,
    "append.claimed:1": False,
    "append.light_claimed:1": False,
    "append.bytes_written:1": False,
    "append.published:1": True,
    "append.next_set:1": True,
    "append.light_next:1": True,
    "append.light_next:2": True,
    "append.intent_cleared:1": True,
    "dispatch.queue_entry:1": True,
    "dispatch.queue:1": True,
    "dispatch.queue_entry:2": True,
    "dispatch.queue:2": True,
    "dispatch.queue:3": True,
    "dispatch.index:1": True,
}


def bodies(store: cystore.MessageStore, topic: str) -> list[bytes]:
    return [bytes(message.body) for message in store.get(topic, 0, 0, 32).messages]


def killed_at(
    place: str,
    rng: random.Random,
    folder: Path,
    environment: Mapping[str, str],
    *,
    survivors: bool,
    planted: str = "",
) -> None:
    """`place` has its hits: they count from the put that is killed."""
    path = folder / "store"
    before = [b"%d" % number for number in range(rng.randint(1, 25))]  # one `get` gives 32
    with Process(environment) as victim:
        survivor = open_small(path, **LIGHT) if survivors else None
        victim.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=LIGHT)
        victim.do(
            "for n in range(count): store.put('T', b'%d' % n, properties={'INNER_MULTI_DISPATCH': old})\n"
            f"store.dispatch()\n{planted}",
            old=OLD,
            count=len(before),
        )
        arm(victim, place)
        with pytest.raises(EOFError):
            victim.do(
                "store.put('T', b'killed', keys='k', properties={'INNER_MULTI_DISPATCH': names}); store.dispatch()",
                names=f"{OLD},{NEW}",
            )
        assert victim.wait() == -signal.SIGKILL
    all_of_them = [*before, *([b"killed"] if PLACES[place] else []), b"after"]
    expected = {"T": all_of_them, OLD: all_of_them, NEW: all_of_them[len(before) :]}
    with survivor or open_small(path) as store:
        last = store.put("T", b"after", properties={"INNER_MULTI_DISPATCH": f"{NEW},{OLD}"})
        given = store.read(last.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"]
        assert given == f"{len(expected[NEW]) - 1},{len(expected[OLD]) - 1}"
        check(store, expected)
        assert [store.next_queue_offset(name, 0) for name in expected] == list(map(len, expected.values()))
    check_closed(path, SETTINGS)
    aftermath(path, SETTINGS, lambda store: check(store, expected))


def check(store: cystore.MessageStore, expected: Mapping[str, list[bytes]]) -> None:
    assert {name: bodies(store, name) for name in expected} == expected
