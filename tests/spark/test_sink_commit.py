"""Goal: each batch of a named sink is in the log once and whole, whatever is killed when, and a bad row or option is
refused with its name before anything is appended. Method: the sink's tasks and commits as Spark calls them, without a
JVM; SIGKILL at failpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

import pyarrow as pa

import cystore
from cystore.errors import (
    MessageIllegalError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
)
from cystore.spark.sink import commit, sinks
from cystore.spark.sink.sinks import FOLDER, RANGES_MAX, SinkNote
from cystore.spark.sink.staged_rows import KEEP_MS, TaskMessage
from cystore.spark.sink.write_options import parse_write
from tests.support.process import Process
from tests.support.small_stores import SETTINGS
from tests.support.spark.writers import ROW, numbers, rows, stage, stream_batch, writer


def written(store: Path) -> dict[int, list[int]]:
    with cystore.open(store, **SETTINGS) as opened:
        return numbers(opened)


def staged(store: Path) -> list[Path]:
    return list(store.parent.rglob("*.rows"))


def note_of(store: Path) -> Path:
    (note,) = (store / FOLDER).glob("*.json")
    return note


def batch_of(store: Path, tasks: list[list[pa.RecordBatch]], **options: Any) -> None:
    made = writer(store, stream=False, **options)
    made.commit(stage(made, tasks))


def in_order(first: int, behind: int, *, swapped: bool) -> list[list[int]]:
    """Both queues of [first, behind), the second half before the first where tasks were swapped."""
    middle = (first + behind) // 2
    order = [*range(middle, behind), *range(first, middle)] if swapped else [*range(first, behind)]
    return [[number for number in order if number % 2 == queue] for queue in (0, 1)]


# Before the batch has begun; inside of a put that spans segments, and between puts; at its end.
BEFORE = ("files.written:1", "files.replaced:1")
PLACES = (
    "sink.begun",
    "sink.chunk:4",
    "append.before_publish:6",
    "append.published:5",
    "sink.appended",
    "sink.ended",
)
MORE = (
    "sink.chunk:1",
    "append.published:1",
    "append.before_publish:1",
    "append.next_set:40",
    "append.published:8",
)


@pytest.mark.parametrize(
    ("before", "behind"), [(BEFORE[1:], PLACES), pytest.param(BEFORE, MORE, marks=pytest.mark.slow)]
)
def test_a_killed_commit_is_finished_by_the_repeated_batch(build_environment, tmp_path, before, behind):
    """Every message once, in each queue in the order in which the batch was staged when it began."""
    reached = []
    with Process(build_environment("failpoints")) as process:
        process.do("from tests.support.spark.writers import killed_then_repeated as run")
        for place in (*before, *behind):
            folder = tmp_path / place.replace(":", "-")
            folder.mkdir()
            told = process.do("run(folder, place)", folder=str(folder), place=place)
            found = [told["numbers"]["0"], told["numbers"]["1"]]
            expected = [
                [
                    [*old, *batch, *new]
                    for old, batch, new in zip(
                        in_order(0, 100, swapped=False),
                        in_order(100, 300, swapped=swapped),
                        in_order(300, 310, swapped=False),
                        strict=True,
                    )
                ]
                for swapped in (False, True)
            ]
            assert found in (expected if place in before else expected[:1]), place
            assert not told["left"], place
            if told["code"] == -9:
                reached.append(place)
    assert set(reached) >= set(behind)


def test_a_repeated_batch_is_not_appended_again(tmp_path):
    store = tmp_path / "store"
    for batch in (0, 0, 1, 1, 1):
        stream_batch(store, batch, [[rows(100 * batch, 50)], [rows(100 * batch + 50, 50)]])
    assert written(store) == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}
    assert not staged(store)
    stream_batch(store, 0, [[rows(0, 4)]], sinkId="another")
    assert written(store)[0] == [*range(0, 200, 2), 0, 2]


def test_an_empty_batch_changes_nothing(tmp_path):
    store = tmp_path / "store"
    stream_batch(store, 0, [[], [rows(0, 0)]])
    stream_batch(store, 1, [])
    assert written(store) == {}
    stream_batch(store, 1, [[rows(0, 2)]])
    assert written(store) == {0: [0], 1: [1]}


def test_a_missing_task_message_refuses_the_commit(tmp_path):
    store = tmp_path / "store"
    for made, more in ((writer(store, stream=False), ()), (writer(store, stream=True, sinkId="s"), (0,))):
        told = stage(made, [[rows(0, 10)], [rows(10, 10)]])
        with pytest.raises(
            StoreError, match=r"1 of 3 tasks did not report .* \(task 1\): nothing was written"
        ):
            made.commit([told[0], None, told[1]], *more)
        assert not store.exists()
        assert len(staged(store)) == 2
        if more:
            assert stage(made, [[rows(20, 10)]])[0].staged, "of another job under the same name"
        made.abort([told[0], None, told[1]], *more)
        assert len(staged(store)) == len(more)


def test_a_version_of_an_application_is_written_once(tmp_path):
    store, app = tmp_path / "store", {"txnAppId": "nightly"}
    for version, first in ((5, 0), (5, 0), (7, 10), (6, 20), (5, 0), (6, 20)):
        batch_of(store, [[rows(first, 10)]], txnVersion=version, **app)
    assert written(store)[0] == [*range(0, 20, 2), *range(20, 30, 2)]
    assert json.loads(note_of(store).read_text())["appended"] == [[5, 7]]
    for _ in range(2):
        batch_of(store, [[rows(0, 2)]])
    assert written(store)[0][-2:] == [0, 0], "without a version a repeated write is written again"
    assert not staged(store)


def test_an_application_finishes_what_it_began_before(tmp_path):
    """A version that was left half-way and never repeated is whole before the next one begins."""
    store = tmp_path / "store"
    batch_of(store, [[rows(0, 10)]], txnAppId="a", txnVersion=1)
    made = writer(store, stream=False, txnAppId="a", txnVersion=2)
    told = stage(made, [[rows(10, 20)]])
    with cystore.open(store, **SETTINGS) as opened:
        opened.set_writable(False)  # as a disk that is full: the batch has begun, nothing can be appended
        with pytest.raises(StoreError, match="switched off"):
            made.commit(told)
        made.abort(told)
        assert len(staged(store)) == 1, "what has begun is kept"
        opened.set_writable(True)
        batch_of(store, [[rows(30, 10)]], txnAppId="a", txnVersion=3)
        assert numbers(opened) == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}
    assert not staged(store)


def test_what_killed_jobs_staged_is_removed(tmp_path):
    store = tmp_path / "store"
    stage(writer(store, stream=True, sinkId="sink"), [[rows(0, 10)]])
    stage(writer(store, stream=True, sinkId="other"), [[rows(0, 10)]])
    stage(writer(store, stream=False), [[rows(0, 10)]])
    dead = writer(store, stream=False)
    stage(dead, [[rows(0, 10)]])
    for path in (dead._folder, *dead._folder.iterdir()):
        old_ns = path.stat().st_mtime_ns - (KEEP_MS + 60_000) * 1_000_000
        os.utime(path, ns=(old_ns, old_ns))
    stream_batch(store, 0, [[rows(0, 10)]])
    assert len(staged(store)) == 2, "another sink's and those of a job that may be at work stay"
    assert not dead._folder.exists()


def test_a_batch_that_cannot_be_the_next_is_refused(tmp_path):
    store = tmp_path / "store"
    made = writer(store, stream=True, sinkId="sink")

    def commit(batch: int, query: str) -> None:
        (told,) = stage(made, [[rows(0, 2)]])
        made.commit([TaskMessage(0, told.staged, told.largest_bytes, query)], batch)

    commit(0, "q1")
    commit(1, "q1")
    with pytest.raises(
        StoreConfigError, match="belongs to query q1, whose last batch is 1; but this is query q2"
    ):
        commit(2, "q2")
    with pytest.raises(StoreConfigError, match="batch 0 of sinkId sink follows batch 1"):
        commit(0, "q1")
    commit(1, "q1")
    assert written(store)[0] == [0, 0]


def test_staged_files_that_are_gone_or_damaged_are_told(tmp_path):
    store = tmp_path / "store"
    for harm, error, text in (
        (Path.unlink, StoreIOError, "a staged file is missing: the driver and every executor must share"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-9]),
            StoreIOError,
            "a task staged .* bytes, but the file has",
        ),
        (
            lambda path: path.write_bytes(b"\0" * path.stat().st_size),
            StoreFormatError,
            "damaged|has 0 rows, not 10",
        ),
    ):
        made = writer(store, stream=False)
        told = stage(made, [[rows(0, 10)]])
        harm(staged(store)[0])
        with pytest.raises(error, match=text):
            made.commit(told)
        made.abort(told)
    assert written(store) == {}


def interrupted(monkeypatch: pytest.MonkeyPatch, store: Path, place: str) -> None:
    """A first batch of 100 rows that Ctrl-C ends at a failpoint."""

    def interrupt(name: str) -> None:
        if name == place:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commit, "failpoint", interrupt)
        patched.setattr(commit, "CHUNK_ROWS", 40)
        with pytest.raises(KeyboardInterrupt):
            stream_batch(store, 0, [[rows(0, 100)]])


def test_a_begun_batch_whose_files_are_gone(monkeypatch, tmp_path):
    """With no record in the log it begins again; with some of them nobody can tell which are missing."""
    for place, there in (("sink.begun", 0), ("sink.chunk", 40)):
        store = tmp_path / place / "store"
        interrupted(monkeypatch, store, place)
        for path in staged(store):
            path.unlink()
        if there:
            with pytest.raises(
                StoreIOError, match=r"batch 0 of sinkId sink has 40 of 100 records, .* are gone"
            ):
                stream_batch(store, 0, [[rows(0, 100)]])
            note_of(store).unlink()  # what the error says
        stream_batch(store, 0, [[rows(0, 100)]])
        assert sorted(number for queue in written(store).values() for number in queue) == sorted(
            [*range(there), *range(100)]
        )


def test_a_begun_batch_whose_part_of_the_log_was_cleaned_is_not_guessed(monkeypatch, tmp_path):
    store = tmp_path / "store"
    interrupted(monkeypatch, store, "sink.begun")
    with cystore.open(store, **SETTINGS) as opened:
        opened.configure(file_reserved_time_h=0)
        opened.put_many([cystore.Message(topic="other", body=bytes(900)) for _ in range(60)], flush="sync")
        opened.dispatch()
        assert opened.clean().segments
    with pytest.raises(StoreConfigError, match="began in a part of the log that was cleaned since"):
        stream_batch(store, 0, [[rows(0, 100)]])
    assert written(store) == {}


# ------------------------------------------------------------------------------------ refused at the commit


FEW = {"cystore.max_queues": "8"}


def in_topics(first: int, count: int, topics: int) -> pa.RecordBatch:
    """Messages that tell their number, the last `topics` of them in a topic each."""
    named = [
        f"new{number}" if number >= first + count - topics else "T" for number in range(first, first + count)
    ]
    columns = [named, [0] * count, [b"%d" % number for number in range(first, first + count)]]
    return pa.record_batch(columns, schema=ROW)


def bodies(store: Path) -> list[int]:
    with cystore.open(store, **SETTINGS) as opened:
        return [int(bytes(message.body)) for message in opened.scan()]


@pytest.mark.parametrize("name", [{}, {"txnAppId": "nightly", "txnVersion": 7}])
def test_rows_for_too_many_new_queues_leave_nothing(monkeypatch, tmp_path, name):
    store = tmp_path / "store"
    monkeypatch.setattr(commit, "CHUNK_ROWS", 32)
    batch_of(store, [[rows(0, 10)]], **FEW)
    made = writer(store, stream=False, **name, **FEW)
    told = stage(made, [[in_topics(100, 100, 0)], [in_topics(200, 100, 7)]])
    with pytest.raises(
        StoreFullError, match=r"need 7 new queues, and 6 of 8 \(max_queues\) are free; nothing was w"
    ):
        made.commit(told)
    made.abort(told)
    assert bodies(store) == [*range(10)]
    assert not staged(store)
    later = {**name, "txnVersion": 8} if name else {}
    batch_of(store, [[in_topics(10, 10, 6)]], **later, **FEW)
    assert bodies(store) == [*range(20)], "nothing blocks the next write"


def light_rows(value: str, topic: str = "T") -> pa.RecordBatch:
    schema = pa.schema([*ROW, ("properties", pa.map_(pa.string(), pa.string()))])
    return pa.record_batch([[topic], [0], [b"0"], [[("INNER_MULTI_DISPATCH", value)]]], schema=schema)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (
            "%LMQ%a,%LMQ%b,%LMQ%c",
            StoreFullError,
            r"need 3 new light queues, and the store has 0; at most max_lmq_consume_queue_num = 2",
        ),
        ("%LMQ%" + ",%LMQ%".join(map(str, range(300))), MessageIllegalError, "at most 256 different names"),
        ("a", MessageIllegalError, "must be at most 256 different names like %LMQ%name"),
        ("%LMQ%a,%LMQ%a", MessageIllegalError, "different names"),
        ("%LMQ%a,", MessageIllegalError, "with commas"),
        ("%LMQ%T", MessageIllegalError, "not the message's own queue"),
    ],
)
def test_rows_whose_light_queues_the_store_refuses_leave_nothing(tmp_path, value, error, text):
    store = tmp_path / "store"
    settings = {f"cystore.enable_{name}": "true" for name in ("lmq", "multi_dispatch")}
    settings["cystore.max_lmq_consume_queue_num"] = "2"
    wrong = light_rows(value, "%LMQ%T" if "own" in text else "T")
    made = writer(store, stream=False, schema=wrong.schema, txnAppId="a", txnVersion=1, **settings)
    told = stage(made, [[wrong]])
    with pytest.raises(error, match=text):
        made.commit(told)
    good = light_rows("%LMQ%a,%LMQ%b")
    made = writer(store, stream=False, schema=good.schema, txnAppId="a", txnVersion=2, **settings)
    made.commit(stage(made, [[good]]))
    assert bodies(store) == [0]
    more = light_rows("%LMQ%b,%LMQ%c")
    made = writer(store, stream=False, schema=more.schema, txnAppId="a", txnVersion=3, **settings)
    with pytest.raises(StoreFullError, match="need 1 new light queues, and the store has 2"):
        made.commit(stage(made, [[more]]))
    assert bodies(store) == [0]


def refused_half_way(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """Version 7, with 64 of its 200 records in the log: another process has made the last queues meanwhile."""
    batch_of(store, [[rows(0, 10)]], **FEW)
    made = writer(store, stream=False, txnAppId="nightly", txnVersion=7, **FEW)
    told = stage(made, [[in_topics(100, 200, 6)]])

    def queues_are_taken(name: str) -> None:
        if name == "sink.chunk" and len(bodies(store)) == 10 + 64:
            with cystore.open(store, **SETTINGS) as opened:
                opened.put("other", b"1")

    with monkeypatch.context() as patched, cystore.open(store, **SETTINGS, max_queues=8):
        patched.setattr(commit, "failpoint", queues_are_taken)
        patched.setattr(commit, "CHUNK_ROWS", 32)
        with pytest.raises(
            StoreFullError, match=r"version 7 of txnAppId nightly has 1\d\d of its 200 records"
        ):
            made.commit(told)
    made.abort(told)


def test_a_version_that_is_refused_half_way_is_named_and_can_be_dropped(monkeypatch, tmp_path):
    store = tmp_path / "store"
    refused_half_way(monkeypatch, store)
    there = bodies(store)
    later = {"txnAppId": "nightly", "txnVersion": 8, **FEW}
    with pytest.raises(StoreFullError, match=r"version 7 of txnAppId nightly has .* option dropUnfinished=7"):
        batch_of(store, [[rows(20, 10)]], **later)
    with pytest.raises(
        StoreConfigError, match=r"dropUnfinished names version 5 of .* the unfinished one is 7"
    ):
        batch_of(store, [[rows(20, 10)]], dropUnfinished=5, **later)
    for _ in range(2):
        batch_of(store, [[rows(20, 10)]], dropUnfinished=7, **later)
    assert bodies(store) == [*there, *range(20, 30)]
    batch_of(store, [[rows(100, 10)]], txnAppId="nightly", txnVersion=7, **FEW)
    assert bodies(store) == [*there, *range(20, 30), *range(100, 110)], "its number may be written anew"
    assert not staged(store)


def test_a_version_that_is_refused_half_way_goes_on_when_there_is_room(monkeypatch, tmp_path):
    store = tmp_path / "store"
    refused_half_way(monkeypatch, store)
    more = {"cystore.max_queues": "9"}
    batch_of(store, [[rows(20, 10)]], txnAppId="nightly", txnVersion=8, **more)
    assert bodies(store) == [*range(10), *range(100, 164), 1, *range(164, 300), *range(20, 30)]


def test_versions_are_remembered_as_ranges():
    note = SinkNote("a")
    for version in (3, 5, 4, 9, 3):
        note = note.ended(version)
    assert note.appended == ((3, 5), (9, 9))
    assert [version for version in range(12) if note.has(version)] == [3, 4, 5, 9]
    assert (note.last, note.forgotten_below) == (9, 0)
    for version in range(11, 11 + 2 * RANGES_MAX, 2):
        note = note.ended(version)
    assert len(note.appended) == RANGES_MAX
    assert note.forgotten_below == 11


def test_a_version_of_long_ago_is_refused(monkeypatch, tmp_path):
    store = tmp_path / "store"
    monkeypatch.setattr(sinks, "RANGES_MAX", 2)
    for version in (2, 4, 6):
        batch_of(store, [[rows(version, 1)]], txnAppId="a", txnVersion=version)
    with pytest.raises(StoreConfigError, match="version 2 of txnAppId a is below 4"):
        batch_of(store, [[rows(2, 1)]], txnAppId="a", txnVersion=2)
    assert written(store) == {0: [2, 4, 6]}


def test_a_damaged_note_is_not_taken_for_a_new_sink(tmp_path):
    store = tmp_path / "store"
    stream_batch(store, 0, [[rows(0, 10)]])
    note_of(store).write_text(note_of(store).read_text().replace("0,", "1,"))
    with pytest.raises(StoreFormatError, match="cannot read what sinkId sink has appended"):
        stream_batch(store, 0, [[rows(0, 10)]])
    assert len(written(store)[0]) == 5


BAD_OPTIONS = [
    ({}, False, "no path"),
    ({"path": ""}, False, "no path"),
    ({"path": __file__}, False, "is a file; a store is a directory"),
    (
        {"path": "s", "startingOffsets": "earliest"},
        False,
        "option startingoffsets is for reading only; a write takes",
    ),
    ({"path": "s", "topics": "T"}, False, "option topics is not known; a write takes path, topic"),
    ({"path": "s", "stagingPath": ""}, False, "stagingPath is empty"),
    ({"path": "s", "sinkId": "a"}, False, "sinkId is for streams only; a batch has txnAppId"),
    ({"path": "s", "txnAppId": "a"}, False, "txnAppId and txnVersion go together"),
    (
        {"path": "s", "dropUnfinished": "1"},
        False,
        "dropUnfinished gives up a version of an application: name it",
    ),
    (
        {"path": "s", "sinkId": "a", "dropUnfinished": "x"},
        True,
        "dropUnfinished must be a whole number from 0",
    ),
    ({"path": "s", "txnVersion": "1"}, False, "txnAppId and txnVersion go together"),
    ({"path": "s", "txnAppId": "a", "txnVersion": "x"}, False, "txnVersion must be a whole number from 0"),
    ({"path": "s", "txnAppId": "", "txnVersion": "1"}, False, "txnAppId must be 1 to 1000 characters, not 0"),
    ({"path": "s"}, True, "a stream needs a name"),
    ({"path": "s", "sinkId": ""}, True, "sinkId must be 1 to 1000 characters"),
    (
        {"path": "s", "txnAppId": "a", "txnVersion": "1"},
        True,
        "txnAppId is for batches only; a stream has sinkId",
    ),
    ({"path": "s", "cystore.nothing": "1"}, False, "nothing"),
    ({"path": "s", "cystore.read_only": "true"}, False, "read_only is for reading only"),
]


@pytest.mark.parametrize(("options", "stream", "message"), BAD_OPTIONS, ids=lambda value: str(value)[:50])
def test_bad_options_of_a_write_are_named(options, stream, message):
    with pytest.raises(StoreConfigError) as error:
        parse_write(options, overwrite=False, stream=stream)
    assert message in str(error.value)


def test_overwrite_is_refused():
    for stream, hint in ((False, r'\.mode\("append"\)'), (True, r'\.outputMode\("append"\)')):
        with pytest.raises(StoreConfigError, match=f"append-only: write with {hint}"):
            parse_write({"path": "s", "sinkId": "a"}, overwrite=True, stream=stream)


def test_who_a_stream_is():
    def sink(**options: str) -> Any:
        return parse_write({"path": "s", **options}, overwrite=False, stream=True).sink

    by_checkpoint = sink(checkpointLocation="/c/1", queryName="q")
    assert sink(checkpointLocation="/c/1/") == by_checkpoint != sink(checkpointLocation="/c/2")
    assert sink(sinkId="/c/1") != by_checkpoint
    assert sink(sinkId="a", checkpointLocation="/c/1") == sink(sinkId="a", checkpointLocation="/c/2")


def record_batch(**columns: Any) -> pa.RecordBatch:
    kinds = {
        "partition": pa.int32(),
        "sys_flag": pa.int32(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "tags": pa.string(),
    }
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


BAD_ROWS = [
    ({"value": [b"a", None]}, "column value is null"),
    (
        {"value": [b"a", b"b" * 5000]},
        "column value has 5000 bytes, at most cystore.max_message_size_bytes = 4096",
    ),
    ({"topic": ["T", None]}, "column topic is null"),
    ({"topic": ["T", "a b"]}, "topic 'a b' must be 1 to 127 characters"),
    ({"topic": ["T", "SCHEDULE_TOPIC_XXXX"]}, "is reserved for delayed messages"),
    ({"partition": [0, -1]}, "column partition is -1, less than 0"),
    ({"key": ["k", "a key"]}, "column keys: 'a key' is empty or has a character .* or a space"),
    ({"key": [b"k", b"\xff\xfe"]}, "column key is .* not UTF-8"),
    ({"key": ["k", ""]}, "column keys: '' is empty"),
    ({"keys": [["a"], ["b", ""]]}, "column keys: '' is empty"),
    ({"keys": [["a"], ["b", None]]}, "column keys: a null"),
    ({"tags": [None, "a\x01"]}, r"column tags: 'a\\x01' is empty or has a character"),
    ({"tags": [None, ""]}, r"column tags: '' is empty or has a character"),
    ({"properties": [[], [("", "x")]]}, "column properties: '' is empty"),
    ({"properties": [[], [("a", None)]]}, "column properties: a null"),
    ({"properties": [[], [("a", "")]]}, "column properties: '' is empty"),
    ({"properties": [[], [("UNIQ_KEY", "")]]}, "column properties: '' is empty"),
    ({"properties": [[], [("a", "b\x02")]]}, "column properties: .* separates properties"),
    ({"properties": [[], [("DELAY", "3")]]}, "column properties: DELAY is reserved"),
    ({"properties": [[], [("a", "b" * 32_700)]]}, "take [0-9]* bytes together, at most 32767"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_ROWS, ids=lambda value: str(value)[:50])
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path, columns, message):
    store = tmp_path / "store"
    bad = record_batch(**{"topic": ["T", "T"], "value": [b"1", b"2"], **columns})
    made = writer(store, stream=False, schema=bad.schema, **{"cystore.max_message_size_bytes": 4096})
    good = bad.slice(0, 1)
    with pytest.raises(MessageIllegalError, match=f"row 2 of task 0: .*{message}"):
        stage(made, [[good, bad]])
    assert not staged(store)


def test_a_store_of_other_files_than_the_options_say_is_refused_whole(tmp_path):
    """The store was there before, with files smaller than the options say."""
    store = tmp_path / "store"
    with cystore.open(store, **SETTINGS) as opened:
        opened.put("other", b"")
    large = record_batch(topic=["T", "T"], value=[b"1", b"2" * 16_300])
    made = writer(
        store, stream=False, schema=large.schema, **{"cystore.mapped_file_size_commit_log_bytes": 1 << 20}
    )
    told = stage(made, [[large]])
    with pytest.raises(StoreConfigError, match=r"mapped_file_size_commit_log_bytes: .* was made with 16384"):
        made.commit(told)
    assert written(store) == {}


BAD_COLUMNS = [
    ([("topic", pa.string())], {}, "there is no column value"),
    ([("value", pa.binary())], {}, "no topic: give option topic, or a column topic"),
    ([("value", pa.int32())], {"topic": "T"}, "column value must be binary or string, not int: cast it"),
    (
        [("value", pa.string()), ("partition", pa.int64())],
        {"topic": "T"},
        "partition must be int, not bigint",
    ),
    (
        [("value", pa.string()), ("keys", pa.string())],
        {"topic": "T"},
        "keys must be array<string>, not string",
    ),
    (
        [("value", pa.string()), ("tag", pa.string())],
        {"topic": "T"},
        "column tag cannot be written; writable are value",
    ),
    ([("value", pa.string())], {"topic": "a b"}, "option topic: topic 'a b' must be 1 to 127"),
]


@pytest.mark.parametrize(("columns", "options", "message"), BAD_COLUMNS, ids=lambda value: str(value)[:50])
def test_bad_columns_are_named(tmp_path, columns, options, message):
    with pytest.raises((StoreConfigError, MessageIllegalError), match=message):
        writer(tmp_path / "store", stream=False, schema=pa.schema(columns), **options)
