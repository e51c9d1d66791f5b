"""Goal: a process that is killed inside of a put into light queues, or of its dispatch, leaves queues that agree: the
message is in all of them or in none, and no queue offset is given out twice (I2). Method: one process of the build with
failpoints is killed at each step, beside another one and alone; the next put and every queue are looked at."""

from __future__ import annotations

import signal

import pytest

import cystore
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.processes.writers import arm
from tests.support.small_stores import SETTINGS, open_small

LIGHT = {**SETTINGS, "enable_lmq": True, "enable_multi_dispatch": True}
OLD, NEW = "%LMQ%old", "%LMQ%new"
BEFORE = [b"0", b"1", b"2"]
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
    return [bytes(message.body) for message in store.get(topic, 0, 0, 100).messages]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_i2_a_kill_at(in_memory, build_environment, place, survivors):
    path = in_memory / "store"
    with Process(build_environment("failpoints")) as victim:
        survivor = open_small(path, **LIGHT) if survivors else None
        victim.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=LIGHT)
        victim.do(
            "for n in range(3): store.put('T', b'%d' % n, properties={'INNER_MULTI_DISPATCH': old})\nstore.dispatch()",
            old=OLD,
        )
        arm(victim, place)
        with pytest.raises(EOFError):
            victim.do(
                "store.put('T', b'killed', keys='k', properties={'INNER_MULTI_DISPATCH': names}); store.dispatch()",
                names=f"{OLD},{NEW}",
            )
        assert victim.wait() == -signal.SIGKILL
    all_of_them = [*BEFORE, *([b"killed"] if PLACES[place] else []), b"after"]
    with survivor or open_small(path) as store:
        last = store.put("T", b"after", properties={"INNER_MULTI_DISPATCH": f"{NEW},{OLD}"})
        expected = {"T": all_of_them, OLD: all_of_them, NEW: all_of_them[3:]}
        given = store.read(last.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"]
        assert given == f"{len(expected[NEW]) - 1},{len(expected[OLD]) - 1}"
        assert {name: bodies(store, name) for name in expected} == expected
        assert [store.next_queue_offset(name, 0) for name in expected] == list(map(len, expected.values()))
    check_closed(path, SETTINGS)
    with open_small(path) as store:
        assert {name: bodies(store, name) for name in expected} == expected
