"""Goal: `cystore.to_arrow` gives what `scan` gives, of any store, and says what it cannot give. Method: small stores
in use, left by a crash, damaged, cleaned under the reader; every batch is checked by Arrow itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pa = pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

from cystore.columns import arrow  # noqa: E402 - needs pyarrow
from cystore.errors import CorruptRecordError, OffsetError, StoreConfigError, StoreFormatError  # noqa: E402
from cystore.system import files, platform  # noqa: E402


def rows(store: Any, **options: Any) -> list[dict[str, Any]]:
    settings = {} if isinstance(store, cystore.MessageStore) else SETTINGS
    found = []
    for batch in cystore.to_arrow(store, **options, **settings):
        batch.validate(full=True)
        assert batch.num_rows, "no batch is empty"
        found += batch.to_pylist()
    return found


def fill(store: cystore.MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(
            f"topic-{number % 2}",
            f"body {number}".encode() * 20,
            queue_id=number % 3,
            keys=(f"key-{number}", "all"),
            tags=("even", "odd")[number % 2] if number % 5 else None,
            properties={"name": "väl"} if number % 7 else None,
        )


def as_row(message: cystore.Message, store: cystore.MessageStore) -> dict[str, Any]:
    return {
        "key": message.keys[0],
        "value": bytes(message.body),
        "topic": message.topic,
        "partition": message.queue_id,
        "offset": message.queue_offset,
        "timestamp": message.store_timestamp_ms * 1000,
        "physical_offset": message.physical_offset,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": list(message.properties.items()),
        "born_timestamp": message.born_timestamp_ms * 1000,
        "sys_flag": message.sys_flag,
        "store": str(store.path),
    }


def in_microseconds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in found:
        for name in ("timestamp", "born_timestamp"):
            row[name] = round(row[name].timestamp() * 1000) * 1000
    return found


def test_every_record_of_a_store_that_is_written_to(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 120)
        reader = cystore.to_arrow(store, batch_rows=7)
        fill(store, 50, 120)  # comes too late for the reader
        expected = [as_row(message, store) for message in store.scan()]
        assert len(store.snapshot().holes) == 0
        assert in_microseconds(reader.read_all().to_pylist()) == expected[:120]
        assert in_microseconds(rows(store)) == in_microseconds(rows(tmp_path / "s")) == expected


def test_memory_of_batches_that_are_gone_is_filled_again_and_that_of_kept_ones_is_not(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 400)
        expected = [as_row(message, store) for message in store.scan()]
        others, places = [], set()
        for batch in cystore.to_arrow(store, batch_rows=10):
            places.add(batch["value"].buffers()[2].address)
            size = batch["value"].buffers()[2].size
            del batch
            others.append(bytearray(size))  # takes the place of what was freed
        assert len(others) > 30
        assert len(places) <= 5
        kept, found = [], []
        for number, batch in enumerate(cystore.to_arrow(store, batch_rows=10)):
            (kept if number % 3 else found).append(batch)
            found = [one if isinstance(one, list) else one.to_pylist() for one in found]
        lists = [batch.to_pylist() for batch in kept]
        both = [row for part in (*found, *lists) for row in part]
    assert sorted(in_microseconds(both), key=lambda row: row["physical_offset"]) == expected


def test_a_store_that_nobody_recovered_is_read_and_left_alone(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 90)
        shutil.copytree(tmp_path / "s", tmp_path / "crashed")
        expected = [message.physical_offset for message in store.scan()]
    before = {path: path.read_bytes() for path in (tmp_path / "crashed").rglob("*") if path.is_file()}
    assert [row["physical_offset"] for row in rows(tmp_path / "crashed")] == expected
    after = {path: path.read_bytes() for path in (tmp_path / "crashed").rglob("*") if path.is_file()}
    assert after == before


FILTERS: dict[str, tuple[dict[str, Any], Any]] = {
    "topic": ({"topic": "topic-1"}, lambda m: m.topic == "topic-1"),
    "topics": ({"topic": ["topic-1", "nowhere"]}, lambda m: m.topic == "topic-1"),
    "queue": ({"queue_id": [0, 2]}, lambda m: m.queue_id != 1),
    "tags": ({"tags": "odd"}, lambda m: m.tags == "odd"),
    "key": ({"key": "key-17"}, lambda m: "key-17" in m.keys),
    "second key": ({"key": "all"}, lambda m: True),
    "offsets": ({"begin_offset": 2, "end_offset": 5}, lambda m: 2 <= m.queue_offset < 5),
    "place": ({"begin": 1000, "end": 40_000}, lambda m: 1000 <= m.physical_offset < 40_000),
    "several": ({"topic": "topic-0", "tags": "even"}, lambda m: (m.topic, m.tags) == ("topic-0", "even")),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(tmp_path, name):
    options, takes = FILTERS[name]
    with open_small(tmp_path / "s") as store:
        fill(store, 130)
        expected = [message.physical_offset for message in store.scan() if takes(message)]
        found = rows(store, columns=["physical_offset"], **options)
    assert found == [{"physical_offset": at} for at in expected]
    assert expected


def test_times_bound_the_rows_and_the_segments_that_are_opened(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 100)
        middle = list(store.scan())[60].store_timestamp_ms
        last = list(store.scan())[-1]
        while last.store_timestamp_ms <= middle + 5 or last.physical_offset < 2 * LOG_BYTES:
            fill(store, 50, 100)
            last = list(store.scan())[-1]
        messages = list(store.scan())
        earliest, latest = middle + 1, messages[-1].store_timestamp_ms
        for options in (
            {"begin_ms": earliest},
            {"end_ms": earliest},
            {"begin_ms": earliest, "end_ms": latest},
        ):
            begin, end = options.get("begin_ms", 0), options.get("end_ms", latest + 1)
            expected = [m.physical_offset for m in messages if begin <= m.store_timestamp_ms < end]
            assert [row["physical_offset"] for row in rows(store, **options)] == expected
        everything = arrow.plan_ranges(store.snapshot(), arrow.RowFilter())
        late = arrow.plan_ranges(store.snapshot(), arrow.RowFilter(times_ms=(latest + 1, arrow.FOREVER)))
        early = arrow.plan_ranges(
            store.snapshot(), arrow.RowFilter(times_ms=(0, messages[0].store_timestamp_ms))
        )
    assert len(everything) > 2
    assert late == everything[-1:]
    assert early == []


def flip(store: Path, physical_offset: int) -> None:
    base = physical_offset - physical_offset % LOG_BYTES
    path = store / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[physical_offset - base] ^= 0xFF
    with path.open("r+b") as file:
        file.write(data)


@pytest.fixture
def damaged(tmp_path: Path):
    """A store in use whose eighth record has a flipped bit, and its messages as they were."""
    with open_small(tmp_path / "s") as store:
        fill(store, 100)
        expected = [as_row(message, store) for message in store.scan()]
        store.dispatch()
        flip(tmp_path / "s", expected[7]["physical_offset"] + 120)
        yield store, expected


def test_damage_fails_the_read_behind_the_good_records(damaged):
    store, expected = damaged
    found = []
    reader = cystore.to_arrow(store)
    with pytest.raises(CorruptRecordError, match=r"bad checksum; .* on_corruption") as error:
        found.extend(row for batch in reader for row in batch.to_pylist())
    assert error.value.offset == expected[7]["physical_offset"]
    assert in_microseconds(found) == expected[:7]


def test_damage_can_be_skipped_or_told(damaged):
    store, expected = damaged
    assert in_microseconds(rows(store, on_corruption="skip")) == expected[:7] + expected[8:]
    told = rows(store, on_corruption="column", columns=["physical_offset", "value", "corrupt", "corrupt_end"])
    bad = {
        "physical_offset": expected[7]["physical_offset"],
        "value": None,
        "corrupt": "bad checksum",
        "corrupt_end": expected[8]["physical_offset"],
    }
    assert [row for row in told if row["corrupt"]] == [bad]
    assert len(told) == len(expected)
    assert len(rows(store, check_checksum=False)) == len(expected)


def test_a_hole_that_recovery_finds_is_damage_too(damaged, tmp_path):
    """At rest recovery is in memory only, so nothing was reported yet; once the store was open for use it was."""
    store, expected = damaged
    store.flush()
    store.close()
    with pytest.raises(CorruptRecordError, match="a hole: recovery finds no valid record in it") as error:
        rows(tmp_path / "s", check_crc_on_recover=True)
    assert error.value.offset == expected[7]["physical_offset"]
    assert not (tmp_path / "s" / "quarantine").exists()
    with open_small(tmp_path / "s", check_crc_on_recover=True) as again:
        holes = again.stats()["holes"]
        if not holes:  # recovery looked at later files only
            pytest.fail("recovery found no hole")
        assert (tmp_path / "s" / "quarantine").exists()
        with pytest.raises(CorruptRecordError, match="a hole: recovery finds"):
            rows(again)
        assert in_microseconds(rows(again, on_corruption="skip")) == expected[:7] + expected[8:]
        told = rows(again, on_corruption="column")
        assert [(row["physical_offset"], row["corrupt_end"]) for row in told if row["corrupt"]] == holes


def test_a_segment_that_was_removed_meanwhile(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 120)
        ranges = arrow.plan_ranges(store.snapshot(), arrow.RowFilter())
        expected = [message.physical_offset for message in store.scan(LOG_BYTES)]
        store.close()
        Path(ranges[0].path).unlink()
        with pytest.raises(OffsetError, match="removed after the read was planned") as error:
            list(arrow.read_ranges(ranges, arrow.ReadSettings()))
        assert error.value.path == Path(ranges[0].path)
        settings = arrow.ReadSettings(columns=("physical_offset",), fail_on_data_loss=False)
        found = [row["physical_offset"] for b in arrow.read_ranges(ranges, settings) for row in b.to_pylist()]
        assert found == expected
        Path(ranges[1].path).write_bytes(b"short")
        with pytest.raises(StoreFormatError, match="too few"):
            list(arrow.read_ranges(ranges[1:], settings))


def test_pieces_begin_with_records_and_leave_nothing_out(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 200)
        snapshot = store.snapshot()
        begins = {message.physical_offset for message in store.scan()}
        pieces = list(snapshot.pieces(snapshot.minimum, snapshot.end, 3000))
        assert len(pieces) > 15
        assert all(piece.begin in begins for piece in pieces)
        assert [p.begin for p in pieces[1:]] == [p.end for p in pieces[:-1]]
        settings = arrow.ReadSettings(columns=("physical_offset",))
        found = [row["physical_offset"] for b in arrow.read_ranges(pieces, settings) for row in b.to_pylist()]
        assert found == sorted(begins)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["offset", "nope"]}, "no column nope; the columns are key, value"),
        ({"columns": ["offset", "offset"]}, "named twice"),
        ({"columns": ["corrupt"]}, "no column corrupt"),
        ({"on_corruption": "ignore"}, "on_corruption must be one of fail, skip, column"),
        ({"topic": 3}, "topic must be str"),
        ({"queue_id": "a"}, "queue_id must be int"),
        ({"queue_id": True}, "queue_id must be int"),
        ({"begin_ms": 1.5}, "whole numbers"),
        ({"end": 1 << 70}, "64 bits"),
    ],
    ids=str,
)
def test_bad_options_are_named(tmp_path, options, message):
    with open_small(tmp_path / "s") as store, pytest.raises(StoreConfigError, match=message):
        cystore.to_arrow(store, **options)


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreFormatError, match="there is no store here"):
        cystore.to_arrow(tmp_path / "missing")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("x")
    with pytest.raises(StoreFormatError, match=r"no store|not a store"):
        cystore.to_arrow(tmp_path / "foreign")


def test_an_empty_store_has_a_schema(tmp_path):
    with open_small(tmp_path / "s") as store:
        table = cystore.to_arrow(store).read_all()
    assert (table.num_rows, table.schema.names) == (0, list(arrow.COLUMNS))


def test_reading_does_not_import_pandas(tmp_path):
    """pyarrow does that by itself for most of what it is asked; in each of Spark's workers that would be most of a
    second."""
    with open_small(tmp_path / "s") as store:
        fill(store, 40)
        code = f"import sys, cystore; cystore.to_arrow({str(store.path)!r}).read_all(); print('pandas' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout == "False\n"


OF_THE_LOG = [name for name in arrow.COLUMNS if name != "store"]


@pytest.mark.parametrize(
    "columns", [OF_THE_LOG, ["value", "key"], ["properties", "keys", "tags"], ["offset", "timestamp"]]
)
def test_all_columns_of_a_batch_together_have_the_bytes_that_it_may(tmp_path, rng, columns):
    """Of several rows; what a row more would take is less than what is left over at the end of most batches."""
    with open_small(tmp_path / "s") as store:
        for number in range(800):
            keys = tuple(f"{number}-{n}" for n in range(rng.randint(0, 4)))
            properties = {f"name-{n}": "é" * (n + 1) for n in range(rng.randint(0, 5))}
            body = rng.randbytes(rng.choice((0, 10, 600)))
            store.put("topic", body, keys=keys, tags="tag", properties=properties)
        batches = list(cystore.to_arrow(store, columns=columns, batch_bytes=8000))
    assert sum(batch.num_rows for batch in batches) == 800
    sizes = [batch.nbytes for batch in batches if batch.num_rows > 1]
    assert sorted(sizes)[len(sizes) // 2] > 4000
    assert max(sizes) <= 8000


def test_memory_for_one_large_record_is_not_kept_for_small_ones(tmp_path):
    """Batches stay as small as they are asked for."""
    with open_small(tmp_path / "s") as store:
        for size in (10, 12_000, *[400] * 400):
            store.put("topic", bytes(size))
        sizes = [batch["value"].nbytes for batch in cystore.to_arrow(store, batch_bytes=2000)]
    assert sorted(sizes)[-2] <= 2000 + 4 * 10
    assert max(sizes) > 12_000


@pytest.mark.parametrize("field", ["batch_rows", "batch_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 30, 1.5, "many", True, None])
def test_a_size_of_batches_that_cannot_be_is_named(tmp_path, field, value):
    with open_small(tmp_path / "s") as store:
        store.put("topic", b"body")
        with pytest.raises(StoreConfigError, match=f"{field} must be a whole number from 1 to"):
            cystore.to_arrow(store, **{field: value})


def test_without_pyarrow_the_error_says_what_to_install():
    code = "import sys; sys.modules['pyarrow'] = None; import cystore; cystore.to_arrow"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert "ImportError: cystore.to_arrow needs pyarrow: pip install 'cystore[arrow]'" in done.stderr


def test_all_other_names_are_there_without_pyarrow():
    code = "import sys; sys.modules['pyarrow'] = None; from cystore import *; print(MessageStore)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert "cystore.store.MessageStore" in done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["nfs", "smb2", "fuse"])
def test_a_file_that_another_host_may_change_is_read_and_not_mapped(tmp_path, monkeypatch, kind):
    with open_small(tmp_path / "store") as store:
        fill(store, 200)
        expected = rows(store)
        monkeypatch.setattr(platform, "file_system", lambda path: kind)
        monkeypatch.delattr(files, "map_file")
        assert rows(store) == expected
        (first,) = rows(store, end=1)
        assert first == expected[0]
