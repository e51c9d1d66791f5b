"""Goal: `cystore.scan` gives polars, DuckDB and pyarrow the rows that they ask for, again and again, and reads little
more. Method: small stores; each filter beside the same filter on the whole table; what was planned and decoded is
watched."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

import cystore
from cystore.columns import dataset as module
from cystore.columns.arrow import COLUMNS, RowFilter
from cystore.columns.expressions import narrowed
from tests.support.small_stores import LOG_BYTES, open_small

pytestmark = pytest.mark.unsanitized  # libraries that read what tests of columns have made

field = pc.field


def put_some(store: cystore.MessageStore, count: int, first: int = 0) -> None:
    store.put_many(
        [
            cystore.Message(
                topic=("orders", "a%b|c", "and")[number % 3],
                queue_id=number % 2,
                body=b"body %d" % number,
                keys=(f"key-{number % 50}", "all") if number % 5 else (),
                tags=None if number % 4 == 0 else ("odd", "even")[number % 2],
            )
            for number in range(first, first + count)
        ]
    )
    store.flush()


@pytest.fixture
def store(tmp_path: Any) -> Any:
    with open_small(tmp_path / "store") as opened:
        put_some(opened, 300)
        yield opened


class Watched:
    """The plans and reads of scans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[RowFilter] = []
        self.columns: set[tuple[str, ...]] = set()

        def read(ranges: Any, settings: Any, real: Any = module.read_ranges) -> Any:
            self.rows.append(settings.rows)
            self.columns.add(settings.columns)
            return real(ranges, settings)

        monkeypatch.setattr(module, "read_ranges", read)


def moment(ms: int, more: timedelta = timedelta()) -> pa.Scalar:
    return pa.scalar(
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) + more, pa.timestamp("us", "UTC")
    )


def test_every_filter_keeps_what_it_keeps_of_the_whole_table(store):
    data, whole = cystore.scan(store.path), cystore.to_arrow(store.path).read_all()
    times = sorted({message.store_timestamp_ms for message in store.scan()})
    middle, place = times[len(times) // 2], whole["physical_offset"][100].as_py()
    hour = timedelta(hours=1)
    for wanted in [
        field("topic") == "orders",
        (field("topic") == "a%b|c") & (field("offset") >= 20) & (field("offset") < 30),
        (field("topic") == "orders") | (field("topic") == "and"),
        (field("topic") == "orders") | (field("tags") == "odd"),
        field("topic").isin(["orders", "and"]),
        ~(field("topic") == "orders"),
        (field("topic") == "orders") & ~(field("tags") == "odd"),
        field("topic") == 'and (topic == "orders")',
        field("topic") == "\\",
        field("key") == "key-7",
        (field("key") == "all"),
        (field("tags") == "even") & (field("partition") == 1),
        field("tags").is_null(),
        field("timestamp") >= moment(middle),
        field("timestamp") > moment(middle),
        field("timestamp") < moment(middle),
        field("timestamp") <= moment(middle, timedelta(microseconds=-1)),
        field("timestamp") == moment(middle),
        (field("timestamp") >= moment(times[0], -hour)) & (field("timestamp") < moment(times[-1], hour)),
        field("timestamp") > moment(times[-1], hour),
        pc.scalar(place) <= field("physical_offset"),
        field("physical_offset") != place,
        field("offset") > 3.5,
        (field("offset") > 40) & (field("offset") < 40),
        field("offset") + 1 == field("physical_offset"),
        field("value") == b"body 17",
        pc.list_value_length(field("keys")) == 2,
        pc.starts_with(field("topic"), "or"),
    ]:
        assert data.to_table(filter=wanted).equals(whole.filter(wanted)), str(wanted)
        assert data.count_rows(filter=wanted) == whole.filter(wanted).num_rows, str(wanted)
        few = data.to_table(columns=["value", "offset"], filter=wanted)
        assert few.equals(whole.filter(wanted).select(["value", "offset"])), str(wanted)


def test_values_that_are_no_plain_strings(store):
    """A filter with bytes gave no row: their text is that of a string of hex digits. A partition beyond 32 bits was
    an OverflowError."""
    data, whole = cystore.scan(store.path), cystore.to_arrow(store.path).read_all()
    for column, value in (("topic", b"orders"), ("tags", b"odd"), ("key", b"key-7")):
        for kind in (pa.binary(), pa.large_binary(), pa.binary(len(value))):
            for wanted in (
                field(column) == pa.scalar(value, kind),
                (field(column) == pa.scalar(value, kind)) | (field(column) == "even"),
            ):
                expected = whole.filter(wanted)
                assert data.to_table(filter=wanted).equals(expected) and expected.num_rows, str(wanted)
    for number in (2**31, -(2**31) - 1, 2**40, 2**63 - 1):
        for wanted in (
            field("partition") == number,
            (field("partition") == number) | (field("partition") == 1),
        ):
            expected = whole.filter(wanted)
            assert data.to_table(filter=wanted).equals(expected), str(wanted)
            assert data.count_rows(filter=wanted) == expected.num_rows


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("stores", {"stores": wrong}) for wrong in (None, 5, "\0", [b"path"], [None])),
        *(("storage", {"storage": wrong}) for wrong in (5, {"a": 5})),
        ("progress", {"progress": 5}),
    ],
)
def test_arguments_of_another_kind(name, arguments):
    """They were a TypeError or a ValueError that named nothing, some only at the first scan."""
    with pytest.raises(cystore.StoreConfigError, match=name):
        cystore.scan(**{"stores": "nowhere", **arguments})


