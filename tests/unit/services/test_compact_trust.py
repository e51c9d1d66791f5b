"""Goal: compaction gives no value that is known to be outdated, and reports values that may be. Method: small
stores whose topics, files and records are taken away between two turns."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

import cystore
from cystore.engine.files.compacted_file import HEADER_BYTES, numbers, path_of
from cystore.metrics import metrics
from cystore.services.compact.compactor import Compactor
from cystore.services.compact.selection import Selection
from cystore.verify import verify
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small
from tests.unit.derived.test_online_damage import BODY_AT, flip
from tests.unit.services.test_compact import EXPIRED, TOPIC, fill_log, found_in

pytestmark = pytest.mark.unsanitized  # about files that are believed; test_compact.py has the kernels' way

VERIFIED = cystore.StoreConfig(**SETTINGS)


def clean_away(store):
    """Ends the segments of all messages so far, and removes them."""
    fill_log(store)
    store.dispatch()
    store.clean()


def copies(path):
    return sorted(entry.name for entry in (path / "quarantine").glob("compacted-*"))


def damage_of(path):
    return [(found.kind, found.reason) for found in verify(path, VERIFIED)]


@pytest.mark.parametrize("meanwhile", ["", "other-*"], ids=["nothing", "another topic"])
@pytest.mark.parametrize("back", ["state", "sta*"])
def test_values_from_before_a_gap_do_not_come_back(tmp_path, meanwhile, back):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.put(TOPIC, b"not overwritten, but who knows", keys=["l"])
        store.flush()
        store.compact()
        store.configure(compacted_topics=meanwhile)
        store.put(TOPIC, b"newer", keys=["k"])
        clean_away(store)
        store.put(TOPIC, b"in the log", keys=["m"])
        store.configure(compacted_topics=back)
        for _ in range(2):
            assert store.latest(TOPIC, "k") is None
            assert found_in(store) == {"m": b"in the log"}
            store.flush()
            assert store.compact().damaged == ()
        assert bool(copies(tmp_path)) == (meanwhile == "")
        store.put(TOPIC, b"again", keys=["k"])
        clean_away(store)
        assert found_in(store) == {"k": b"again", "m": b"in the log"}
        assert store.latest(TOPIC, "x", certain=True) is None
    assert damage_of(tmp_path) == []


def test_a_gap_that_begins_during_a_turn(tmp_path, monkeypatch):
    """Another process ends compaction for a moment, and cleans, while a turn reads the log."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.flush()
        store.compact()
        fill_log(store)
        store.put(TOPIC, b"newer", keys=["k"])
        fill_log(store)
        store.dispatch()
        take_log = Selection.take_log

        def after_a_clean(self, begin, end, report=None):
            monkeypatch.undo()
            store.configure(compacted_topics="")
            assert store.clean().segments
            store.configure(compacted_topics=TOPIC)
            take_log(self, begin, end, report)

        monkeypatch.setattr(Selection, "take_log", after_a_clean)
        store.compact()
        assert store.latest(TOPIC, "k") is None
        assert found_in(store) == {}


def test_a_gap_between_the_look_and_the_turn(tmp_path, monkeypatch):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.flush()
        store.compact()
        store.put(TOPIC, b"newer", keys=["k"])
        fill_log(store)
        store.dispatch()
        compactor = store._attached().compactor
        settle = compactor._settle

        def before_a_clean():
            verdict = settle()
            monkeypatch.undo()
            store.configure(compacted_topics="")
            assert store.clean().segments
            store.configure(compacted_topics=TOPIC)
            return verdict

        monkeypatch.setattr(compactor, "_settle", before_a_clean)
        store.compact()
        assert store.latest(TOPIC, "k") is None


