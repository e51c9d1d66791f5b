"""Goal: cystore sees in a directory that RocketMQ 4.9.3 wrote what RocketMQ sees, but for the differences
that are meant. Method: every golden store, clean, crashed or torn, is opened read-only and for writing, cut
where RocketMQ cuts, and asked for every row that RocketMQ wrote down; where the two must differ, the oracle
says what cystore has to answer."""

from itertools import pairwise

import pytest

import cystore
from cystore import GetStatus
from tests.oracle import store as oracle
from tests.support.golden import stores
from tests.support.golden.answers import NOT_IN_A_MESSAGE, as_row, queue_messages, topics_and_queues
from tests.support.golden.cystore_config import cystore_config

pytestmark = pytest.mark.sampled(10)  # of 14 stores, opened in two ways


@pytest.fixture(scope="module", params=stores.NAMES)
def golden(request, tmp_path_factory) -> stores.Golden:
    """Each store is unpacked once for all the tests here, which only read."""
    return stores.unpack_or_skip(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def view(golden) -> oracle.View:
    """The oracle's view of the directory, which cystore does not touch."""
    return oracle.recover(oracle.read_directory(golden.store), "truncate")


@pytest.fixture(scope="module", params=[True, False], ids=["read_only", "writable"])
def opened(request, golden, tmp_path_factory):
    """A copy of its own for each mode: the writable one recovers it."""
    copy = stores.unpack_or_skip(golden.name, tmp_path_factory.mktemp("opened")).store
    config = cystore_config(golden.spec)
    with cystore.open(copy, read_only=request.param, damaged_range="truncate", **config) as store:
        yield store


def test_every_queue_gives_every_message(golden, opened):
    expected = [
        {name: value for name, value in row.items() if name not in NOT_IN_A_MESSAGE}
        for row in golden.rows_of("msg")
    ]
    found = [
        as_row(message)
        for row in golden.rows_of("queue")
        for message in queue_messages(opened, row["topic"], row["queueId"])
    ]
    assert found == expected


def test_every_queue_has_rocketmqs_bounds(golden, opened):
    for row in golden.rows_of("queue"):
        topic, queue_id, minimum, maximum = (row[n] for n in ("topic", "queueId", "minOffset", "maxOffset"))
        at_end = opened.get(topic, queue_id, maximum)
        assert (at_end.min_offset, at_end.max_offset) == (minimum, maximum)
        assert (at_end.status, at_end.next_offset, list(at_end.messages)) == (
            GetStatus.OFFSET_OVERFLOW_ONE,
            maximum,
            [],
        )
        past = opened.get(topic, queue_id, maximum + 1)
        assert past.status is GetStatus.OFFSET_OVERFLOW_BADLY
        first = opened.get(topic, queue_id, minimum, 1)
        assert (first.status, first.next_offset) == (GetStatus.FOUND, minimum + 1)
        if minimum:
            small = opened.get(topic, queue_id, 0)
            assert (small.status, small.next_offset) == (GetStatus.OFFSET_TOO_SMALL, minimum)


def test_topics_queues_and_their_ranges_are_the_ones_of_rocketmq(golden, opened):
    expected: dict = {}
    for row in golden.rows_of("queue"):
        expected.setdefault(row["topic"], {})[row["queueId"]] = (row["minOffset"], row["maxOffset"])
    assert opened.topics() == expected
    topic, queue_id = topics_and_queues(opened)[0]
    for stranger in ((topic, 2**31 - 2), ("no_such_topic", 0)):
        assert opened.get(*stranger, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert opened.get(topic, queue_id, 0).status is not GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_message_is_read_by_rocketmqs_id(golden, opened):
    rows = golden.rows_of("msg")
    for row in rows[:: max(1, len(rows) // 25)]:
        message = opened.read_by_id(row["msgId"].lower())
        assert (message.topic, message.physical_offset) == (row["topic"], row["physicalOffset"])


def test_message_ids_of_a_queue_are_those_of_rocketmq(golden, opened):
    expected: dict = {}
    for row in golden.rows_of("msg"):
        expected.setdefault((row["topic"], row["queueId"]), {})[row["msgId"]] = row["queueOffset"]
    for queue, ids in expected.items():
        assert opened.message_ids(*queue, 0, 1 << 40) == ids
        first = min(ids.values())
        assert opened.message_ids(*queue, first, first + 1) == {
            text: offset for text, offset in ids.items() if offset == first
        }


def test_memory_holds_every_message_of_a_small_store(golden, opened):
    for row in golden.rows_of("msg"):
        assert opened.is_in_disk(row["topic"], row["queueId"], row["queueOffset"]) is False
    for queue in {(row["topic"], row["queueId"]) for row in golden.rows_of("msg")}:
        result = opened.get(*queue, opened.get(*queue, 0).min_offset)
        assert result.suggest_pulling_from_slave is False


def test_the_earliest_time_is_that_of_the_first_message(golden, opened):
    records, first = golden.rows_of("record"), {}
    for row in golden.rows_of("msg"):
        first.setdefault((row["topic"], row["queueId"]), row["storeTimestamp"])
    assert opened.earliest_time_ms() == (records[0]["storeTimestamp"] if records else None)
    assert {queue: opened.earliest_time_ms(*queue) for queue in first} == first
    assert opened.earliest_time_ms("nobody", 0) is None


def test_raw_reads_give_the_records_own_bytes(golden, view, opened):
    for (topic, queue_id), live in view.queues.items():
        wanted = [record.raw for record in view.queue_messages((topic, queue_id)).values()]
        found, offset = [], live.minimum
        while offset < live.maximum:
            result = opened.get(topic, queue_id, offset, 32, raw=True)
            bounds = [*result.record_offsets, len(result.raw)]
            found += [bytes(result.raw[b:e]) for b, e in pairwise(bounds)]
            assert result.next_offset > offset
            offset = result.next_offset
        assert found == wanted


def test_a_scan_gives_every_record_in_physical_order(golden, opened):
    expected = [
        tuple(
            row[name] for name in ("physicalOffset", "size", "topic", "queueId", "sysFlag", "storeTimestamp")
        )
        for row in golden.rows_of("record")
    ]
    found = [
        (m.physical_offset, m.size_bytes, m.topic, m.queue_id, m.sys_flag, m.store_timestamp_ms)
        for m in opened.scan()
    ]
    assert found == expected
    middle = expected[len(expected) // 2][0]
    assert [m.physical_offset for m in opened.scan(begin=middle)] == [
        e[0] for e in expected if e[0] >= middle
    ]
    assert [m.physical_offset for m in opened.scan(end=middle)] == [e[0] for e in expected if e[0] < middle]


def test_records_are_read_by_physical_offset_and_nothing_else_is(golden, view, opened):
    for record in view.records[:: max(1, len(view.records) // 25)]:
        assert opened.read(record.physical_offset).body == record.body
    strange = [view.records[0].physical_offset + 1, view.outcome.end, -1, view.records[0].physical_offset - 1]
    strange += [row["physicalOffset"] for row in golden.rows_of("blank")]
    for offset in strange:
        with pytest.raises(cystore.StoreError):
            opened.read(offset)


def test_queries_find_the_newest_records_that_hold_the_key(golden, view, opened):
    """What a scan of the log finds. RocketMQ's own answer is the same, lowest first, where its recovery kept
    the index and no stranger with the same hash, no repeat and nothing expired took one of its 64 places."""
    same = 0
    for row in golden.rows_of("query"):
        topic, key = row["topic"], row["key"]
        expected = [r.physical_offset for r in view.query(topic, key, 64)]
        assert [m.physical_offset for m in opened.query(topic, key, 64)] == expected, (topic, key)
        same += row["physicalOffsets"] == expected[::-1]
        holding = {o for o in row["physicalOffsets"] if key in view.by_offset[o].index_keys}
        if len(expected) < 64:
            assert holding <= set(expected)
    crashed = golden.rows_of("state")[0]["abort"]
    assert crashed or same >= 0.9 * len(golden.rows_of("query"))


def test_queries_keep_to_their_limit_and_their_time_range(golden, view, opened):
    for row in golden.rows_of("query")[::7]:
        topic, key = row["topic"], row["key"]
        every = view.query(topic, key, 10_000)
        if not every:
            continue
        assert [m.physical_offset for m in opened.query(topic, key, 1)] == [every[0].physical_offset]
        middle = every[len(every) // 2].store_timestamp_ms
        for begin, end in (
            (0, middle),
            (middle, None),
            (middle, middle),
            (middle + 1, None),
            (0, middle - 1),
        ):
            expected = [r.physical_offset for r in view.query(topic, key, 32, begin, end)]
            found = opened.query(topic, key, 32, begin_ms=begin, end_ms=end)
            assert [m.physical_offset for m in found] == expected, (topic, key, begin, end)


def test_a_query_for_a_key_or_topic_that_is_not_there_is_empty(golden, opened):
    topic = golden.rows_of("queue")[0]["topic"]
    assert opened.query(topic, "no such key") == []
    assert opened.query("no_such_topic", "k1") == []


def test_offset_by_time(golden, view, opened):
    """The lowest offset with exactly that timestamp, over the whole queue; RocketMQ gives whichever its
    bisection hits."""
    for row in golden.rows_of("offsetByTime"):
        key = row["topic"], row["queueId"]
        answer = opened.offset_by_time(*key, row["timestamp"])
        messages = view.queue_messages(key)
        assert messages[answer].store_timestamp_ms == row["timestamp"]
        assert answer == min(o for o, m in messages.items() if m.store_timestamp_ms == row["timestamp"])
    for key in view.queues:
        times = sorted({m.store_timestamp_ms for m in view.queue_messages(key).values()})
        gaps = [(a + b) // 2 for a, b in pairwise(times)]
        for asked in (0, times[0] - 1, *times, *gaps, times[-1] + 1, 2**62):
            assert opened.offset_by_time(*key, asked) == view.offset_by_time(key, asked), (key, asked)
