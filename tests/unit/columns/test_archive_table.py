"""Goal: an archive as a Delta or Iceberg table holds what the log held, each record once, whenever a run is killed,
and segments go only after the commit. Method: stores of small segments, archived by this process or by one that kills
itself at each place of a commit; the tables are read by pyarrow, DuckDB and polars. Spark, which needs jars for it,
reads none here."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")
pytest.importorskip("deltalake", reason="pip install 'cystore[delta]'")
pytest.importorskip("pyiceberg", reason="pip install 'cystore[iceberg]'")

import pyarrow as pa

import cystore
from cystore.columns.archiver import archive_store
from cystore.columns.parquet import OF_LOG
from cystore.services.retention.archive_mark import content_of
from tests.support.disks.access import check_access, no_umask
from tests.support.process import Process
from tests.support.s3 import BUCKET, SECRET, S3Server, object_store
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small
from tests.unit.columns.test_archiver import EXPIRED, archive_rows, check_folder, log_rows, put_some

pytestmark = [
    pytest.mark.unsanitized,  # about tables of Parquet files
    pytest.mark.filterwarnings("ignore:Iceberg scan planning"),  # of polars, which has a faster plugin
    pytest.mark.sampled(1),  # one of the formats in each test
]
FORMATS = ("delta", "iceberg")


def opened(folder: Path) -> Any:
    """The archive's table as its own library has it."""
    if (folder / "catalog.db").exists():
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("cystore", uri=f"sqlite:///{folder}/catalog.db").load_table("cystore.archive")
    from deltalake import DeltaTable

    return DeltaTable((folder / "data").as_uri())


def by_arrow(table: Any) -> pa.Table:
    found = table.scan().to_arrow() if hasattr(table, "io") else table.to_pyarrow_dataset().to_table()
    return found.select(OF_LOG).sort_by("physical_offset")


def by_duckdb(table: Any) -> int:
    duckdb = pytest.importorskip("duckdb", reason="pip install 'cystore[arrow-tests]'")
    given = table.scan().to_arrow() if hasattr(table, "io") else table.to_pyarrow_dataset()
    with duckdb.connect() as own:
        own.register("given", given)
        return own.sql("SELECT count(DISTINCT physical_offset) FROM given WHERE topic = 'plain'").fetchall()[
            0
        ][0]


def by_polars(table: Any) -> int:
    polars = pytest.importorskip("polars", reason="pip install 'cystore[arrow-tests]'")
    frame = polars.scan_iceberg(table) if hasattr(table, "io") else polars.scan_delta(table)
    return int(frame.filter(polars.col("topic") == "plain").select(polars.len()).collect().item())


def commits(table: Any) -> list[int]:
    """Where each commit ends, in the log; oldest first."""
    if hasattr(table, "io"):
        return [int(one.summary["cystore.archived-up-to"]) for one in table.snapshots()]
    found = [one.get("cystore.archived-up-to") for one in reversed(table.history())]
    return [int(end) for end in found if end is not None]


def check_table(store: cystore.MessageStore, folder: Path, expected: pa.Table) -> None:
    """The table has the rows of the log, and one commit for each manifest."""
    table = opened(folder)
    found = by_arrow(table)
    assert found["physical_offset"].to_pylist() == expected["physical_offset"].to_pylist()
    for name in OF_LOG:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    assert commits(table) == [one.end for one in content_of(store.archived()).manifests]


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_is_the_log_column_for_column_for_every_reader(tmp_path, format):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        first = archive_store(store, tmp_path / "a", format=format, all_sealed=True, step_bytes=40_000)
        assert (first.format, first.commits) == (format, 2)
        expected = log_rows(store, first.archived_up_to)
        check_table(store, tmp_path / "a", expected)
        assert store.clean().segments == first.segments
        put_some(store, 200, 200)
        second = archive_store(store, tmp_path / "a", all_sealed=True)
        assert (second.format, second.commits) == (format, 1), "a later run need not say the format"
        assert archive_store(store, tmp_path / "a", format=format, all_sealed=True).commits == 0
        everything = pa.concat_tables([expected, log_rows(store, second.archived_up_to)])
        check_table(store, tmp_path / "a", everything)
        assert archive_rows(store).equals(everything), "includeArchive reads the same files"
        table = opened(tmp_path / "a")
        plain = everything["topic"].to_pylist().count("plain")
        assert by_duckdb(table) == by_polars(table) == plain > 100