def test_only_what_is_asked_for_is_read(store, monkeypatch):
    watched = Watched(monkeypatch)
    data = cystore.scan(store.path)
    data.to_table(columns=["value"], filter=(field("topic") == "orders") & (field("offset") < 5))
    assert watched.columns == {("value", "topic", "offset")}
    assert {(rows.topics, rows.offsets[1]) for rows in watched.rows} == {(("orders",), 5)}
    watched.columns.clear()
    assert data.count_rows() == 300
    assert watched.columns == {("offset",)}
    watched.columns.clear()
    watched.rows.clear()
    twice = data.to_table(columns={"double": pc.multiply(field("offset"), 2)})
    assert twice.column_names == ["double"] and watched.columns == {("offset",)}
    first = store.snapshot().file_bytes
    watched.rows.clear()
    data.to_table(filter=field("physical_offset") < first)
    assert len(watched.rows) == 1, "one segment of several"
    watched.rows.clear()
    assert data.count_rows(filter=(field("offset") > 40) & (field("offset") < 40)) == 0
    assert not watched.rows


def test_what_a_filter_says_becomes_bounds():
    everything = RowFilter()
    ms = 1_700_000_000_123
    for wanted, bounds in [
        (
            field("timestamp") >= moment(ms, timedelta(microseconds=1)),
            {"times_ms": (ms + 1, everything.times_ms[1])},
        ),
        (field("timestamp") > moment(ms), {"times_ms": (ms + 1, everything.times_ms[1])}),
        (
            field("timestamp") < moment(ms, timedelta(microseconds=1)),
            {"times_ms": (everything.times_ms[0], ms + 1)},
        ),
        (pc.scalar(7) > field("offset"), {"offsets": (0, 7)}),
        ((field("partition") == 1) & (field("offset") == 3), {"queue_ids": (1,), "offsets": (3, 4)}),
        (
            (field("tags") == "a") | ((field("tags") == "b") | (field("tags") == "c")),
            {"tags": ("a", "b", "c")},
        ),
        (field("topic") == "\ufffd", {}),
        (field("topic") == "", {}),
        (field("topic") == pa.scalar(b"orders"), {}),
        (field("topic") == pa.scalar('a) and (topic == "b")', pa.string_view()), {}),
        (
            (field("topic") == "orders") & (field("value") == b"x") & (field("tags") == pa.scalar(b"a")),
            {"topics": ("orders",)},
        ),
        (pc.field(2) == "orders", {}),
    ]:
        assert narrowed(everything, wanted) == RowFilter(**bounds), str(wanted)
    assert narrowed(RowFilter(topics=("a",)), field("topic") == "b") is None
    assert narrowed(RowFilter(keys=("a",)), field("key") == "b") == RowFilter(keys=("a",))


