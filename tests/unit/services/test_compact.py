"""Goal: the newest record of each key of a compacted topic is found for as long as it lives, and nothing else is kept.
Method: small stores against a dictionary; the log is cleaned as soon as its segments are compacted."""

from __future__ import annotations

import dataclasses
import os
import shutil

import pytest

import cystore
from cystore import Message, StoreConfig
from cystore.engine.files.compacted_file import HEADER_BYTES, numbers, path_of
from cystore.engine.manifest.compaction_facts import compaction_of, with_compaction
from cystore.engine.manifest.manifest import read_facts, skipped_entries
from cystore.engine.manifest.removed_queues import RemovedQueue
from cystore.verify import verify
from tests.support.small_stores import SETTINGS, open_small
from tests.unit.derived.test_online_damage import BODY_AT, flip

TOPIC = "state"
EXPIRED = {"compacted_topics": "state,many-*", "file_reserved_time_h": 0}


def found_in(store, topic=TOPIC):
    """The state that the store tells, by key: for each key its newest message's body."""
    keys = {key for message in store.compacted(topic) for key in message.keys}
    newest = {key: store.latest(topic, key) for key in keys}
    return {key: bytes(message.body) for key, message in newest.items() if message is not None}


def fill_log(store, bytes_=40_000, topic="other"):
    """Messages of a topic that is not compacted, so that segments end."""
    for _ in range(bytes_ // 1000):
        store.put(topic, bytes(900))
    store.flush()


@pytest.mark.parametrize("round_", range(3))
def test_the_state_is_that_of_a_dictionary(tmp_path, rng, round_):
    model: dict[str, bytes] = {}
    with open_small(tmp_path / "store", **EXPIRED) as store:
        for turn in range(5):
            messages = []
            for number in range(rng.randrange(50, 200)):
                keys = rng.sample([f"schlüssel-{n}" for n in range(40)], rng.choice((1, 1, 1, 2, 5)))
                body = b"" if rng.random() < 0.2 else f"{turn}/{number}".encode()
                messages.append(Message(topic=TOPIC, body=body, keys=keys, queue_id=rng.randrange(3)))
                model.update(dict.fromkeys(keys, body))
                messages.append(Message(topic="other", body=b"x", keys=keys))
            store.put_many(messages)
            if rng.random() < 0.7:
                store.flush()
                store.compact()
            if rng.random() < 0.7:
                store.flush()
                store.clean()
            for key in (f"schlüssel-{n}" for n in range(40)):
                message = store.latest(TOPIC, key)
                assert (b"" if message is None else bytes(message.body)) == model.get(key, b""), key
            assert found_in(store) == {key: body for key, body in model.items() if body}
            offsets = [message.physical_offset for message in store.compacted(TOPIC)]
            assert offsets == sorted(offsets)
    with cystore.open(tmp_path / "store", read_only=True) as store:
        assert found_in(store) == {key: body for key, body in model.items() if body}


def test_a_record_is_kept_as_it_was(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        place = store.put(
            TOPIC, b"body", keys=["a", "b"], tags="t", properties={"p": "ü"}, queue_id=7, flag=3
        )
        fill_log(store)
        before = store.latest(TOPIC, "b")
        assert store.clean().segments
        after = store.latest(TOPIC, "b")
        assert place.physical_offset < store.stats()["min_physical_offset"]
        with pytest.raises(cystore.OffsetError):
            store.read(place.physical_offset)
        names = ("topic", "queue_id", "queue_offset", "physical_offset", "properties", "keys", "tags", "flag",
                 "store_timestamp_ms", "body_crc", "born_host")  # fmt: skip
        assert {name: getattr(after, name) for name in names} == {
            name: getattr(before, name) for name in names
        }
        assert bytes(after.body) == b"body"


def test_nothing_is_cleaned_before_it_is_compacted(tmp_path, monkeypatch):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["a"])
        fill_log(store)
        compactor = store._attached().compactor
        monkeypatch.setattr(compactor, "cover", lambda up_to, **_: None)
        assert store.clean().segments == 0
        assert "compaction" in {need.owner for need in store._attached().cleaner.needs()}
        store.configure(disk_max_used_space_ratio=0)
        assert store.maintenance.clean  # a clean would compact
        monkeypatch.undo()
        assert store.clean().segments


def test_older_records_of_several_keys_do_not_come_back(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"both", keys=["a", "b"])
        store.put(TOPIC, b"", keys=["a"])
        for _ in range(3):
            fill_log(store)
            store.compact()
            store.clean()
            assert store.latest(TOPIC, "a") is None
            assert bytes(store.latest(TOPIC, "b").body) == b"both"
        store.put(TOPIC, b"", keys=["b"])
        fill_log(store)
        assert store.compact().records == 0


def test_an_expired_record_is_gone(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["a"])
        store.put(TOPIC, b"expired", keys=["a"], expires_at_ms=1000)
        store.put(TOPIC, b"lives", keys=["b"], expires_at_ms=1 << 50)
        assert store.latest(TOPIC, "a") is None
        fill_log(store)
        store.clean()
        assert found_in(store) == {"b": b"lives"}
        assert store.compact().keys == 1


def test_only_compacted_topics_and_keys_count(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put("many-1", b"1", keys=["a"])
        store.put("many-2", b"2", keys=["a"])
        store.put("many", b"3", keys=["a"])
        store.put(TOPIC, b"4", unique_key="a")
        store.put(TOPIC, b"5")
        fill_log(store)
        store.clean()
        assert bytes(store.latest("many-1", "a").body) == b"1"
        assert bytes(store.latest("many-2", "a").body) == b"2"
        assert store.latest(TOPIC, "a") is None
        assert store.latest(TOPIC, "x" * 1000) is None
        assert store.compact().records == 2
        for call in (lambda: store.latest("many", "a"), lambda: store.compacted("other")):
            with pytest.raises(cystore.StoreConfigError, match="not compacted"):
                call()
        for key in ("", "a b"):
            with pytest.raises(cystore.MessageIllegalError, match="key"):
                store.latest(TOPIC, key)


def test_a_deleted_topic_is_gone(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["a"])
        fill_log(store)
        store.clean()
        store.delete_topic(TOPIC)
        assert store.latest(TOPIC, "a") is None
        assert list(store.compacted(TOPIC)) == []
        store.put(TOPIC, b"2", keys=["a"])
        assert found_in(store) == {"a": b"2"}


def test_topics_may_change(tmp_path):
    with open_small(tmp_path, file_reserved_time_h=1000) as store:
        with pytest.raises(cystore.StoreConfigError, match="no topic"):
            store.compact()
        store.put(TOPIC, b"1", keys=["a"])
        store.put("later", b"2", keys=["a"])
        store.configure(compacted_topics=TOPIC)
        assert store.compact().keys == 1
        store.configure(compacted_topics=f"later, {TOPIC}")
        assert store.compact().keys == 2
        assert bytes(store.latest("later", "a").body) == b"2"
        for wrong in ("a b", "*", "ü", "x" * 4000, "a*b"):
            with pytest.raises(cystore.StoreConfigError, match="compacted_topics"):
                store.configure(compacted_topics=wrong)
    assert cystore.StoreConfig(compacted_topics=("b", "a*")).compacted_topic_names() == ("a*", "b")


def test_the_service_waits_until_it_is_worth_while(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        assert store.compact_due().done == 0
        store.put(TOPIC, b"1", keys=["a"])
        assert store.compact_due().done == 0
        fill_log(store)
        store.dispatch()
        assert store.maintenance.compact_bytes == 2 * SETTINGS["mapped_file_size_commit_log_bytes"]
        assert store.compact_due().done > 0
        assert store.maintenance.compact_bytes == 0
        assert store.compact_due().done == 0
        assert numbers(tmp_path) == [0]


def test_a_closed_or_read_only_store(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["a"])
        store.compact()
        with cystore.open(tmp_path, read_only=True) as reader:
            assert found_in(reader) == {"a": b"1"}
            with pytest.raises(cystore.StoreNotWritableError):
                reader.compact()
    for call in (
        store.compact,
        store.compact_due,
        lambda: store.latest(TOPIC, "a"),
        lambda: store.compacted(TOPIC),
    ):
        with pytest.raises(cystore.StoreClosedError):
            call()


@pytest.mark.parametrize("part", ["header", "record", "index", "empty", "short"])
def test_a_damaged_file_is_told_and_mended(tmp_path, part):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"gone from the log", keys=["a"])
        store.put(TOPIC, b"gone too", keys=["b"])
        fill_log(store)
        store.clean()
        store.put(TOPIC, b"in the log", keys=["c"])
        store.flush()
        store.compact()
    path = path_of(tmp_path, numbers(tmp_path)[-1])
    data = bytearray(path.read_bytes())
    if part == "empty":
        data = bytearray()
    elif part == "short":
        data = data[:-1]
    else:
        data[{"header": 20, "record": HEADER_BYTES + 100, "index": len(data) - 1}[part]] ^= 1
    os.chmod(path, 0o600)
    path.write_bytes(data)
    assert [damage.kind for damage in verify(tmp_path, cystore.StoreConfig(**SETTINGS))] == ["compacted"]
    with open_small(tmp_path) as store:
        assert bytes(store.latest(TOPIC, "c").body) == b"in the log"
        if part != "empty":
            with pytest.raises(cystore.CorruptRecordError, match="damaged"):
                store.latest(TOPIC, "a")
        done = store.compact()
        assert done.damaged or part == "index"
        kept = {"a": b"gone from the log", "b": b"gone too", "c": b"in the log"}
        if part == "empty":
            kept = {"c": b"in the log"}
        elif part == "record":
            del kept["a"]
        assert found_in(store) == kept
    assert list(verify(tmp_path, cystore.StoreConfig(**SETTINGS))) == []


def test_foreign_names_stay(tmp_path):
    folder = tmp_path / "compacted"
    with open_small(tmp_path, **EXPIRED) as store:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        store.put(TOPIC, b"1", keys=["a"])
        store.compact()
        store.put(TOPIC, b"2", keys=["a"])
        store.flush()
        assert dataclasses.asdict(store.compact())["records"] == 1
        assert {entry.name for entry in folder.iterdir()} == {"0" * 19 + "1", "notes.txt", "reserve"}


def test_a_damaged_record_is_mended_from_the_log(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1" * 500, keys=["a"])
        store.compact()
    path = path_of(tmp_path, numbers(tmp_path)[-1])
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 300] ^= 1
    path.write_bytes(data)
    with open_small(tmp_path) as store:
        assert store.compact().damaged
        assert store.compact().damaged == ()
        fill_log(store)
        store.clean()
        assert found_in(store) == {"a": b"1" * 500}


@pytest.mark.parametrize("grows", [False, True], ids=["shorter", "other records"])
def test_records_of_a_log_that_was_cut_are_gone(tmp_path, grows):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"kept", keys=["b"])
        fill_log(store)
        store.clean()
        cut = store.put(TOPIC, b"2", keys=["a"])
        store.flush()
        assert store.compact().covered > cut.physical_offset
    segment = max((tmp_path / "commitlog").glob("0*"))
    with open(segment, "r+b") as file:
        file.seek(cut.physical_offset - int(segment.name) + 100)
        file.write(b"\xff")
    with open_small(tmp_path, damaged_range="truncate") as store:
        assert store.stats()["wrote"] == cut.physical_offset
        if grows:
            assert store.put("other", b"3", keys=["x"]).physical_offset == cut.physical_offset
            store.put("other", bytes(500))
            store.flush()
        for _ in range(2):
            assert found_in(store) == {"b": b"kept"}
            assert store.latest(TOPIC, "a") is None
            assert store.compact().keys == 1


@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_a_foreign_file_with_a_higher_number_takes_nothing_away(tmp_path, content):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        fill_log(store)
        store.clean()
        path_of(tmp_path, 77).write_bytes(content)
        assert bytes(store.latest(TOPIC, "k").body) == b"1"
        store.compact()
        assert numbers(tmp_path) == [78]
        assert bytes(store.latest(TOPIC, "k").body) == b"1"
    aside = [path.read_bytes() for path in (tmp_path / "quarantine").glob("compacted-*77")]
    assert aside == ([content] if content else [])


@pytest.mark.parametrize("reopened", [False, True])
def test_the_file_of_another_store_with_a_higher_number_is_not_believed(tmp_path, reopened):
    """Seen: its values were given, and the next turn kept them instead of the store's own."""
    with open_small(tmp_path / "another", **EXPIRED) as store:
        for number in range(300):
            store.put(TOPIC, b"foreign", keys=[("k", "foreign")[number % 2]])
        fill_log(store, 60_000)
        store.compact()
        (number,) = numbers(tmp_path / "another")
        foreign = path_of(tmp_path / "another", number).read_bytes()
    path = tmp_path / "store"
    store = open_small(path, **EXPIRED)
    store.put(TOPIC, b"1", keys=["k"])
    fill_log(store)
    store.clean()
    path_of(path, 77).write_bytes(foreign)
    if reopened:
        store.close()
        store = open_small(path, **EXPIRED)
    with store:
        for _ in range(2):
            assert bytes(store.latest(TOPIC, "k").body) == b"1"
            assert store.latest(TOPIC, "foreign") is None
            assert found_in(store) == {"k": b"1"}
            store.put(TOPIC, b"2", keys=["l"])
            store.flush()
            store.compact()
            store.put(TOPIC, b"", keys=["l"])
            store.flush()
        assert numbers(path)[-1] > 77
    assert [one.read_bytes() for one in (path / "quarantine").glob("compacted-*77")] == [foreign]


def test_a_compacted_file_behind_a_lost_log_is_kept_aside(tmp_path):
    """The log is as if it had been cut, so its records count no more; a person may still want the file."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"0", keys=["k0"])
        fill_log(store)
        store.clean()
        store.compact()
    (before,) = [path_of(tmp_path, number).read_bytes() for number in numbers(tmp_path)]
    shutil.rmtree(tmp_path / "commitlog")
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"9", keys=["k9"])
        store.flush()
        store.compact()
    assert before in [path.read_bytes() for path in (tmp_path / "quarantine").glob("compacted-*")]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_name_that_is_taken_is_a_typed_error(tmp_path, make):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        store.flush()
        store.compact()
        taken = path_of(tmp_path, numbers(tmp_path)[-1] + 1)
        make(taken)
        store.put(TOPIC, b"2", keys=["k"])
        store.flush()
        with pytest.raises(cystore.StoreFormatError, match="move away") as error:
            store.compact()
        assert error.value.path == taken
        assert bytes(store.latest(TOPIC, "k").body) == b"2"


def test_a_foreign_file_with_the_last_number_is_a_typed_error(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["k"])
        store.flush()
        store.compact()
        path_of(tmp_path, (1 << 63) - 1).touch()
        store.put(TOPIC, b"2", keys=["k"])
        store.flush()
        with pytest.raises(cystore.StoreFormatError, match="move it away"):
            store.compact()


def test_an_open_handle_learns_that_a_topic_is_compacted_since(tmp_path):
    with open_small(tmp_path, **{**EXPIRED, "compacted_topics": "a"}) as store:
        store.put("a", b"a", keys=["k"])
        store.put("b", b"b", keys=["k"])
        fill_log(store)
        store.compact()
        assert store.latest("a", "none") is None
        store.configure(compacted_topics="a,b")
        assert [bytes(message.body) for message in store.compacted("b")] == [b"b"]
        store.compact()
        store.clean()
        assert bytes(store.latest("b", "k").body) == b"b"
        assert [bytes(message.body) for message in store.compacted("b")] == [b"b"]


def test_a_clean_during_the_walk_hides_nothing(tmp_path, monkeypatch):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"1", keys=["a"])
        fill_log(store)
        store.compact()
        store.put(TOPIC, b"2", keys=["a"])
        store.put(TOPIC, b"3", keys=["b"])
        fill_log(store)
        newest = store._attached().compactor.in_force.newest
        cleaned = []

        def before_a_clean():
            found = newest()
            if not cleaned:
                cleaned.append(True)
                monkeypatch.undo()
                cleaned.append(store.clean().segments)
            return found

        monkeypatch.setattr(store._attached().compactor.in_force, "newest", before_a_clean)
        assert [bytes(message.body) for message in store.compacted(TOPIC)] == [b"2", b"3"]
        assert cleaned[1]


def test_a_damaged_newest_record_is_not_passed_over(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"older", keys=["k"])
        at = store.put(TOPIC, b"newer", keys=["k"]).physical_offset
        store.dispatch()
        flip(tmp_path, at + BODY_AT)
        with pytest.raises(cystore.CorruptRecordError):
            store.latest(TOPIC, "k")


def test_a_topic_that_is_deleted_while_it_is_not_compacted_is_gone(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"old", keys=["k"])
        store.flush()
        store.compact()
        store.configure(compacted_topics="many-*")
        store.delete_topic(TOPIC)
        fill_log(store)
        store.clean()
        store.configure(compacted_topics=EXPIRED["compacted_topics"])
        assert store.latest(TOPIC, "k") is None
        store.compact()
        assert list(store.compacted(TOPIC)) == []


def test_a_turn_names_the_damage_that_was_found_before(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        at = store.put(TOPIC, b"newer", keys=["k"]).physical_offset
        flip(tmp_path, at + BODY_AT)
        store.put(TOPIC, b"other", keys=["l"])
        store.dispatch()
        fill_log(store)
        assert store.compact().damaged != ()


@pytest.mark.parametrize("name", ["", "\ud800", "nul\0nul", "a b", "a/b", "..", "é", "x" * 128, "two\nlines"])
def test_a_name_of_no_topic_is_refused_before_it_is_kept(tmp_path, name):
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"value", keys=["k"])
        store.compact()
        before = read_facts(tmp_path)
        for call in (
            lambda: store.delete_topic(name),
            lambda: store.configure(compacted_topics=f"state,{name or '*'}"),
            lambda: store.groups.commit("group", name, 0, 0),
            lambda: store.groups.commit(name, TOPIC, 0, 0),
            lambda: store.groups.reset("group", name, "first"),
            lambda: store.dispatchers.add(name, print),
        ):
            with pytest.raises(cystore.StoreError):
                call()
        assert read_facts(tmp_path) == before
        store.compact()
        store.clean()
        assert found_in(store) == {"k": b"value"}


@pytest.mark.parametrize("name", ["\ud800", "nul\0nul", "", "a b"])
def test_a_kept_name_of_no_topic_stops_nothing_and_is_told(tmp_path, name):
    """Earlier versions took each text as the name of a topic to delete."""
    with open_small(tmp_path, **EXPIRED) as store:
        store.put(TOPIC, b"value", keys=["k"])
        store.compact()
        manifest = store._attached().manifest
        manifest.update(
            lambda facts: with_compaction(facts, compaction_of(facts).with_deleted(name, 1 << 20))
        )
        manifest.remove_queues([RemovedQueue(name, 0, 5, 0)])
        manifest.give_up(name, 0, 1, 2)
    with open_small(tmp_path, **EXPIRED) as store:
        store.compact()
        fill_log(store)
        store.flush()
        store.clean()
        assert store.delete_topic("other").queues == 1
        assert store.latest(TOPIC, "k").body == b"value" and found_in(store) == {"k": b"value"}
        assert f"a deletion of topic {name!a}" in skipped_entries(tmp_path)
    (told,) = [found for found in verify(tmp_path, StoreConfig(**SETTINGS)) if found.kind == "manifest"]
    assert ascii(name) in told.reason and told.path == tmp_path / "manifest"


def test_a_kept_name_of_no_topic_is_forgotten_with_the_log_that_it_was_about(tmp_path):
    with open_small(tmp_path, **EXPIRED) as store:
        store._attached().manifest.update(
            lambda facts: with_compaction(facts, compaction_of(facts).with_deleted("a b", 1))
        )
        assert skipped_entries(tmp_path)
        fill_log(store)
        store.flush()
        store.clean()
        fill_log(store)
        store.flush()
        store.compact()
        assert not skipped_entries(tmp_path)