@pytest.mark.parametrize("format", FORMATS)
def test_hives_name_of_a_missing_value_is_a_topic_like_others(tmp_path, format):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        names = ("__HIVE_DEFAULT_PARTITION__", "%", "plain")
        store.put_many([cystore.Message(topic=names[n % 3], body=b"x" * 300) for n in range(200)])
        store.flush()
        done = archive_store(store, tmp_path / "a", format=format, all_sealed=True)
        check_table(store, tmp_path / "a", log_rows(store, done.archived_up_to))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_table_is_for_its_owner_alone_or_for_the_group_of_its_folder(tmp_path, format, shared):
    """Also the files that the tables' libraries make: they have statistics of the messages' columns."""
    access = {"file": 0o660, "folder": 0o2770} if shared else {}
    with open_small(tmp_path / "s", **EXPIRED) as store, no_umask():
        put_some(store)
        (tmp_path / "a").mkdir(mode=0o700)
        if shared:
            (tmp_path / "a").chmod(0o2770)
        archive_store(store, tmp_path / "a", format=format, all_sealed=True)
    check_access(tmp_path / "a", **access)


def test_a_table_lies_in_a_folder_of_any_name_that_its_library_finds(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        for name in FORMATS:
            folder = tmp_path / f"für {name}"
            done = archive_store(store, folder, format=name, all_sealed=True)
            assert by_arrow(opened(folder)).equals(log_rows(store, done.archived_up_to))
            assert store.archive_mark.end()
        for name, character in (("delta", "%"), ("iceberg", "%"), ("iceberg", "#"), ("iceberg", "?")):
            with pytest.raises(cystore.StoreConfigError, match="in its name"):
                archive_store(store, tmp_path / f"{character}41", format=name)
        assert store.archived() is None


PROGRAM = """
import os, signal
import cystore
from cystore.columns import archive_delta, archive_iceberg, archive_table, archiver
seen = []
def here(what):
    seen.append(what)
    if (place == "any" and len(seen) == nth) or (what == place and seen.count(what) == nth):
        os.kill(os.getpid(), signal.SIGKILL)
def around(owner, name, before, after):
    real = getattr(owner, name)
    def wrapped(*arguments, **options):
        here(before)
        found = real(*arguments, **options)
        here(after)
        return found
    setattr(owner, name, wrapped)
around(archive_delta.DeltaTable, "create_write_transaction", "before the commit", "after the commit")
around(archive_iceberg.SqlCatalog, "commit_table", "before the commit", "after the commit")
around(archive_table.Place, "publish", "to be copied", "copied")
around(archive_delta.DeltaArchive, "_made", "before the table", "after the table")
around(archive_iceberg.IcebergArchive, "_made", "before the table", "after the table")
store = cystore.open(path, **settings)
archiver.archive_store(
    store, folder, format=format, all_sealed=True, step_bytes=1, report=lambda what, done, total: here(what), **at_url
)
"""
PLACES = ("before the commit", "after the commit", "committed", "named")
MORE_PLACES = ("before the table", "after the table", "placed", "verified", "archived")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "place", [*PLACES, *(pytest.param(place, marks=pytest.mark.slow) for place in MORE_PLACES)]
)
def test_i7_killed_anywhere_a_table_lacks_nothing_and_has_nothing_twice(tmp_path, format, place):
    given = {
        "path": str(tmp_path / "s"),
        "folder": str(tmp_path / "a"),
        "settings": {**SETTINGS, **EXPIRED},
        "at_url": {},
    }
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        with Process() as other, pytest.raises(EOFError):
            other.do(PROGRAM, **given, format=format, place=place, nth=1 if "the table" in place else 2)
        known = store.archived().up_to
        released = store.clean().min_physical_offset
        assert released == known
        if place != "before the table" and (tmp_path / "a" / "data").exists():
            assert max(commits(opened(tmp_path / "a")), default=0) >= released, (
                "nothing goes before its commit"
            )
        rows = log_rows(store)
        before = by_arrow(opened(tmp_path / "a")) if known else rows.slice(0, 0)
        put_some(store, 80, 400)
        done = archive_store(store, tmp_path / "a", all_sealed=True)
        log = pa.concat_tables([before, log_rows(store, done.archived_up_to)])
        expected = sorted(set(log["physical_offset"].to_pylist()))
        found = by_arrow(opened(tmp_path / "a"))
        assert found["physical_offset"].to_pylist() == expected
        assert archive_rows(store).equals(found)
        assert commits(opened(tmp_path / "a")) == [one.end for one in content_of(store.archived()).manifests]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_i7_killed_again_and_again_at_any_place(tmp_path, format, seed):
    chosen = random.Random(seed)
    given = {
        "path": str(tmp_path / "s"),
        "folder": str(tmp_path / "a"),
        "settings": {**SETTINGS, **EXPIRED},
        "at_url": {},
    }
    with open_small(tmp_path / "s", **EXPIRED) as store:
        everything = []
        for life in range(10):
            put_some(store, 200, life * 200)
            everything += [
                message.physical_offset
                for message in store.scan()
                if message.physical_offset not in set(everything)
            ]
            with Process() as other, pytest.raises(EOFError):
                other.do(PROGRAM, **given, format=format, place="any", nth=chosen.randrange(1, 25))
            released = store.clean().min_physical_offset
            if released:
                assert max(commits(opened(tmp_path / "a"))) >= released, "nothing goes before its commit"
        done = archive_store(store, tmp_path / "a", format=format, all_sealed=True)
        found = by_arrow(opened(tmp_path / "a"))["physical_offset"].to_pylist()
        assert found == [at for at in everything if at < done.archived_up_to]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with object_store() as started:
        started.system.create_dir(BUCKET)
        yield started


