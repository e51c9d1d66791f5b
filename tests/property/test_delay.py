"""Goal: due times and tables of delay levels are what RocketMQ makes of them, and delivery follows them whatever is
done in between (I9). Method: tables in every spelling beside plain arithmetic; a store that is put to, delivered,
closed, killed and robbed of its table at random, beside a list of what waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import clock
from cystore._native.record.message import delay_level_of
from tests.oracle.record import Record
from tests.property.test_store import few, scratch
from tests.support.checks import check_closed, everything
from tests.support.clock import turn
from tests.support.small_stores import SETTINGS

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
levels = st.lists(st.tuples(st.integers(0, 36_500), st.sampled_from("smhd")), min_size=1, max_size=64)


@given(levels, st.data())
def test_a_table_is_its_numbers_times_their_units(table, data):
    words = [data.draw(st.sampled_from(["", "0", "00"])) + f"{number}{unit}" for number, unit in table]
    text = "".join(word + data.draw(st.sampled_from([" ", "  ", "\t"])) for word in words)
    expected = tuple(number * UNIT_MS[unit] for number, unit in table)
    config = cystore.StoreConfig(message_delay_level=text)
    assert config.delay_levels_ms() == expected
    again = cystore.StoreConfig(message_delay_level=config.delay_level_text(expected))
    assert again.delay_levels_ms() == expected


@given(st.text(alphabet="0123456789smhd -+.x\u0661", max_size=12))
def test_a_table_is_taken_or_refused_with_its_name(text):
    words = text.split()
    good = words and all(w[-1] in UNIT_MS and w[:-1].isascii() and w[:-1].isdecimal() for w in words)
    if good and all(int(w[:-1]) * UNIT_MS[w[-1]] <= 36_500 * UNIT_MS["d"] and len(w) <= 11 for w in words):
        assert len(cystore.StoreConfig(message_delay_level=text).delay_levels_ms()) == len(words)
    else:
        with pytest.raises(cystore.StoreConfigError, match="message_delay_level"):
            cystore.StoreConfig(message_delay_level=text)


@given(
    st.text(alphabet="+-0123456789x \u0661", max_size=14)
    | st.integers(-(1 << 33), 1 << 33).map(str)
    | st.just("0" * 4000 + "7")
)
def test_a_message_says_its_level_as_java_reads_it(text):
    record = Record(topic="T", body=b"", raw_properties=f"DELAY\x01{text}".encode())
    assert delay_level_of({"DELAY": text}) == record.delay_level


@dataclass
class Waiting:
    """One message as the list knows it."""

    number: int
    level: int
    due_ms: int
    delivered: bool = field(default=False)


@few
@given(levels, st.data())
def test_i9_delivery_follows_the_list(table, data):
    delays = [number * UNIT_MS[unit] for number, unit in table]
    text = " ".join(f"{number}{unit}" for number, unit in table)
    settings = {**SETTINGS, "message_delay_level": text}
    waiting: list[Waiting] = []
    with scratch() as path, pytest.MonkeyPatch.context() as patch:
        store = cystore.open(path, **settings)
        for _ in range(data.draw(st.integers(1, 25))):
            what = data.draw(
                st.sampled_from(["put", "put", "put", "turn", "deliver", "deliver some", "reopen", "lose"])
            )
            if what == "put":
                level = data.draw(st.integers(1, len(delays) + 2))
                if level > len(delays):
                    with pytest.raises(cystore.MessageIllegalError, match="delay_level"):
                        store.put("T", b"", delay_level=level)
                    continue
                put = store.put("T", b"%d" % len(waiting), queue_id=level, delay_level=level)
                waiting.append(Waiting(len(waiting), level, put.store_timestamp_ms + delays[level - 1]))
            elif what == "turn":
                shift = data.draw(st.sampled_from([0, -200_000, 1_000, *delays]))
                turn(patch, shift)
            elif what == "reopen":
                store.close()
                check_closed(path, settings)
                store = cystore.open(path, **settings)
            elif what == "lose":
                store.close()
                for file in (path / "config").glob("delayOffset*"):
                    file.unlink()
                store = cystore.open(path, **settings)
            else:
                limit = data.draw(st.integers(1, 5)) if what == "deliver some" else None
                began_ms = clock.now_ms()
                done = store.deliver(max_messages=limit)
                due = sorted(
                    (one for one in waiting if not one.delivered and one.due_ms <= began_ms),
                    key=lambda one: (one.due_ms, one.level, one.number),
                )
                # A message that became due between the two looks at the clock may be among them.
                assert done >= min(len(due), limit or len(due))
                for one in due[:limit]:
                    one.delivered = True
                found = {
                    int(bytes(m.body))
                    for queue, ms in everything(store).items()
                    if queue[0] == "T"
                    for m in ms
                }
                late = {one.number for one in waiting if one.due_ms <= clock.now_ms()}
                assert (
                    {one.number for one in waiting if one.delivered}
                    <= found
                    <= late | {one.number for one in waiting if one.delivered}
                )
                for one in waiting:
                    one.delivered = one.number in found
        turn(patch, max(delays) + 1_000)
        store.deliver()
        bodies = sorted(
            int(bytes(m.body)) for queue, ms in everything(store).items() if queue[0] == "T" for m in ms
        )
        assert bodies == list(range(len(waiting)))
        for queue_id, slot in store._attached().delivered.slots().items():
            queue = store._attached().queues.get(slot)
            for _, entry in queue.entries(0, queue.max_offset):
                source = store.read(entry.physical_offset)
                assert entry.tags_code == source.store_timestamp_ms + delays[queue_id]
        store.close()
        check_closed(path, settings)