def test_a_gap_on_a_full_disk_needs_no_copy(tmp_path, monkeypatch):
    def full(*_):
        raise cystore.StoreFullError("full")

    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.flush()
        store.compact()
        store.configure(compacted_topics="")
        clean_away(store)
        store.configure(compacted_topics=TOPIC)
        monkeypatch.setattr("cystore.services.compact.compactor.put_aside", full)
        fill_log(store)
        assert store.clean().segments
        assert copies(tmp_path) == []


def test_a_missing_file_is_told_by_all(tmp_path, caplog):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"only there", keys=["k"])
        clean_away(store)
        store.put(TOPIC, b"in the log", keys=["l"])
        assert store.stats()["compacted_missing"] == 0
    (number,) = numbers(tmp_path)
    shutil.rmtree(tmp_path / "compacted")
    assert damage_of(tmp_path)[0][0] == "compacted"
    assert "missing" in damage_of(tmp_path)[0][1]
    caplog.clear()
    with open_small(tmp_path) as store:
        assert [record.levelno for record in caplog.records if "is missing" in record.message] == [
            logging.ERROR
        ]
        assert store.stats()["compacted_missing"] == 1
        assert bytes(store.latest(TOPIC, "l").body) == b"in the log"
        for call in (lambda: store.latest(TOPIC, "k"), lambda: store.compacted(TOPIC)):
            with pytest.raises(cystore.CorruptRecordError, match="missing") as error:
                call()
            assert error.value.path == path_of(tmp_path, number)
        with cystore.open(tmp_path, read_only=True) as reader:
            with pytest.raises(cystore.CorruptRecordError, match="missing"):
                reader.latest(TOPIC, "k")
            fill_log(store)
            done = store.clean()  # which compacts what the log still has
            assert done.segments
            assert store.latest(TOPIC, "k") is None
            assert reader.latest(TOPIC, "k") is None
        with pytest.raises(cystore.CorruptRecordError, match="uncertain"):
            store.latest(TOPIC, "k", certain=True)
        assert found_in(store) == {"l": b"in the log"}
        stats = store.stats()
        assert stats["compacted_missing"] == 0
        assert stats["compacted_damaged"] == 1
        assert stats["compacted_uncertain_below"] > 0
    assert numbers(tmp_path)[-1] > number
    assert damage_of(tmp_path) == []