def opened_at(server: S3Server, url: str, folder: Path) -> Any:
    """The table at a URL as its own library has it, without anything of cystore."""
    where = f"http://{server.endpoint}"
    if (folder / "catalog.db").exists():
        from pyiceberg.table import StaticTable

        given = {
            "endpoint": where,
            "access-key-id": "AKIATEST",
            "secret-access-key": SECRET,
            "region": "us-east-1",
        }
        return StaticTable.from_metadata(url, {f"s3.{name}": value for name, value in given.items()})
    from deltalake import DeltaTable

    given = {
        "ENDPOINT_URL": where,
        "ACCESS_KEY_ID": "AKIATEST",
        "SECRET_ACCESS_KEY": SECRET,
        "REGION": "us-east-1",
    }
    options = {f"AWS_{name}": value for name, value in given.items()}
    return DeltaTable(url, storage_options={**options, "AWS_ALLOW_HTTP": "true"})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("format", FORMATS)
def test_a_table_in_an_object_store_is_the_log_column_for_column(tmp_path, server, format):
    url = f"s3://{BUCKET}/every-column/{format}"
    folder = tmp_path / "a"
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        first = archive_store(
            store,
            folder,
            format=format,
            table=url,
            storage=server.options,
            all_sealed=True,
            step_bytes=40_000,
        )
        assert first.commits == 2 and first.table.startswith(url)
        expected = log_rows(store, first.archived_up_to)
        assert by_arrow(opened_at(server, first.table, folder)).equals(expected)
        assert store.clean().segments == first.segments
        put_some(store, 200, 200)
        second = archive_store(store, folder, storage=server.options, all_sealed=True)
        assert second.commits == 1, "a later run need not name the table"
        everything = pa.concat_tables([expected, log_rows(store, second.archived_up_to)])
        table = opened_at(server, second.table, folder)
        assert by_arrow(table).equals(everything)
        assert commits(table) == [one.end for one in content_of(store.archived()).manifests]
        assert archive_rows(store).equals(everything), "includeArchive reads the files in the folder"
        assert not (folder / "data" / "_delta_log").exists() and not (folder / "data" / "metadata").exists()
        kept = [*folder.rglob("*"), *(store.path / "config").rglob("*"), *store.path.glob("*.json")]
        assert not [path for path in kept if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", ["before the commit", "after the commit", "copied"])
def test_i7_killed_a_table_in_an_object_store_lacks_nothing_and_has_nothing_twice(
    tmp_path, server, format, place
):
    given = {
        "path": str(tmp_path / "s"),
        "folder": str(tmp_path / "a"),
        "settings": {**SETTINGS, **EXPIRED},
        "at_url": {"table": f"s3://{BUCKET}/{place.replace(' ', '-')}/{format}", "storage": server.options},
    }
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        with Process() as other, pytest.raises(EOFError):
            other.do(PROGRAM, **given, format=format, place=place, nth=2)
        known = store.archived().up_to
        assert store.clean().min_physical_offset == known > 0
        put_some(store, 80, 400)
        expected = pa.concat_tables([archive_rows(store), log_rows(store)])["physical_offset"].to_pylist()
        done = archive_store(store, tmp_path / "a", storage=server.options, all_sealed=True)
        table = opened_at(server, done.table, tmp_path / "a")
        found = by_arrow(table)["physical_offset"].to_pylist()
        assert found == [at for at in expected if at < done.archived_up_to]
        assert commits(table) == [one.end for one in content_of(store.archived()).manifests]


def test_a_table_that_cannot_be_at_a_url_is_refused_before_anything_is_written(tmp_path, server):
    with server.system.open_output_stream(f"{BUCKET}/used/table/file") as out:
        out.write(b"precious")
    used, free = f"s3://{BUCKET}/used/table", f"s3://{BUCKET}/free"
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        for more, error, match in (
            ({"format": "delta", "table": used}, cystore.StoreConfigError, "there are files in"),
            ({"format": "iceberg", "table": used}, cystore.StoreConfigError, "there are files in"),
            ({"table": free}, cystore.StoreConfigError, "only format delta and iceberg"),
            (
                {"format": "delta", "table": "/folder"},
                cystore.StoreConfigError,
                "must be like s3://bucket/path",
            ),
            (
                {"format": "delta", "table": "gs://b/p"},
                cystore.StoreConfigError,
                "must be like s3://bucket/path",
            ),
            (
                {"format": "iceberg", "table": "s3://missing/p"},
                cystore.StoreFormatError,
                "there is no bucket",
            ),
        ):
            with pytest.raises(error, match=match) as refused:
                archive_store(store, tmp_path / "a", storage=server.options, all_sealed=True, **more)
            assert SECRET not in str(refused.value)
            assert store.archived() is None, more
            assert not list(tmp_path.glob("a/*")), more
        with pytest.raises(cystore.StoreConfigError, match="storage option nope"):
            archive_store(store, tmp_path / "a", format="delta", table=free, storage={"nope": "1"})
        with pytest.raises(cystore.StoreConfigError, match="option table"):
            archive_store(store, free, format="delta")
        archive_store(
            store, tmp_path / "a", format="delta", table=free, storage=server.options, all_sealed=True
        )
        with pytest.raises(cystore.StoreConfigError, match="has its table in s3://bucket/free, not in"):
            archive_store(store, tmp_path / "a", table=f"{free}er", storage=server.options)
        assert store.archive_mark.end()
        archive_store(store, tmp_path / "a", storage=server.options, restore=True)
        assert store.archived().table == free, "the manifests name the table"


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_that_was_lost_is_made_again_from_the_manifests(tmp_path, format, caplog):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", format=format, all_sealed=True, step_bytes=20_000)
        expected = by_arrow(opened(tmp_path / "a"))
        store.clean()
        for name in ("data/_delta_log", "data/metadata"):
            shutil.rmtree(tmp_path / "a" / name, ignore_errors=True)
        (tmp_path / "a" / "catalog.db").unlink(missing_ok=True)
        archive_store(store, tmp_path / "a", all_sealed=True)
        assert "the table lacked" in caplog.text
        assert by_arrow(opened(tmp_path / "a")).equals(expected)
        check_table(store, tmp_path / "a", expected)


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_that_knows_more_than_the_manifests_refuses(tmp_path, format):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", format=format, all_sealed=True, step_bytes=20_000)
        known = content_of(store.archived())
        newest = known.manifests[-1]
        (tmp_path / "a" / newest.name).unlink()
        store.archive_mark.restore(
            type(known.archived)(
                known.archived.archive_id, known.archived.folder, newest.begin, newest.previous, format
            )
        )
        with pytest.raises(cystore.StoreFormatError, match="the table goes up to"):
            archive_store(store, tmp_path / "a", all_sealed=True)


def test_bad_input_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        with pytest.raises(cystore.StoreConfigError, match="parquet, delta, iceberg, not 'avro'"):
            archive_store(store, tmp_path / "a", format="avro")
        assert not (tmp_path / "a").exists()
        for inside in ("", "data"):
            folder = tmp_path / f"table{inside}"
            (folder / inside / "_delta_log").mkdir(parents=True)
            for name in (None, *FORMATS):
                with pytest.raises(cystore.StoreConfigError, match="name another folder"):
                    archive_store(store, folder, format=name)
        monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
        monkeypatch.delitem(__import__("sys").modules, "cystore.columns.archive_delta", raising=False)
        with pytest.raises(
            cystore.StoreConfigError, match=r"needs deltalake: pip install 'cystore\[delta\]'"
        ):
            archive_store(store, tmp_path / "a", format="delta")
        assert store.archived() is None and not (tmp_path / "a").exists()


def test_another_format_than_before_is_refused(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a")
        for name in FORMATS:
            with pytest.raises(cystore.StoreConfigError, match=f"has format parquet, not {name}"):
                archive_store(store, tmp_path / "a", format=name, all_sealed=True)
        store.archive_mark.end()
        archive_store(store, tmp_path / "b", format="delta", all_sealed=True)
        with pytest.raises(cystore.StoreConfigError, match="has format delta, not parquet"):
            archive_store(store, tmp_path / "b", format="parquet")
        store.archive_mark.end()
        with pytest.raises(cystore.StoreConfigError, match="has format delta, not iceberg"):
            archive_store(store, tmp_path / "b", format="iceberg", restore=True)
        archive_store(store, tmp_path / "b", restore=True)
        assert store.archived().format == "delta"


def test_a_foreign_table_or_other_columns_are_refused(tmp_path):
    from deltalake import DeltaTable, Schema

    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", format="delta", all_sealed=True)
        before = store.archived()
        told = {"cystore.archive-id": before.archive_id}
        other = Schema.from_arrow(pa.schema([("topic", pa.string()), ("offset", pa.string())]))
        for configuration, error, match in (
            ({"cystore.archive-id": "x"}, cystore.StoreConfigError, "of another archive"),
            ({}, cystore.StoreConfigError, "of somebody else"),
            (told, cystore.StoreFormatError, "no column key.*offset is"),
        ):
            shutil.rmtree(tmp_path / "a" / "data" / "_delta_log")
            where = (tmp_path / "a" / "data").as_uri()
            DeltaTable.create(where, other, configuration=configuration, raise_if_key_not_exists=False)
            with pytest.raises(error, match=match):
                archive_store(store, tmp_path / "a", all_sealed=True)
        assert store.archived() == before


def test_an_iceberg_archive_that_was_moved_says_what_to_do(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", format="iceberg", all_sealed=True)
        expected = by_arrow(opened(tmp_path / "a"))
        shutil.move(tmp_path / "a", tmp_path / "b")
        with pytest.raises(cystore.StoreConfigError, match=r"remove catalog\.db and data/metadata"):
            archive_store(store, tmp_path / "b", all_sealed=True)
        shutil.rmtree(tmp_path / "b" / "data" / "metadata")
        (tmp_path / "b" / "catalog.db").unlink()
        archive_store(store, tmp_path / "b", all_sealed=True)
        assert by_arrow(opened(tmp_path / "b")).equals(expected)


def test_a_delta_archive_may_be_moved(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", format="delta", all_sealed=True)
        shutil.move(tmp_path / "a", tmp_path / "b")
        put_some(store, 100, 200)
        done = archive_store(store, tmp_path / "b", all_sealed=True)
        assert done.commits == 1
        check_table(store, tmp_path / "b", log_rows(store, done.archived_up_to))
        check_folder_of_files(tmp_path / "b", store)


def check_folder_of_files(folder: Path, store: cystore.MessageStore) -> None:
    """As `check_folder` has it for plain Parquet: checkpoints of Delta's log are Parquet files too, and are none of
    ours."""
    assert not list((folder / "data" / "_delta_log").glob("*.parquet"))
    check_folder(folder, store)


@pytest.mark.parametrize("format", FORMATS)
def test_a_step_of_which_nothing_is_left_is_a_commit_too(tmp_path, format):
    """Every record of the first segment is damaged."""
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        with (store.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            for message in store.scan(end=LOG_BYTES):
                file.seek(message.physical_offset + message.size_bytes // 2)
                file.write(b"\xff\xfe\xfd")
        options = {"all_sealed": True, "skip_damage": True, "step_bytes": 1}
        done = archive_store(store, tmp_path / "a", format=format, **options)
        first = content_of(store.archived()).manifests[0]
        assert first.rows == 0 and done.rows > 0
        found = by_arrow(opened(tmp_path / "a"))["physical_offset"].to_pylist()
        assert found == archive_rows(store)["physical_offset"].to_pylist() and len(found) == done.rows
