"""Goal: what a hold names stays through every clean (I7), and a hold that was forgotten does not fill the disk.
Method: stores of small segments in which everything has expired."""

from __future__ import annotations

import json
import logging

import pytest

import cystore
from cystore._native.record.checksum import crc32c
from cystore.layout import TAKEN_TOPICS
from cystore.services.retention.hold import Hold, hold_fields, parse_hold_map
from tests.support.cleaning import check_cleaned, filled
from tests.support.clock import turn
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about what is kept, which no kernel decides

EXPIRED = {"file_reserved_time_h": 0}
HOUR_MS = 3_600_000


def begin_of(store):
    return store._attached().control.min_physical_offset


def test_i7_what_is_held_stays_until_the_hold_moves_on(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put = filled(store)
        held = put[60].physical_offset
        assert store.hold("archive", held) == Hold(held)
        assert store.clean().min_physical_offset == held // LOG_BYTES * LOG_BYTES
        check_cleaned(store, put)
        assert store.clean().files == 0
        store.hold("archive", put[120].physical_offset)
        assert store.clean().min_physical_offset == put[120].physical_offset // LOG_BYTES * LOG_BYTES
        assert store.release("archive")
        assert not store.release("archive")
        assert store.clean().min_physical_offset > put[150].physical_offset
        check_cleaned(store, put)


@pytest.mark.parametrize("topic", TAKEN_TOPICS)
def test_i7_what_was_delivered_for_workers_stays_until_one_took_it(tmp_path, topic):
    """Seen: a process without workers delivered due tasks, and they expired before a worker came."""
    path = tmp_path / "s"
    with open_small(path, **EXPIRED) as store:
        filled(store)
        for body in (b"taken", b"first", b"second"):
            store.put(topic, body, delay_ms=1)
        while store.maintenance.delayed or store.stats()["delayed"]:
            store.deliver()
        store.groups.commit(topic, topic, 0, 1)
        filled(store)
        assert store.clean().segments > 0
        begin = store.groups.pull(topic, topic, 0).messages[0].physical_offset
        assert begin_of(store) == begin // LOG_BYTES * LOG_BYTES
        assert any(topic in need.owner for need in store._attached().cleaner.needs())
    with open_small(path, **EXPIRED) as store:  # nobody asked for the group before this clean
        assert store.clean().segments == 0
        taken = store.groups.pull(topic, topic, 0).messages
        assert [bytes(message.body) for message in taken] == [b"first", b"second"]
        store.groups.commit(topic, topic, 0, 3)
        assert store.clean().segments > 0 and begin_of(store) > begin


def test_i7_what_no_worker_ever_took_stays(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        store.put(TAKEN_TOPICS[0], b"first")
        filled(store)
        assert store.clean().files == 0
        assert store.groups.pull(TAKEN_TOPICS[0], TAKEN_TOPICS[0], 0).messages


def test_the_lowest_of_several_holds_decides(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put = filled(store)
        store.hold("late", put[150].physical_offset)
        store.hold("early", put[50].physical_offset)
        assert set(store.holds()) == {"late", "early"}
        assert store.clean().min_physical_offset == put[50].physical_offset // LOG_BYTES * LOG_BYTES


def test_i7_a_full_disk_takes_nothing_that_is_held(tmp_path):
    forced = {"clean_file_forcibly_enable": True, "disk_space_clean_forcibly_ratio": 0}
    with open_small(tmp_path / "s", **forced) as store:
        filled(store)
        store.hold("archive", 0)
        assert store._attached().cleaner.run_once().done == 0
        store.release("archive")
        assert store._attached().cleaner.run_once().done > 0


def test_a_hold_lasts_for_its_limit_only(tmp_path, monkeypatch, caplog):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        store.hold("chords", 0, max_age_ms=HOUR_MS // 60)
        assert store.clean().segments == 0
        turn(monkeypatch, 2 * HOUR_MS)
        with caplog.at_level(logging.WARNING, "cystore"):
            assert store.clean().segments > 0
        assert "the hold of chords from 0 on is older than its limit of 1 min" in caplog.text


def test_a_hold_without_a_lifetime_notes_a_place_and_keeps_nothing(tmp_path, caplog):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        store.hold("chords", 0, max_age_ms=0)
        assert "chords" not in [need.owner for need in store._attached().cleaner.needs()]
        with caplog.at_level(logging.WARNING, "cystore"):
            assert store.clean().segments > 0
        assert "chords" not in caplog.text
        assert store.holds() == {"chords": Hold(0, 0)}


def test_holds_are_those_of_all_processes_and_outlive_them(tmp_path):
    path = tmp_path / "s"
    with open_small(path, **EXPIRED) as store:
        put = filled(store)
        with Process() as other:
            other.do(
                "import cystore; store = cystore.open(path, **s)", path=str(path), s={**SETTINGS, **EXPIRED}
            )
            other.do("store.hold('archive', at)", at=put[60].physical_offset)
            other.kill()
        assert store.clean().min_physical_offset == put[60].physical_offset // LOG_BYTES * LOG_BYTES
    with open_small(path, **EXPIRED) as store:
        assert store.holds() == {"archive": Hold(put[60].physical_offset)}
        assert store.clean().segments == 0


def test_a_hold_begins_where_the_log_does_at_the_earliest(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        minimum = store.clean().min_physical_offset
        assert minimum > 0
        assert store.hold("archive", 0) == Hold(minimum)


def holds_file(holds):
    """config/holds.json as earlier versions wrote it."""
    rows = [(name, hold.physical_offset, hold.max_age_ms) for name, hold in sorted(holds.items())]
    content = {"holds": hold_fields(holds), "checksum": crc32c(repr(rows).encode())}
    return json.dumps(content, indent=1).encode()


@pytest.mark.parametrize(
    ("name", "offset", "age"),
    [
        *(
            ("", 0, None),
            ("a b", 0, None),
            ("ä", 0, None),
            (7, 0, None),
            ("x" * 65, 0, None),
            ("a", -1, None),
        ),
        *(("a", "0", None), ("a", True, None), ("a", 0, -1), ("a", 0, 1.5)),
    ],
)
def test_what_is_no_hold_is_refused(tmp_path, name, offset, age):
    with open_small(tmp_path / "s") as store, pytest.raises(cystore.StoreConfigError, match="hold"):
        store.hold(name, offset, max_age_ms=age)


def test_who_reads_only_sees_holds_and_sets_none(tmp_path):
    with open_small(tmp_path / "s") as store:
        store.hold("archive", 0)
    with cystore.open(tmp_path / "s", read_only=True) as store:
        assert store.holds() == {"archive": Hold(0)}
        with pytest.raises(cystore.StoreNotWritableError):
            store.hold("archive", 1)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b'{"holds": []}', b'{"holds": {"a": 1}}', b'{"holds": {}}', b"[" * 100_000, b"\xff"),
        holds_file({"a": Hold(1)}).replace(b'"physicalOffset": 1', b'"physicalOffset": 2'),
        b'{"holds": {"a": {"physicalOffset": true}}}',
        b'{"holds": {"a": {"physicalOffset": 1, "maxAgeMs": "x"}}}',
    ],
)
def test_what_is_no_file_of_holds_is_refused(data):
    with pytest.raises(ValueError):
        parse_hold_map(data)


def test_a_file_reads_back():
    holds = {"a": Hold(0), "b": Hold(1 << 40, 5)}
    assert parse_hold_map(holds_file(holds)) == holds
