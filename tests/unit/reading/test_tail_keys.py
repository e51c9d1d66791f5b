"""Goal: a search for a key looks at each record that is not dispatched once, however many searches there are, and keeps
a bounded number of keys. Method: a read-only handle beside a model of random puts, dispatches, damage and searches, and
counts of the records that its walk looks at."""

from __future__ import annotations

import random
import threading

import pytest

import cystore
from cystore._native.lookup import tail
from cystore._native.lookup.tail import TailKeys
from tests.support.small_stores import LOG_BYTES, open_small
from tests.unit.derived.test_online_damage import BODY_AT, flip

KEYS = [f"k{n}" for n in range(6)]


def walked(reader: cystore.MessageStore) -> int:
    return reader._attached().reader._tail.keys.walked


def found(reader: cystore.MessageStore, key: str, count: int = 32) -> list[int]:
    return [message.physical_offset for message in reader.query("T", key, count)]


def test_the_second_query_looks_at_new_records_only(tmp_path):
    """Seen: each query of a read-only handle walked over all that was not dispatched."""
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        put = [writer.put("T", b"x" * 100, keys=("all", f"k{n}")).physical_offset for n in range(300)]
        assert writer.wrote_position > 2 * LOG_BYTES
        assert found(reader, "all", 500) == put[::-1]
        assert walked(reader) == 300
        assert found(reader, "all") == put[:-33:-1]
        assert [found(reader, f"k{n}") for n in range(300)] == [[at] for at in put]
        assert reader.query("T", "none") == [] == reader.query("U", "all")
        many = reader.query_many("T", ["all", "k7", "none"])
        assert [[m.physical_offset for m in many[key]] for key in many] == [put[:-33:-1], [put[7]], []]
        assert walked(reader) == 300
        put += [writer.put("T", b"", keys="all", unique_key=f"u{n}").physical_offset for n in range(3)]
        assert found(reader, "all", 500) == put[::-1]
        assert found(reader, "u2") == [put[-1]]
        assert walked(reader) == 303
        writer.dispatch()
        assert found(reader, "all", 500) == put[::-1]
        assert walked(reader) == 303
        writer.put("T", b"", keys="all")
        assert len(found(reader, "all", 500)) == 304
        assert walked(reader) == 304
        assert reader._attached().reader._tail.keys.count == 1


@pytest.mark.parametrize("most", [1, 5, 64, 1 << 20])
def test_the_keys_find_what_a_walk_finds(tmp_path, seed, most):
    """Whatever the bound is, and with dispatched positions that are older than those of the last search."""
    rng = random.Random(f"{seed} {most}")
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        parts, keys = reader._attached(), TailKeys(most)
        dispatched = [0]
        for _ in range(400):
            step = rng.random()
            if step < 0.5:
                some = tuple(rng.sample(KEYS, rng.randrange(4)))
                writer.put(rng.choice("TU"), b"x" * rng.randrange(300), keys=some)
            elif step < 0.6:
                writer.dispatch()
                dispatched.append(parts.control.dispatched)
            else:
                window, control = parts.commit_log.window(), parts.control
                bounds = control.min_physical_offset, control.wrote, rng.choice(dispatched[-2:])
                asked = (*bounds, b"T", rng.choice(KEYS).encode(), rng.randrange(1, 20), 0, 1 << 62)
                wanted = [m.physical_offset for m in tail.find_messages(window, *asked)[0]]
                got, end = keys.find_messages(control, window, *asked)
                assert ([m.physical_offset for m in got], end) == (wanted, bounds[1])
                assert keys.count <= max(most, 4)


def test_damage_that_is_found_later_hides_its_record_alone(tmp_path):
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        put = [writer.put("T", b"x" * 100, keys="all") for _ in range(6)]
        places = [result.physical_offset for result in put]
        assert found(reader, "all") == places[::-1]
        flip(tmp_path, places[2] + BODY_AT + 20)
        left = [*places[:2], *places[3:]]
        assert found(reader, "all") == left[::-1]
        writer.dispatch()
        assert len(writer._attached().commit_log.damaged_ranges.ranges()) == 1
        places.append(writer.put("T", b"x", keys="all").physical_offset)
        assert found(reader, "all") == [places[-1], *left[::-1]]


def test_threads_share_the_keys(tmp_path):
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        wrong: list[object] = []
        known = [writer.put("T", b"x" * 50, keys="all").physical_offset]
        ended = threading.Event()

        def search() -> None:
            try:
                while not ended.is_set():
                    least = len(known)
                    got = found(reader, "all", 1 << 20)
                    if len(got) < least or got != sorted(set(got), reverse=True):
                        wrong.append((least, len(got)))
            except Exception as error:  # noqa: BLE001 - shown below
                wrong.append(error)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(150):
            known.append(writer.put("T", b"x" * 50, keys="all").physical_offset)
            if number % 20 == 0:
                writer.dispatch()
        ended.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert found(reader, "all", 1 << 20) == known[::-1]


def test_a_table_of_no_keys_is_refused():
    with pytest.raises(ValueError, match="no table of 0 keys"):
        TailKeys(0)
