"""Goal: a delayed message that cannot be delivered now holds up no other one, and is delivered later, once (I9).
Method: stores in which no queue can be made any more, with a clock that the test turns; progress files that are
removed."""

from __future__ import annotations

import pytest

import cystore
from tests.support.checks import everything
from tests.support.small_stores import open_small

LEVELS = {"message_delay_level": "1s 5m 10m 2h"}  # the second is not due however busy the machine is


def opened(path, **more):
    return open_small(path, **{**LEVELS, **more})


def no_queue_is_left(store):
    for number in range(1000):
        try:
            store.put(f"filler-{number}", b"x")
        except cystore.QueuesFullError:
            return
    raise AssertionError("the store takes any number of queues")


def test_i9_a_message_for_a_queue_that_cannot_be_made_holds_up_no_other(path, late, caplog):
    """Seen: each `deliver` ended with StoreFullError at the first such message, and delivered none behind it."""
    few = {"max_queues": 12, "services": "none"}
    with opened(path, **few) as store:
        store.put("old", b"first")
        for number in range(600):  # more than a batch
            store.put("new", b"%d" % number, delay_level=1)
        store.put("old", b"second", delay_level=1)
        store.put("old", b"third", delay_level=2)
        no_queue_is_left(store)
        late(1_500)
        assert store.deliver() == 1
        assert [bytes(one.body) for one in store.get("old", 0, 0).messages] == [b"first", b"second"]
        assert store.deliver() == 0
        assert store.stats()["delayed"] == {2: 601}  # they wait for the next longer delay
        assert [record.getMessage().count("max_queues") for record in caplog.records] == [1]
        with pytest.raises(cystore.QueuesFullError):
            store.put("new", b"x")
    for turned in (310_000, 620_000):
        late(turned)
        with opened(path, **few) as store:
            store.deliver()
            assert "new" not in store.topics()
            assert store.stats()["delayed"] == {2: 600}
    assert [bytes(one.body) for one in opened_messages(path, "old", few)] == [b"first", b"second", b"third"]
    late(930_000)
    with opened(path, max_queues=64) as store:  # now there is room
        assert store.deliver() == 600
        assert [int(bytes(one.body)) for one in everything(store)["new", 0]] == list(range(600))
        assert store.deliver() == 0 and store.stats()["delayed"] == {}


def opened_messages(path, topic, settings):
    with opened(path, **settings) as store:
        return store.get(topic, 0, 0).messages


def test_i9_a_message_that_was_set_aside_is_delivered_once_although_progress_is_lost(path, late):
    """The copy names its source, so the log says that it has left its queue."""
    few = {"max_queues": 12, "services": "none"}
    with opened(path, **few) as store:
        store.put("old", b"first")
        store.put("new", b"stuck", delay_level=1)
        no_queue_is_left(store)
        late(1_500)
        assert store.deliver() == 0
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (path / "config" / name).unlink(missing_ok=True)
    late(310_000)
    with opened(path, max_queues=64) as store:
        assert store.deliver() == 1
        assert store.deliver() == 0
        assert [bytes(one.body) for one in store.get("new", 0, 0).messages] == [b"stuck"]