@pytest.mark.parametrize("turn", ["compact_due", "clean_due"])
def test_a_service_begins_anew_at_once(tmp_path, turn):
    """Otherwise `latest` of a key that was never put would be an error until a segment is full."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        clean_away(store)
        store.compact()
        (number,) = numbers(tmp_path)
        shutil.rmtree(tmp_path / "compacted")
        with pytest.raises(cystore.CorruptRecordError, match="missing"):
            store.latest(TOPIC, "new")
        assert store._attached().cleaner.is_due()
        getattr(store, turn)()
        assert numbers(tmp_path) == [number + 1]
        assert store.latest(TOPIC, "new") is None
        assert store.stats()["compacted_damaged"] == 1


def test_nothing_is_lost_with_the_file_while_the_log_has_all(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        store.flush()
        store.compact()
        shutil.rmtree(tmp_path / "compacted")
        assert found_in(store) == {"k": b"1"}
        assert store.latest(TOPIC, "x") is None
        assert any("missing" in what for what in store.compact().damaged)
        assert bytes(store.latest(TOPIC, "k", certain=True).body) == b"1"


def test_an_older_file_that_is_put_back_is_not_believed(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.flush()
        store.compact()
        (number,) = numbers(tmp_path)
        before = path_of(tmp_path, number).read_bytes()
        store.put(TOPIC, b"newer", keys=["k"])
        clean_away(store)
        shutil.rmtree(tmp_path / "compacted")
        (tmp_path / "compacted").mkdir()
        path_of(tmp_path, number).write_bytes(before)
        with pytest.raises(cystore.CorruptRecordError, match="missing"):
            store.latest(TOPIC, "k")
        assert "missing" in damage_of(tmp_path)[0][1]
        assert any("missing" in what for what in store.compact().damaged)
        assert store.latest(TOPIC, "k") is None
        assert len(copies(tmp_path)) == 1


def test_the_file_of_another_store_is_not_believed(tmp_path):
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        with open_small(path, **EXPIRED) as store:
            store.put(TOPIC, path.name.encode(), keys=["k"])
            clean_away(store)
    names = [path_of(path, numbers(path)[-1]) for path in paths]
    assert names[0].name == names[1].name
    os.replace(names[1], names[0])
    assert [reason for _, reason in damage_of(paths[0])] == [
        "the header: another file has the name of the compacted file that the manifest knows"
    ]
    with open_small(paths[0]) as store:
        with pytest.raises(cystore.CorruptRecordError, match="missing"):
            store.latest(TOPIC, "k")
        assert any("missing" in what for what in store.compact().damaged)
        assert store.latest(TOPIC, "k") is None
        assert len(copies(paths[0])) == 1
    assert damage_of(paths[0]) == []


@pytest.mark.parametrize("grows", [False, True], ids=["shorter", "other records"])
def test_the_file_of_a_killed_turn_is_cut_with_the_log(tmp_path, monkeypatch, grows):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"kept", keys=["b"])
        clean_away(store)
        cut = store.put(TOPIC, b"lost", keys=["a"])
        store.put(TOPIC, bytes(99), keys=["c"])
        store.flush()
        store.dispatch()
        with monkeypatch.context() as patch:
            patch.setattr(Compactor, "_enter", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                store.compact()
    segment = max((tmp_path / "commitlog").glob("0*"))
    with segment.open("r+b") as file:
        file.seek(cut.physical_offset - int(segment.name) + BODY_AT)
        file.write(b"x")
    with open_small(tmp_path, damaged_range="truncate") as store:
        assert store.stats()["wrote"] == cut.physical_offset
        expected = {"b": b"kept"}
        if grows:
            store.put(TOPIC, b"new", keys=["z"])
            store.put("other", bytes(500))
            store.flush()
            expected["z"] = b"new"
        for _ in range(2):
            assert found_in(store) == expected
            clean_away(store)


def test_the_manifest_knows_the_file_whose_header_is_damaged(tmp_path):
    """Where the records end and the index begins, up to where the log is covered."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        clean_away(store)
        path = path_of(tmp_path, numbers(tmp_path)[-1])
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        os.chmod(path, 0o600)
        path.write_bytes(data)
    with open_small(tmp_path) as store:
        assert found_in_list(store) == {"k": b"1"}
        done = store.compact()
        assert len(done.damaged) == 1
        assert done.uncertain_below == 0
        store.configure(compacted_topics="")


@pytest.mark.parametrize("length", [0, HEADER_BYTES, HEADER_BYTES + 200])
def test_a_file_that_was_cut_makes_its_values_uncertain(tmp_path, length):
    with open_small(tmp_path, **EXPIRED) as store:
        for key in "abc":
            store.put(TOPIC, b"1", keys=[key])
        clean_away(store)
        os.truncate(path_of(tmp_path, numbers(tmp_path)[-1]), length)
    with open_small(tmp_path) as store:
        assert store.compact().damaged
        assert store.latest(TOPIC, "c") is None
        with pytest.raises(cystore.CorruptRecordError, match="uncertain"):
            store.latest(TOPIC, "c", certain=True)


def found_in_list(store):
    return {key: bytes(one.body) for one in store.compacted(TOPIC) for key in one.keys}


def test_a_log_that_began_anew_is_compacted_before_it_is_cleaned(tmp_path):
    """The file of the lost log covers more than the new log has; cleaning must not rely on it."""
    with open_small(tmp_path, **EXPIRED) as store:
        for _ in range(3):
            fill_log(store)
        store.put(TOPIC, b"of the lost log", keys=["k"])
        store.flush()
        store.compact()
    shutil.rmtree(tmp_path / "commitlog")
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"of the new log", keys=["n"])
        fill_log(store)
        store.dispatch()
        store.clean()
        assert store.stats()["min_physical_offset"] >= LOG_BYTES
        assert found_in(store) == {"n": b"of the new log"}


