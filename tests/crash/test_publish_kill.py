"""Goal: a process that is killed after it published a batch, before all queues count its messages, leaves a store
whose answers agree (I2): no queue offset is given out twice, and what `get` gave is never beyond its queue's end.
Method: one process of the build with failpoints puts a batch into four queues and is killed after each of the steps;
another one, which was attached before, asks and puts."""

from __future__ import annotations

import signal

import pytest

from tests.support.aftermath import after_kills
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.processes.writers import arm
from tests.support.small_stores import SETTINGS, open_small

QUEUES, EACH = 4, 2
BEFORE = 3  # messages of each queue
AFTER = BEFORE + EACH
BATCH = (
    "store.put_many([cystore.Message(topic='T', queue_id=n % 4, body=b'killed %d' % n) for n in range(8)])"
)
# The messages that their queues count when the process dies.
PLACES = {"append.published:1": 0, "append.next_set:1": 1, "append.next_set:5": 5, "append.next_set:8": 8}


@pytest.fixture(params=PLACES)
def killed_at(request, in_memory, build_environment):
    """The path of a store that this process has open, with a batch whose writer was killed at a place."""
    with open_small(in_memory / "store") as store, Process(build_environment("failpoints")) as victim:
        for n in range(QUEUES * BEFORE):
            store.put("T", b"before", queue_id=n % QUEUES)
        store.dispatch()
        victim.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(in_memory / "store"),
            settings=SETTINGS,
        )
        arm(victim, request.param)
        with pytest.raises(EOFError):
            victim.do(BATCH)
        assert victim.wait() == -signal.SIGKILL
        counted = sum(store.next_queue_offset("T", queue_id) for queue_id in range(QUEUES))
        assert counted - QUEUES * BEFORE == PLACES[request.param]
        yield store
    check_closed(in_memory / "store", SETTINGS)
    after_kills(in_memory / "store", SETTINGS)


def bodies(store, queue_id):
    return [bytes(message.body) for message in store.get("T", queue_id, 0, 100).messages]


@pytest.mark.parametrize("dispatched", [False, True], ids=["not dispatched", "dispatched"])
def test_i2_the_next_puts_get_the_queue_offsets_behind_the_killed_batch(killed_at, dispatched):
    store = killed_at
    if dispatched:
        store.dispatch()
    given = [store.put("T", b"after", queue_id=n % QUEUES).queue_offset for n in range(2 * QUEUES)]
    assert given == [AFTER] * QUEUES + [AFTER + 1] * QUEUES
    for queue_id in range(QUEUES):
        killed = [b"killed %d" % queue_id, b"killed %d" % (queue_id + QUEUES)]
        assert bodies(store, queue_id) == [b"before"] * BEFORE + killed + [b"after"] * 2


def test_i2_queues_end_behind_what_get_gave(killed_at):
    """Nobody appends: the queues' own counts stay as the killed process left them."""
    store = killed_at
    store.dispatch()
    for queue_id in range(QUEUES):
        result = store.get("T", queue_id, 0, 100)
        assert (len(result.messages), result.next_offset, result.max_offset) == (AFTER, AFTER, AFTER)
        assert store.next_queue_offset("T", queue_id) == AFTER
        assert store.wait("T", queue_id, AFTER - 1, 0)
        store.groups.commit("billing", "T", queue_id, AFTER)
    assert {(one.end_offset, one.lag) for one in store.groups.lag("billing")} == {(AFTER, 0)}
    assert store.groups.reset("billing", "T", "last") == dict.fromkeys(range(QUEUES), AFTER)


def test_a_close_without_another_append_keeps_the_queue_offsets(killed_at, in_memory):
    """The last process leaves: what it saves counts the killed batch, dispatched or not."""
    killed_at.close()
    with open_small(in_memory / "store") as store:
        given = [store.put("T", b"after", queue_id=n % QUEUES).queue_offset for n in range(QUEUES)]
        assert given == [AFTER] * QUEUES
