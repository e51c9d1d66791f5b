"""Goal: a stream never continues in another store than the one that it followed, nor with other options that choose
rows, without being told so. Method: stores that are deleted and made anew, moved, copied and exchanged between two
batches; offsets by the reader itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.support.small_stores import open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from cystore.errors import OffsetError, StoreConfigError
from tests.spark.test_stream import numbers_of, stream_reader

EVERYTHING = ReadAllAvailable()


def written(path: Path, count: int, first: int = 0) -> Path:
    """A closed store with so many more messages."""
    with open_small(path) as store:
        fill(store, count, first)
    return path


def offset_in(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(checkpoint))


def read(
    path: Path | str, start: dict[str, Any] | None = None, **options: Any
) -> tuple[list[int], dict[str, Any]]:
    """One batch of a query that was started anew: its numbers, and where it ends."""
    reader = stream_reader(path, **options)
    try:
        begin = offset_in(reader.initialOffset()) if start is None else start
        end = offset_in(reader.latestOffset(begin, EVERYTHING))
        return numbers_of(reader, begin, end), end
    finally:
        reader.stop()


def aged(offset: dict[str, Any]) -> dict[str, Any]:
    """As versions before this one wrote it: positions, and nothing of the store."""
    kept = ("position", "first", "first_seen")
    return {
        "stores": {
            path: {name: value for name, value in at.items() if name in kept}
            for path, at in offset["stores"].items()
        }
    }


def without_manifest(path: Path) -> Path:
    """As a broker leaves it."""
    (path / "manifest").unlink()
    return path


@pytest.mark.parametrize("ours", [True, False], ids=["with a manifest", "of a broker"])
def test_a_store_made_anew_in_the_same_place_is_not_taken_for_the_old_one(tmp_path, ours):
    """Seen: the query continued at its old position, and the first messages of the new store were skipped without a
    word."""
    path = written(tmp_path / "s", 20)
    if not ours:
        without_manifest(path)
    assert read(path)[0] == list(range(20))
    _, end = read(path)
    shutil.rmtree(path)
    written(path, 90, first=100)
    if not ours:
        without_manifest(path)
    with pytest.raises(OffsetError, match="is not the store that this query followed") as error:
        read(path, end)
    assert str(path) in str(error.value)
    assert "failOnDataLoss" in str(error.value) and "storeMoved" in str(error.value)
    numbers, after = read(path, end, failOnDataLoss="false")
    assert numbers == list(range(100, 190))  # all of the new one
    assert read(path, after)[0] == []


def test_a_batch_that_is_repeated_is_not_read_from_another_store(tmp_path):
    path = written(tmp_path / "s", 20)
    reader = stream_reader(path)
    start = reader.initialOffset()
    end = offset_in(reader.latestOffset(start, EVERYTHING))
    reader.stop()
    shutil.rmtree(path)
    written(path, 90, first=100)
    with pytest.raises(OffsetError, match="not the store that"):
        numbers_of(stream_reader(path), start, end)
    lenient = stream_reader(path, failOnDataLoss="false")
    assert numbers_of(lenient, start, end) == []
    assert numbers_of(lenient, end, lenient.latestOffset(end, EVERYTHING)) == list(range(100, 190))


@pytest.mark.parametrize("ours", [True, False], ids=["with a manifest", "of a broker"])
def test_a_store_that_was_moved_goes_on_where_it_was(tmp_path, ours):
    """Seen: the only way was a new checkpoint, which read all of the moved store again."""
    old, new = written(tmp_path / "old", 20), tmp_path / "new"
    if not ours:
        without_manifest(old)
    _, end = read(old)
    old.rename(new)
    with pytest.raises(OffsetError, match="storeMoved") as error:
        read(new, end)
    assert json.dumps({str(old): str(new)}) in str(error.value)  # as it is to be given
    moved = json.dumps({str(old): str(new)})
    written(new, 5, 20)
    numbers, after = read(new, end, storeMoved=moved)
    assert numbers == list(range(20, 25))
    written(new, 5, 25)
    assert read(new, after, storeMoved=moved)[0] == list(range(25, 30))  # harmless when it stays
    assert read(new, after)[0] == list(range(25, 30))


def test_a_batch_that_was_planned_before_the_store_was_moved_is_read_after_it(tmp_path):
    old, new = written(tmp_path / "old", 20), tmp_path / "new"
    reader = stream_reader(old)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    reader.stop()
    old.rename(new)
    moved = stream_reader(new, storeMoved=json.dumps({str(old): str(new)}))
    assert numbers_of(moved, start, end) == list(range(20))


def test_a_move_that_did_not_happen_is_refused(tmp_path):
    """A copy beside its original, another store at the new place, a store that the query follows there already."""
    one, two = written(tmp_path / "store-1", 20), written(tmp_path / "store-2", 20, 100)
    _, end = read(one)
    moved = json.dumps({str(one): str(two)})
    with pytest.raises(OffsetError, match="not the store that"):
        read(two, end, storeMoved=moved)
    both = tmp_path / "store-*"
    with pytest.raises(OffsetError, match="is still at"):
        read(both, end, storeMoved=moved)
    _, of_both = read(both)
    shutil.rmtree(one)
    with pytest.raises(OffsetError, match="already follows it there"):
        read(both, of_both, storeMoved=moved)
    with pytest.raises(OffsetError, match="does not exist any more"):
        read(both, of_both)
    for wrong in ("old", '["a"]', '{"a":1}', '{"/a":"/b","/b":"/c"}'):
        with pytest.raises(StoreConfigError, match="storeMoved"):
            read(two, storeMoved=wrong)


def test_a_moved_store_is_told_also_where_losses_are_let_be(tmp_path):
    """It would be read again in full otherwise."""
    old = written(tmp_path / "store-1", 20)
    _, end = read(tmp_path / "store-*")
    old.rename(tmp_path / "store-2")
    with pytest.raises(OffsetError, match="storeMoved"):
        read(tmp_path / "store-*", end, failOnDataLoss="false")


def test_the_operator_may_say_that_it_is_the_same_store(tmp_path):
    path = written(tmp_path / "s", 20)
    _, end = read(path)
    at = end["stores"][str(path)]
    at["id"], at["log"] = "0" * 32, [0, 1, 2, 3]
    with pytest.raises(OffsetError, match="not the store that"):
        read(path, end)
    written(path, 2, 20)
    numbers, after = read(path, end, storeMoved=json.dumps({str(path): str(path)}))
    assert numbers == [20, 21]
    assert after["stores"][str(path)]["id"] not in ("", "0" * 32)


def test_a_log_is_known_again_by_its_records_where_the_manifest_was_made_anew(tmp_path):
    path = written(tmp_path / "s", 20)
    _, end = read(path)
    without_manifest(path)
    assert read(path, end)[0] == []
    written(path, 3, 20)  # makes another one, with another id
    numbers, after = read(path, end)
    assert numbers == [20, 21, 22]
    assert after["stores"][str(path)]["id"] != end["stores"][str(path)]["id"]


def test_a_log_that_was_replaced_under_its_manifest_is_another_store(tmp_path):
    path = written(tmp_path / "s", 20)
    _, end = read(path)
    other = written(tmp_path / "other", 90, 100)
    for folder in ("commitlog", "consumequeue", "index", "checkpoint"):
        place = path / folder
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        (other / folder).rename(place)
    with pytest.raises(OffsetError, match="not the store that"):
        read(path, end)


def test_cleaning_makes_no_other_store_of_it(tmp_path):
    """The id counts where the record that was noted is gone; an offset that did not move stays as it is, so no empty
    batch is made."""
    with open_small(tmp_path / "s") as store:
        fill(store, 300)
        store.flush()
        _, end = read(store.path)
        store.configure(file_reserved_time_h=0)
        assert store.clean().segments
        assert read(store.path, end) == ([], end)
        fill(store, 5, 300)
        store.flush()
        assert read(store.path, end)[0] == list(range(300, 305))


def test_an_empty_store_has_an_id_too(tmp_path):
    path = written(tmp_path / "s", 0)
    _, end = read(path)
    shutil.rmtree(path)
    written(path, 5)
    with pytest.raises(OffsetError, match="not the store that"):
        read(path, end)


def test_an_offset_of_an_earlier_version_goes_on_and_learns_the_id(tmp_path):
    path = written(tmp_path / "s", 20)
    reader = stream_reader(path, topic="topic-1")
    start, end = aged(reader.initialOffset()), aged(read(path, topic="topic-1")[1])
    assert len(numbers_of(reader, start, end)) == 10  # a batch that is repeated
    reader.stop()
    written(path, 10, 20)
    numbers, after = read(path, end, topic="topic-1")
    assert numbers == list(range(21, 30, 2))
    with pytest.raises(OffsetError, match="other options"):
        read(path, after, topic="topic-0")
    shutil.rmtree(path)
    written(path, 90)
    with pytest.raises(OffsetError, match="not the store that"):
        read(path, after, topic="topic-1")


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"topic": "topic-0"},
        {"topic": "topic-1,topic-0"},
        {"topic": "topic-1", "key": "all"},
        {"topic": "topic-1", "includeTransactions": "true"},
        {"subscribePattern": "topic-1"},
        {"assign": '{"topic-1":[0]}'},
    ],
    ids=json.dumps,
)
def test_other_rows_are_not_chosen_under_an_old_checkpoint(tmp_path, other):
    """Seen: what the other topic had before the position was skipped without a word."""
    path = written(tmp_path / "s", 20)
    _, end = read(path, topic="topic-1")
    with pytest.raises(OffsetError, match="with other options") as error:
        read(path, end, **other)
    assert "topic=topic-1" in str(error.value) and "checkpointLocation" in str(error.value)
    reader = stream_reader(path, **other)
    with pytest.raises(OffsetError, match="with other options"):
        reader.partitions(end, end)
    how = {
        "maxOffsetsPerTrigger": "5",
        "onCorruption": "skip",
        "startingOffsets": "latest",
        "subscribe": "topic-1",
    }
    assert read(path, end, **how) == ([], end)  # how it is read may change


def test_the_id_is_in_what_spark_keeps(tmp_path):
    path = written(tmp_path / "s", 20)
    with cystore.open(path, services="none", read_only=True) as store:
        known = store.snapshot().store_id
    _, end = read(path)
    assert end["stores"][str(path)]["id"] == known != ""