def test_paths_globs_and_lists_are_read_again_and_again(store, tmp_path):
    with open_small(tmp_path / "store-2") as other:
        put_some(other, 20)
    told: list[tuple[int, int]] = []
    data = cystore.scan(
        tmp_path / "store*", columns=["store", "offset"], progress=lambda *now: told.append(now)
    )
    for _ in range(2):
        assert data.count_rows() == 320
    assert told == sorted(told[: len(told) // 2]) * 2 and told[-1][0] == told[-1][1] > 0
    put_some(store, 5, 300)
    assert data.count_rows() == 325, "each scan is a snapshot of its own"
    both = [tmp_path / "store-2", str(tmp_path / "store"), tmp_path / "store*"]
    assert cystore.scan(both).count_rows() == cystore.to_arrow(both).read_all().num_rows == 325
    assert cystore.to_arrow(str(tmp_path / "store*"), columns=["store"]).read_all()[
        "store"
    ].unique().to_pylist() == [
        str(tmp_path / "store"),
        str(tmp_path / "store-2"),
    ]
    assert cystore.scan(store).count_rows() == cystore.to_arrow([store]).read_all().num_rows == 305
    assert cystore.scan(f"file://{tmp_path}/store*").count_rows() > 200, "what is sealed"
    again = pickle.loads(pickle.dumps(cystore.scan(tmp_path / "store-2").filter(field("offset") < 3)))
    assert again.to_table().num_rows == cystore.scan(tmp_path / "store-2").count_rows(field("offset") < 3) > 0
    for wrong in ([], [3], ""):
        with pytest.raises(cystore.StoreConfigError):
            cystore.scan(wrong).count_rows()
    for missing in (tmp_path / "nope*", f"file://{tmp_path}/nope*"):
        with pytest.raises(cystore.StoreFormatError, match="no store matches"):
            cystore.scan(missing).count_rows()


def test_a_dataset_is_what_arrow_calls_one(store):
    data = cystore.scan(store.path, columns=["topic", "offset", "partition"], topic="orders", tags="odd")
    assert isinstance(data, pds.Dataset) and data.schema == pa.schema(
        [(n, COLUMNS[n]) for n in data.schema.names]
    )
    whole = cystore.to_arrow(store.path, columns=data.schema.names, topic="orders", tags="odd").read_all()
    assert data.to_table().equals(whole) and whole.num_rows
    assert pa.Table.from_batches(data.to_batches()).equals(whole)
    assert data.head(3).equals(whole.slice(0, 3)) and data.take([2, 0]).equals(whole.take([2, 0]))
    assert (
        data.sort_by([("offset", "descending")]).to_table().equals(whole.sort_by([("offset", "descending")]))
    )
    assert data.filter(field("offset") < 9).filter(field("offset") > 5).to_table().num_rows == 1
    assert sum(part.count_rows() for part in data.get_fragments()) == whole.num_rows
    renamed = whole.select(["offset", "topic"]).rename_columns(["offset", "other"])
    assert data.join(pds.InMemoryDataset(renamed), "offset").to_table().num_rows >= whole.num_rows
    assert data.replace_schema(pa.schema([("offset", pa.int64())])).to_table().column_names == ["offset"]
    with pytest.raises(FileNotFoundError, match="use its scanner, to_batches or to_table"):
        pds.Scanner.from_dataset(data).to_table()
    with pytest.raises(cystore.StoreConfigError, match="no column nope"):
        cystore.scan(store.path, columns=["nope"])


def test_damage_is_told_through_arrow(store):
    bad = [message.physical_offset for message in store.scan()][40]
    data = cystore.scan(store.path)
    path = store.path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(bad + 100)
        file.write(b"\xff\xfe\xfd")
    with pytest.raises(cystore.CorruptRecordError) as error:
        data.to_table()
    assert error.value.offset == bad
    assert cystore.scan(store.path, on_corruption="skip").count_rows() == 299


@pytest.mark.parametrize("home", ["", "file://"])
def test_a_segment_that_is_missing_between_others(tmp_path, home):
    """`store.scan` steps over it. These raised whatever on_corruption said, and named an option that only Spark has."""
    path = tmp_path / "lossy"
    with open_small(path) as opened:
        put_some(opened, 600)
    (path / "commitlog" / f"{LOG_BYTES:020d}").unlink()
    with cystore.open(path, read_only=True) as opened:
        left = {message.physical_offset for message in opened.scan()}
        assert opened.stats()["holes"] == [(LOG_BYTES, 2 * LOG_BYTES)]
    where = f"{home}{path}"
    skipped = cystore.scan(where, on_corruption="skip").to_table()
    found = skipped["physical_offset"].to_pylist()
    assert found == sorted(found) and max(found) > 2 * LOG_BYTES
    assert left == set(found) if not home else left > set(found)  # a URL gives what is sealed
    shown = cystore.scan(where, on_corruption="column")
    assert shown.count_rows() == len(found) + 1
    (lost,) = shown.to_table(filter=field("corrupt").is_valid()).to_pylist()
    assert (lost["physical_offset"], lost["corrupt_end"]) == (LOG_BYTES, 2 * LOG_BYTES)
    assert shown.count_rows(filter=field("physical_offset") < LOG_BYTES) == sum(
        at < LOG_BYTES for at in found
    )
    with pytest.raises(cystore.StoreError, match="missing") as error:
        cystore.scan(where).to_table()
    assert "on_corruption" in str(error.value) and error.value.offset == LOG_BYTES
    if not home:
        assert cystore.to_arrow(path, on_corruption="skip").read_all().equals(skipped)
        assert cystore.to_arrow(path, on_corruption="column").read_all().equals(shown.to_table())


def test_duckdb_pushes_columns_and_filters(store, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="pip install 'cystore[arrow-tests]'")
    watched = Watched(monkeypatch)
    duckdb.register("data", cystore.scan(store.path))
    found = duckdb.sql("SELECT max(\"offset\") FROM data WHERE topic = 'orders' AND partition = 1").fetchall()
    wanted = [m.queue_offset for m in store.scan() if m.topic == "orders" and m.queue_id == 1]
    assert found == [(max(wanted),)]
    assert watched.columns == {("topic", "partition", "offset")}
    assert {(rows.topics, rows.queue_ids) for rows in watched.rows} == {(("orders",), (1,))}
    assert duckdb.sql("SELECT count(*) FROM data").fetchall() == [(300,)]


def test_polars_pushes_columns_and_filters(store, monkeypatch):
    polars = pytest.importorskip("polars", reason="pip install 'cystore[arrow-tests]'")
    watched = Watched(monkeypatch)
    lazy = polars.scan_pyarrow_dataset(cystore.scan(store.path))
    query = lazy.filter((polars.col("topic") == "orders") & (polars.col("offset") < 5)).select(
        "value", "offset"
    )
    for _ in range(2):
        assert sorted(query.collect()["offset"].to_list()) == sorted(
            m.queue_offset for m in store.scan() if m.topic == "orders" and m.queue_offset < 5
        )
    assert {frozenset(names) for names in watched.columns} == {frozenset(("value", "topic", "offset"))}
    assert {(rows.topics, rows.offsets[1]) for rows in watched.rows} == {(("orders",), 5)}
    assert lazy.select(polars.len()).collect().item() == 300
