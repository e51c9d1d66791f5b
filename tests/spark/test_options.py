"""Goal: what a user can get wrong in options is refused with a text that names the option; filters take no row away
that Spark would keep. Method: every option by itself, no JVM; filters against rows, one by one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from cystore.columns.arrow import FOREVER, RowFilter, stores_of
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.reports.report_folder import existing_stores
from cystore.spark.options import EARLIEST, LATEST, Bound, parse, parse_any
from cystore.spark.source.pushdown import narrowed

BAD = [
    ({"path": "s", "fs.account_key": "hush"}, False, "event log: name it fs.secret.account_key, which Spark"),
    ({"path": "s", "fs.region": "a", "FS.secret.region": "b"}, False, "names region a second time"),
    ({"path": "s", "fs.secret.": "hush"}, False, "option fs.secret. has no name"),
    ({}, False, "no path"),
    ({"path": ""}, False, "no path"),
    ({"paths": "a,b"}, False, "paths must be JSON"),
    ({"paths": "[1]"}, False, "JSON list of text"),
    ({"path": "s", "startingoffset": "latest"}, False, "no option startingoffset; the options are path"),
    ({"path": "s", "startingOffsets": "newest"}, False, "startingOffsets must be earliest, latest or like"),
    ({"path": "s", "startingOffsets": "[1]"}, False, "must be earliest, latest or like"),
    ({"path": "s", "startingOffsets": '{"T":{"a":1}}'}, False, "'a' is not a partition of T"),
    ({"path": "s", "startingOffsets": '{"T":{"0":-3}}'}, False, "T/0 must be a whole number from -2"),
    ({"path": "s", "startingOffsets": '{"T":{"0":1.5}}'}, False, "T/0 must be a whole number"),
    ({"path": "s", "startingOffsets": "latest"}, False, "cannot be latest"),
    ({"path": "s", "startingOffsets": '{"T":{"0":-1}}'}, False, "cannot be latest"),
    ({"path": "s", "endingOffsets": "earliest"}, False, "cannot be earliest"),
    ({"path": "s", "endingOffsets": '{"T":{"0":-2}}'}, False, "cannot be earliest"),
    ({"path": "s", "endingOffsets": "latest"}, True, "endingOffsets is for batches only"),
    ({"path": "s", "maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger is for streams only"),
    ({"path": "s", "storeMoved": "{}"}, False, "storeMoved is for streams only"),
    ({"path": "s", "maxOffsetsPerTrigger": "0"}, True, "from 1 on, not '0'"),
    ({"path": "s", "minPartitions": "many"}, False, "minPartitions must be a whole number"),
    ({"path": "s", "startingTimestamp": "-1"}, False, "startingTimestamp must be a whole number from 0"),
    ({"path": "s", "failOnDataLoss": "maybe"}, False, "failOnDataLoss must be true or false, not 'maybe'"),
    (
        {"path": "s", "startingOffsetsByTimestampStrategy": "earliest"},
        True,
        "startingOffsetsByTimestampStrategy must be one of error, latest, not 'earliest'",
    ),
    (
        {"path": "s3://b/s", "startingOffsetsByTimestampStrategy": "ERROR"},
        False,
        "startingOffsetsByTimestampStrategy must be latest",
    ),
    ({"path": "s", "onCorruption": "drop"}, False, "onCorruption must be one of fail, skip, column"),
    ({"path": "s", "topic": "a,,b"}, False, "topic must be one or several names"),
    ({"path": "s", "topic": "a", "subscribePattern": "b"}, False, "only one of topic, subscribe"),
    ({"path": "s", "subscribePattern": "("}, False, "not a regular expression"),
    ({"path": "s", "assign": '{"T":0}'}, False, "assign must be like"),
    ({"path": "s", "assign": '{"T":["0"]}'}, False, "assign must be like"),
    ({"path": "s", "cystore.nothing": "1"}, False, "nothing"),
    ({"path": "s", "startingOffsets": "[" * 100_000}, False, "startingOffsets must be"),
    ({"path": "s", "includeArchive": "true"}, True, "includeArchive is for batches only"),
    ({"path": "s", "sealedSegments": "yes"}, False, "sealedSegments must be true or false"),
    (
        {"path": "s3://b/s"},
        True,
        "s3://b/s is read by URL, from its sealed segments only: a stream needs the path of a store",
    ),
    ({"path": "s", "sealedSegments": "true"}, True, "a stream needs the path of a store"),
    ({"path": "s3://b/s", "includeArchive": "true"}, False, "includeArchive needs the path of a store"),
    ({"path": "s3://key:secret@b/s"}, False, "a URL must not contain credentials"),
]


@pytest.mark.parametrize(("options", "stream", "message"), BAD, ids=lambda value: str(value)[:60])
def test_bad_options_are_named(options, stream, message):
    with pytest.raises(StoreConfigError) as error:
        parse(options, stream=stream)
    assert message in str(error.value)


def test_options_have_any_case_and_their_kafka_meaning():
    given = {
        "PATH": "file:///s",
        "STARTINGOFFSETS": json.dumps({"T": {"0": 23, "1": -2}}),
        "endingtimestamp": "1700000000000",
        "SUBSCRIBE": "T, U",
        "failondataloss": "FALSE",
        "cystore.max_queues": "77",
    }
    options = parse(given, stream=False)
    assert options.patterns == ("/s",)
    for path in ("/s", "file:/s", "file:///s"):
        assert parse({"location": path}, stream=False).patterns == ("/s",)
    assert options.starting == Bound(offsets={("T", 0): 23, ("T", 1): EARLIEST})
    assert options.ending == Bound(timestamp_ms=1_700_000_000_000)
    assert (options.topics, options.fail_on_data_loss) == (("T", "U"), False)
    assert options.settings == {"max_queues": 77}


def test_options_of_a_file_system_are_in_no_text(tmp_path):
    options = parse({"path": "s3://b/s", "FS.SECRET_KEY": "hush-hush"}, stream=False)
    assert dict(options.storage) == {"secret_key": "hush-hush"}
    ((storage, url),) = options.urls()
    assert (url, options.paths()) == ("s3://b/s", [])
    assert "hush" not in repr(options) + repr(storage)


def test_a_timestamp_goes_before_offsets():
    given = {"path": "s", "startingOffsets": "earliest", "startingTimestamp": "5"}
    assert parse(given, stream=False).starting == Bound(timestamp_ms=5)
    given["startingOffsetsByTimestamp"] = '{"T":{"0":7}}'
    del given["startingTimestamp"]
    assert parse(given, stream=False).starting == Bound(timestamps_ms={("T", 0): 7})


def test_streams_begin_with_latest_and_batches_with_earliest():
    assert parse({"path": "s"}, stream=True).starting == Bound(LATEST)
    assert parse({"path": "s"}, stream=False).starting == Bound(EARLIEST)
    assert parse_any({"path": "s", "startingOffsets": "latest"}).starting == Bound(LATEST)
    assert parse_any({"path": "s", "maxOffsetsPerTrigger": "5"}).max_offsets == 5
    with pytest.raises(StoreConfigError, match="no option nope"):
        parse_any({"path": "s", "nope": "5"})


def test_paths_are_found_when_they_are_asked_for(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert parse({"path": f"{tmp_path}/*"}, stream=False).paths() == [f"{tmp_path}/a", f"{tmp_path}/b"]
    twice = json.dumps([f"{tmp_path}/b", f"{tmp_path}/./b", f"{tmp_path}/a"])
    assert parse({"paths": twice}, stream=False).paths() == [f"{tmp_path}/a", f"{tmp_path}/b"]
    for pattern, message in (
        (f"{tmp_path}/c", "there is no store here"),
        (f"{tmp_path}/c*", "no store matches"),
    ):
        with pytest.raises(StoreFormatError, match=message):
            parse({"path": pattern}, stream=False).paths()


AT = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
PUSHED: list[tuple[Any, dict[str, Any]]] = [
    (EqualTo(("topic",), "T"), {"topics": ("T",)}),
    (In(("topic",), ("T", None, "U")), {"topics": ("T", "U")}),
    (EqualTo(("partition",), 3), {"queue_ids": (3,)}),
    (EqualTo(("key",), "k"), {"keys": ("k",)}),
    (EqualTo(("tags",), "x"), {"tags": ("x",)}),
    (GreaterThan(("offset",), 5), {"offsets": (5, FOREVER)}),
    (GreaterThanOrEqual(("physical_offset",), 5), {"physical": (5, FOREVER)}),
    (LessThan(("offset",), 5), {"offsets": (0, 6)}),
    (EqualTo(("offset",), 5), {"offsets": (5, 6)}),
    (In(("offset",), (9, 5)), {"offsets": (5, 10)}),
    (LessThanOrEqual(("offset",), FOREVER), {}),
    (GreaterThan(("timestamp",), AT), {"times_ms": (AT_MS, FOREVER)}),
    (LessThan(("timestamp",), AT), {"times_ms": (-FOREVER, AT_MS + 1)}),
    # What says nothing that could be used.
    (IsNotNull(("topic",)), {}),
    (EqualTo(("sys_flag",), 1), {}),
    (EqualTo(("properties", "a"), "1"), {}),
    (EqualTo(("key",), "\ufffd"), {}),
    (EqualTo(("topic",), 5), {}),
    (EqualTo(("offset",), "5"), {}),
    (EqualTo(("offset",), True), {}),
    (In(("topic",), tuple(str(number) for number in range(100))), {}),
]


@pytest.mark.parametrize(("one", "fields"), PUSHED, ids=lambda value: str(value)[:60])
def test_what_a_filter_bounds(one, fields):
    assert narrowed(RowFilter(), [one]) == RowFilter(**fields)


def test_filters_hold_together():
    both = [EqualTo(("topic",), "T"), GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 7)]
    assert narrowed(RowFilter(topics=("T", "U")), both) == RowFilter(topics=("T",), offsets=(3, 8))
    assert narrowed(RowFilter(topics=("U",)), both) is None
    assert narrowed(RowFilter(), [LessThan(("offset",), 3), GreaterThan(("offset",), 9)]) is None
    # The option means any key of a record, the column the first: both must hold, so the option stays.
    assert narrowed(RowFilter(keys=("a",)), [EqualTo(("key",), "b")]) == RowFilter(keys=("a",))


def test_a_secret_has_the_name_that_its_file_system_knows():
    options = parse({"path": "s", "fs.secret.account_key": "k", "fs.access_key": "a"}, stream=False)
    assert options.storage == {"account_key": "k", "access_key": "a"}


ODD_NAMES = ["a[1]", "q?", "star*", "br{x,y}", "back\\slash", "per%20cent", "sp ace"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_path_that_exists_is_that_path_for_every_reader(tmp_path, name):
    """Beside a store that it would match as a glob. Only a path that names nothing is a glob."""
    others = ["a1", "qx", "star1", "brx", "backslash", "per cent", "sp"]
    for folder in (name, *others):
        (tmp_path / folder).mkdir()
    place = str(tmp_path / name)
    assert parse({"path": place}, stream=False).paths() == [place]
    assert list(map(str, stores_of(place))) == [place]
    assert existing_places(place) == [place]
    for given in (
        {"path": place, "sealedSegments": "true"},
        {"path": f"file://{place}", "sealedSegments": "true"},
    ):
        sealed = parse(given, stream=False)
        assert [url for _, url in sealed.urls()] == [f"file://{place}"]
    glob = str(tmp_path / "[aq]?")
    both = [str(tmp_path / "a1"), *sorted(str(tmp_path / one) for one in {"q?", "qx"} & {name, *others})]
    assert parse({"path": glob}, stream=False).paths() == both
    assert list(map(str, stores_of(glob))) == both


def existing_places(place: str) -> list[str]:
    """The stores that a job would read; these folders are none."""
    with pytest.raises(StoreFormatError, match="the directory is not a store") as error:
        existing_stores(place)
    return [str(error.value.path)]
