"""Goal: all runs of an archive are one Hive layout that other tools read with no option, and an archive of an earlier
version becomes one with its next run, also when that run is killed. Method: archives of several runs, read by
pyarrow, DuckDB and polars; archives that are put back into the old layout. Spark reads them in
tests/spark/test_archive.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

import pyarrow.parquet as pq

import cystore
from cystore.columns.archiver import archive_store
from cystore.columns.parquet import IN_FILES
from cystore.services.retention.archive_mark import content_of, render_manifest
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small
from tests.unit.columns.test_archiver import (
    EXPIRED,
    PROGRAM,
    archive_rows,
    check_folder,
    log_rows,
    put_some,
)

pytestmark = pytest.mark.unsanitized  # libraries that read what tests of columns have made

Rows = list[tuple[str, int, int]]


def by_arrow(data: Path) -> Rows:
    found = pq.read_table(data)
    assert set(IN_FILES) <= set(found.column_names)
    return rows_of(found.select(["topic", "partition", "offset"]))


def by_duckdb(data: Path) -> Rows:
    duckdb = pytest.importorskip("duckdb", reason="pip install 'cystore[arrow-tests]'")
    return sorted(
        duckdb.sql(
            f"SELECT topic, partition, \"offset\" FROM '{data}/**/*.parquet' WHERE date IS NOT NULL"
        ).fetchall()
    )


def by_polars(data: Path) -> Rows:
    polars = pytest.importorskip("polars", reason="pip install 'cystore[arrow-tests]'")
    return sorted(polars.read_parquet(data).select("topic", "partition", "offset").rows())


def rows_of(table: Any) -> Rows:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def put_back(folder: Path, store: Any) -> None:
    """As earlier versions laid the archive out: a folder for each step."""
    for part in content_of(store.archived()).manifests:
        listed = []
        for one in part.files:
            place = one.path.replace("data/", f"data/{Path(part.name).stem}/")
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / one.path).rename(folder / place)
            listed.append(replace(one, path=place))
        (folder / part.name).write_bytes(render_manifest(replace(part, files=tuple(listed))))
    for left in sorted((folder / "data").rglob("*"), reverse=True):
        if left.is_dir() and not any(left.iterdir()):
            left.rmdir()
    assert all(path.name[:20].isdigit() for path in (folder / "data").iterdir())


@pytest.mark.parametrize("reader", [by_arrow, by_duckdb, by_polars])
def test_an_archive_of_several_runs_is_read_with_no_option(tmp_path, reader):
    """Seen: a folder for each run above topic=T, which Spark refuses, and which others show as no column or as a
    wrong one."""
    with open_small(tmp_path / "s", **EXPIRED) as store:
        for first in (0, 200, 400):
            put_some(store, 200, first)
            archive_store(store, tmp_path / "a", all_sealed=True, step_bytes=40_000)
        assert len(content_of(store.archived()).manifests) > 3
        expected = rows_of(log_rows(store, store.archived().up_to).select(["topic", "partition", "offset"]))
    assert len(expected) > 400
    assert reader(tmp_path / "a" / "data") == expected


ODD = (
    "__HIVE_DEFAULT_PARTITION__",
    "_x",
    "%",
    "%5F_HIVE_DEFAULT_PARTITION__",
    "null",
    "1",
    "2026-01-31",
    "A",
    "a",
)


def test_topics_that_have_a_meaning_in_a_folders_name_stay_what_they_are(tmp_path):
    """Hive's name of a missing value is a legal topic. Arrow and polars unescape a folder's name before they compare
    it, so they show this topic alone as missing."""
    with open_small(tmp_path / "s", **EXPIRED) as store:
        store.put_many([cystore.Message(topic=ODD[n % len(ODD)], body=b"x" * 300) for n in range(360)])
        store.flush()
        archive_store(store, tmp_path / "a", all_sealed=True)
        expected = log_rows(store, store.archived().up_to)
        assert archive_rows(store).equals(expected)
    expected = rows_of(expected.select(["topic", "partition", "offset"]))
    assert {topic for topic, *_ in expected} == set(ODD)
    assert by_duckdb(tmp_path / "a" / "data") == expected
    for reader in (pq.read_table, _by_polars):
        found = reader(tmp_path / "a" / "data")["topic"].to_pylist()
        assert {ODD[0] if topic is None else topic for topic in found} == set(ODD)
        assert found.count(None) == sum(topic == ODD[0] for topic, *_ in expected)


def _by_polars(data: Path) -> Any:
    return pytest.importorskip("polars").read_parquet(data).to_arrow()


def test_an_old_archive_is_migrated_by_the_next_run(tmp_path):
    folder = tmp_path / "a"
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, folder, all_sealed=True, step_bytes=20_000)
        put_back(folder, store)
        before = archive_rows(store)
        assert before.num_rows > 100, "old archives are read as they are"
        put_some(store, 100, 200)
        told: list[str] = []
        done = archive_store(store, folder, all_sealed=True, report=lambda what, *_: told.append(what))
        assert told[0] == "migrated" and done.segments
        after = archive_rows(store)
        assert (
            after.slice(0, before.num_rows).equals(before) and after.num_rows == before.num_rows + done.rows
        )
        check_folder(folder, store)
        assert {path.name.partition("=")[0] for path in (folder / "data").iterdir()} == {"topic"}
        assert by_arrow(folder / "data") == rows_of(after.select(["topic", "partition", "offset"]))
        told.clear()
        archive_store(store, folder, all_sealed=True, report=lambda what, *_: told.append(what))
        assert told == []


@pytest.mark.unsanitized
def test_a_migration_that_was_killed_is_read_and_goes_on(tmp_path):
    folder = tmp_path / "a"
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, folder, all_sealed=True)
        before = archive_rows(store)
        put_back(folder, store)
        with Process() as other, pytest.raises(EOFError):
            other.do(
                PROGRAM,
                path=str(store.path),
                folder=str(folder),
                settings={**SETTINGS, **EXPIRED},
                place="between files",
                step_bytes=1 << 30,
            )
        layouts = {path.name.startswith("topic=") for path in (folder / "data").iterdir()}
        assert layouts == {True, False}, "some files were moved, and some were not"
        assert archive_rows(store).equals(before)
        archive_store(store, folder, all_sealed=True)
        assert archive_rows(store).equals(before)
        check_folder(folder, store)


def test_a_step_without_its_manifest_stays_as_it_is(tmp_path, caplog):
    folder = tmp_path / "a"
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, folder, all_sealed=True, step_bytes=20_000)
        put_back(folder, store)
        first, *others = content_of(store.archived()).manifests
        (folder / first.name).unlink()
        archive_store(store, folder, all_sealed=True)
    assert "keeps its old layout" in caplog.text
    kept = folder / "data" / Path(first.name).stem
    assert len(list(kept.rglob("*.parquet"))) == len(first.files)
    assert others and not (folder / "data" / Path(others[0].name).stem).exists()
