"""Goal: Spark reads the tables of archives as every other reader does. Method: Spark with the jars of Delta and
Iceberg, in an environment of its own, beside pyarrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")
pytest.importorskip("deltalake", reason="pip install 'cystore[delta]'")
pytest.importorskip("pyiceberg", reason="pip install 'cystore[iceberg]'")

import pyarrow.parquet as pq

from cystore.columns.archiver import archive_store
from cystore.columns.parquet import OF_LOG
from tests.spark.table_readers import read_tables
from tests.support.interop.rocketmq import Unavailable
from tests.support.small_stores import open_small
from tests.unit.columns.test_archive_table import by_arrow, opened
from tests.unit.columns.test_archiver import EXPIRED, put_some


@pytest.mark.slow
def test_spark_reads_the_tables_as_pyarrow_does(tmp_path: Path):
    tables = {}
    for name in ("delta", "iceberg"):
        with open_small(tmp_path / f"store of {name}", **EXPIRED) as store:
            put_some(store)
            folder = tmp_path / f"für {name}"
            archive_store(store, folder, format=name, all_sealed=True, step_bytes=40_000)
            put_some(store, 100, 200)
            tables[name] = archive_store(store, folder, all_sealed=True).table
    out = tmp_path / "out"
    out.mkdir()
    try:
        answers = read_tables(tables["delta"], tables["iceberg"], out)
    except Unavailable as reason:
        pytest.skip(str(reason))
    for name in tables:
        expected = by_arrow(opened(tmp_path / f"für {name}"))
        found = pq.read_table(out / name).sort_by("physical_offset")
        for column in OF_LOG:
            assert found[column].to_pylist() == expected[column].to_pylist(), (name, column)
        topics = Counter(expected["topic"].to_pylist())
        rows = expected.num_rows
        assert rows > 200 and len(topics) == 3
        assert answers[name] == {
            "rows": [[rows]],
            "distinct": [[rows]],
            "topics": [list(one) for one in sorted(topics.items())],
            "one topic": [[topics["plain"]]],
            "the first": [[expected["physical_offset"][0].as_py()]],
            "recent": [[rows]],
            "never": [[0]],
        }
