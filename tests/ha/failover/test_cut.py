"""Goal: a log is cut where it parts from the master's, the rest is kept aside, and queues count on from there, whatever
is killed during the cut. Method: a store of small files that is cut at many places; the process that cuts is killed at
each step."""

from __future__ import annotations

import signal

import pytest

import cystore
from cystore.ha.epochs.truncation import order_truncation
from tests.support.ha.ha_pair import every, fill, log_bytes, wrote
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

PLACES = ("cut.kept", "cut.counted_back", "cut.derived_dropped", "cut.file_removed", "cut.zeroed")


def ends(store: cystore.MessageStore) -> dict[tuple[str, int], int]:
    return {(t, q): one.max_offset for t, queues in store.topics().items() for q, one in queues.items()}


def prepared(path, before: int, more: int) -> tuple[int, int, dict[tuple[str, int], int], bytes]:
    """A store with an order to cut: from, to, the ends of queues that it is to have then, the bytes that go."""
    with open_small(path) as store:
        fill(store, before)
        at, queues = wrote(store), ends(store)
        fill(store, more, start=before)
        end = wrote(store)
        order_truncation(store._attached().manifest, at, end)
    return at, end, queues, log_bytes(path, at, end)


def check_cut(path, at: int, end: int, queues: dict[tuple[str, int], int], gone: bytes) -> None:
    with open_small(path) as store:
        assert wrote(store) == at
        assert {queue: last for queue, last in ends(store).items() if last} == queues
        assert store.recovery.lost is None and not store.recovery.new_holes
        (kept,) = (path / "quarantine").glob("commitlog-*")
        assert kept.read_bytes()[: end - at] == gone
        fill(store, 50, start=1000)
        for (topic, queue_id), last in ends(store).items():
            assert [m.queue_offset for m in every(store, topic, queue_id, 0)] == list(range(last))
    with open_small(path) as store:
        assert wrote(store) > at


@pytest.mark.parametrize(("before", "more"), [(30, 1), (30, 100), (0, 40), (200, 300)])
def test_a_cut(tmp_path, before, more):
    check_cut(tmp_path / "store", *prepared(tmp_path / "store", before, more))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
def test_the_process_that_cuts_is_killed(tmp_path, build_environment, place):
    path = tmp_path / "store"
    order = prepared(path, 60, 150)
    with Process({**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:1"}) as victim:
        victim.send("import cystore; cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        assert victim.wait() == -signal.SIGKILL
    check_cut(path, *order)


def test_i2_light_queues_count_on_from_a_cut(tmp_path):
    """A queue offset that only the records behind the cut had is given out anew."""
    path, names = tmp_path / "store", {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    with open_small(path, enable_lmq=True, enable_multi_dispatch=True) as store:
        for number in range(4):
            store.put("T", b"%d" % number, properties=names)
        at = wrote(store)
        for _ in range(3):
            store.put("T", b"gone", properties=names)
        store.put("T", b"gone", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
        order_truncation(store._attached().manifest, at, wrote(store))
    with open_small(path) as store:
        put = store.put("T", b"4", properties=names)
        assert store.read(put.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"] == "4,4"
        for topic in ("T", "%LMQ%a", "%LMQ%b"):
            assert [bytes(m.body) for m in every(store, topic, 0, 0)] == [
                b"%d" % number for number in range(5)
            ]
