"""Goal: dispatch calls no intact record damaged, whatever queue offsets other records claim, and ends.
Method: logs of several queues and light queues in RocketMQ's format, which begin anywhere, with known holes; one or two
records get another queue offset, queue id or light offset, and others a damaged body. The queue table is that of a log
that was just loaded, or knows what the queues gave."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cystore.config import StoreConfig
from tests.oracle.log import Log, lay_out
from tests.oracle.record import Record
from tests.support import parts

CONFIG = StoreConfig(
    mapped_file_size_commit_log_bytes=4096,
    mapped_file_size_consume_queue_bytes=2000,
    message_index_enable=False,
)
QUEUE_ID_AT, QUEUE_OFFSET_AT, BODY_AT = 12, 20, 88
LIGHT = ("%LMQ%a", "%LMQ%b")
Key = tuple[str, int]


@st.composite
def written_logs(draw) -> tuple[Log, list[Record], int, dict[Key, tuple[int, int]]]:
    """A log, its records, its end, and the first and the next offset of each queue. Queues may begin above 0, as in a
    log that lost its begin."""
    following: dict[Key, int] = {}
    first: dict[Key, int] = {}
    queues = draw(st.integers(1, 4))
    begin = draw(st.sampled_from([0, 7]))

    def next_of(key: Key) -> int:
        number = following.setdefault(key, begin)
        first.setdefault(key, number)
        following[key] += 1
        return number

    bare = []
    for n in range(draw(st.integers(1, 50))):
        which = draw(st.integers(0, queues - 1))
        topic, queue_id = "TU"[which // 2], which % 2
        names = draw(st.sampled_from([(), (), LIGHT[:1], LIGHT]))
        number = next_of((topic, queue_id))
        light = [next_of((name, 0)) for name in names]
        properties = b""
        if names:
            offsets = ",".join(map(str, light))
            properties = (
                f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}".encode()
            )
        bare.append(
            Record(
                topic=topic,
                body=b"%d" % n * draw(st.integers(1, 30)),
                queue_id=queue_id,
                queue_offset=number,
                store_timestamp_ms=1_700_000_000_000 + n,
                raw_properties=properties,
            )
        )
    log, records, end = lay_out(bare, 4096, 4096 * begin)
    return log, records, end, {key: (first[key], following[key]) for key in first}


def change(files: dict[int, bytearray], record: Record, at: int, data: bytes) -> None:
    place = record.physical_offset + at
    base = place - place % 4096
    files[base][place - base : place - base + len(data)] = data


def strike(draw, files: dict[int, bytearray], record: Record) -> None:
    what = draw(st.sampled_from(["queue_offset", "queue_offset", "queue_id", "light", "body"]))
    if what == "queue_offset":
        near = draw(st.booleans())
        number = record.queue_offset ^ 1 << draw(st.integers(0, 2 if near else 62))
        change(files, record, QUEUE_OFFSET_AT, number.to_bytes(8, "big"))
    elif what == "queue_id":
        change(files, record, QUEUE_ID_AT, (record.queue_id ^ 1).to_bytes(4, "big"))
    elif what == "body":
        change(files, record, BODY_AT, bytes([record.body[0] ^ 1]))
    elif record.raw_properties:
        change(files, record, record.size - 1, draw(st.sampled_from([b"0", b"3", b"9", b"x"])))


@given(written_logs(), st.data())
def test_no_intact_record_is_called_damaged(made, data):
    log, records, end, bounds = made
    files = {base: bytearray(content) for base, content in log.files.items()}
    struck = set()
    first = data.draw(st.integers(0, len(records) - 1))
    near = first + data.draw(st.integers(1, 6))
    for place in data.draw(st.sampled_from([[], [first], [first, near], [first, near]])):
        if place >= len(records):
            break
        strike(data.draw, files, records[place])
        struck.add(records[place].physical_offset)
    holes = []
    for place in data.draw(st.lists(st.integers(0, len(records) - 1), max_size=3)):
        last = min(place + data.draw(st.integers(0, 5)), len(records) - 1)
        holes.append((records[place].physical_offset, records[last].end))
    holes = [
        hole
        for n, hole in enumerate(sorted(holes))
        if n == 0 or hole[0] >= max(h[1] for h in sorted(holes)[:n])
    ]
    noise = random.Random(data.draw(st.integers(0, 9)))
    for begin, last in holes:
        for base in range(begin - begin % 4096, last, 4096):
            low, high = max(begin - base, 0), min(last - base, 4096)
            files[base][low:high] = noise.randbytes(high - low)
    knows_queues = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        parts.write_log(root, Log(4096, {base: bytes(content) for base, content in files.items()}))
        store = parts.attach(root, CONFIG, minimum=log.minimum, wrote=end, holes=holes)
        if knows_queues:
            for (topic, queue_id), (first, following) in bounds.items():
                store.control.add_queue(topic, queue_id, next=following, dispatched=first, minimum=first)
        store.dispatcher.run_to_end()
        assert store.control.dispatched == end
        begins = {record.physical_offset: record for record in records}
        listed = [(each.begin, each.end) for each in store.commit_log.damaged_ranges]
        for begin, last in listed:
            for known in holes:
                assert last <= known[0] or begin >= known[1] or (begin <= known[0] and last >= known[1])
            inside = {at for at in begins if begin <= at < last}
            unknown = {at for at in inside if not any(first <= at < behind for first, behind in holes)}
            assert unknown <= struck
        for (topic, queue_id), (_, following) in bounds.items():
            slot = store.control.find_queue(topic, queue_id)
            # Two wrong records may continue each other: nothing in RocketMQ's format contradicts the second.
            if knows_queues and len(struck) < 2:
                assert store.control.queue_dispatched(slot) <= following