def test_values_of_a_lost_log_do_not_come_back_with_a_new_one(tmp_path):
    """The new log grows, and is cleaned, to the offset that the file covers; no turn runs meanwhile."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"of the lost log", keys=["k"])
        fill_log(store, 2 * LOG_BYTES)
        store.compact(LOG_BYTES)
        assert store.stats()["compacted_up_to"] == LOG_BYTES
    shutil.rmtree(tmp_path / "commitlog")
    with open_small(tmp_path) as store:
        assert store.latest(TOPIC, "k") is None
        store.configure(compacted_topics="")
        store.put(TOPIC, b"of the new log", keys=["k"])
        fill_log(store, 2 * LOG_BYTES)
        store.dispatch()
        assert store.clean(1).segments == 1
        assert store.stats()["min_physical_offset"] == LOG_BYTES
        store.configure(compacted_topics=TOPIC)
        assert store.latest(TOPIC, "k") is None
        assert found_in(store) == {}
        store.compact()
        assert found_in(store) == {}


@pytest.mark.parametrize("compacts", [True, False], ids=["a turn passes the damage", "no turn"])
def test_a_value_before_a_damaged_record_is_uncertain(tmp_path, compacts):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"older", keys=["k"])
        store.flush()
        assert store.compact().uncertain_below == 0
        at = store.put(TOPIC, b"newer", keys=["k"]).physical_offset
        flip(tmp_path, at + BODY_AT)
        behind = store.put(TOPIC, b"behind", keys=["l"]).physical_offset
        fill_log(store)
        store.dispatch()
        if compacts:
            done = store.compact()
            assert done.uncertain_below == behind
            assert len(done.damaged) == 1
            store.clean()
        assert bytes(store.latest(TOPIC, "k").body) == b"older"
        for key in ("k", "x"):
            with pytest.raises(cystore.CorruptRecordError, match="uncertain"):
                store.latest(TOPIC, key, certain=True)
        assert bytes(store.latest(TOPIC, "l", certain=True).body) == b"behind"
        assert store.stats()["compacted_uncertain_below"] == behind
        store.put(TOPIC, b"certain", keys=["k"])
        assert bytes(store.latest(TOPIC, "k", certain=True).body) == b"certain"
        fill_log(store)
        assert store.compact().uncertain_below == behind
        assert store.stats()["compacted_damaged"] == 1


def test_damage_that_was_repaired_makes_nothing_uncertain(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        at = store.put(TOPIC, b"2", keys=["k"]).physical_offset
        store.put(TOPIC, b"3", keys=["l"])
        store.dispatch()
        store.flush()
        flip(tmp_path, at + BODY_AT)
        assert store.compact().uncertain_below > at
        flip(tmp_path, at + BODY_AT)
        assert store.compact().uncertain_below == 0
        assert bytes(store.latest(TOPIC, "k", certain=True).body) == b"2"


def test_a_damaged_record_of_the_file_makes_values_before_it_uncertain(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"both", keys=["a", "b"])
        store.put(TOPIC, b"", keys=["a"])
        behind = store.put(TOPIC, b"behind", keys=["l"]).physical_offset
        clean_away(store)
    path = path_of(tmp_path, numbers(tmp_path)[-1])
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 4], "big")
    data[HEADER_BYTES + first + 50] ^= 1
    os.chmod(path, 0o600)
    path.write_bytes(data)
    with open_small(tmp_path) as store:
        assert store.compact().uncertain_below == behind
        assert bytes(store.latest(TOPIC, "a").body) == b"both"
        with pytest.raises(cystore.CorruptRecordError, match="uncertain"):
            store.latest(TOPIC, "a", certain=True)
        assert bytes(store.latest(TOPIC, "l", certain=True).body) == b"behind"


@pytest.mark.parametrize("call", ["latest", "compacted"])
def test_a_pattern_is_no_topic(tmp_path, call):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put("many-1", b"1", keys=["k"])
        with pytest.raises(cystore.MessageIllegalError, match="pattern"):
            getattr(store, call)("many-*", *(["k"] if call == "latest" else []))


def test_numbers_of_compaction(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        assert {name: value for name, value in store.stats().items() if name.startswith("compacted_")} == {
            **dict.fromkeys(
                ("compacted_records", "compacted_keys", "compacted_bytes", "compacted_up_to", "compacted_missing",
                 "compacted_behind_bytes", "compacted_last_turn_ms", "compacted_uncertain_below",
                 "compacted_damaged"), 0,
            ),
            "compacted_dead_ratio": 0.0,
        }  # fmt: skip
        for number in range(10):
            store.put(TOPIC, b"%d" % number, keys=[f"k{number % 2}", "k"])
            store.put("other", b"", keys=["k"])
        assert store.stats()["compacted_behind_bytes"] == store.stats()["wrote"]
        store.flush()
        done = store.compact()
        stats = store.stats()
        assert (stats["compacted_records"], stats["compacted_keys"]) == (2, 3)
        assert stats["compacted_dead_ratio"] == pytest.approx(0.8)
        assert stats["compacted_bytes"] == done.size_bytes
        assert stats["compacted_up_to"] == done.covered == stats["wrote"]
        assert stats["compacted_last_turn_ms"] > 0
        assert stats["compacted_behind_bytes"] == 0
        found = {metric.name: metric.samples for metric in metrics(store)}
        assert found["cystore_compacted_records"] == [({}, 2)]
        assert found["cystore_compacted_missing"] == [({}, 0)]


def test_a_slave_or_a_private_reader_reads_the_numbers(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        store.compact()
    with cystore.open(tmp_path, read_only=True) as reader:
        assert reader.stats()["compacted_keys"] == 1


def scrub_round(store, size=4096):
    found = [store.scrub(size)]
    while found[-1].more:
        found.append(store.scrub(size))
    return [damage for one in found for damage in one.damage]


@pytest.mark.parametrize("part", ["record", "index", "header", "missing"])
def test_the_scrub_reads_the_compacted_file(tmp_path, part):
    with open_small(tmp_path, **EXPIRED) as store:
        for number in range(30):
            store.put(TOPIC, bytes(500), keys=[f"k{number}"])
        clean_away(store)
        assert scrub_round(store) == []
        path = path_of(tmp_path, numbers(tmp_path)[-1])
        data = bytearray(path.read_bytes())
        os.chmod(path, 0o600)
        if part == "missing":
            path.unlink()
        else:
            data[{"record": HEADER_BYTES + 13_000, "index": len(data) - 1, "header": 20}[part]] ^= 1
            path.write_bytes(data)
        assert [damage.kind for damage in scrub_round(store)] == ["compacted"]


def test_the_next_file_has_its_space(tmp_path):
    """And takes no more than it needs; a store that compacts no longer gives the space back."""
    reserve = tmp_path / "compacted" / "reserve"

    def taken(path):
        return path.stat().st_blocks * 512

    with open_small(tmp_path, **EXPIRED) as store:
        for round_ in range(3):
            for number in range(100):
                store.put(TOPIC, bytes(900 - 100 * round_), keys=[f"k{number}"])
            store.flush()
            store.compact()
            path = path_of(tmp_path, numbers(tmp_path)[-1])
            length = path.stat().st_size
            assert length <= taken(path) <= length + 8192
            assert taken(reserve) >= length
        reserve.write_bytes(b"left by a turn that was killed" * 10_000)
        store.put(TOPIC, b"newer", keys=["k0"])
        store.flush()
        store.compact()
        assert bytes(store.latest(TOPIC, "k0").body) == b"newer"
        store.configure(compacted_topics="")
        clean_away(store)
        assert not reserve.exists()
    assert damage_of(tmp_path) == []
