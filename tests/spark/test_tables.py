"""Tables that SQL makes over a store: they read their own store, they are never written, and they hold no secret."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cystore
from tests.spark.conftest import ROOT, STORE_OPTIONS

pytestmark = pytest.mark.spark


@contextmanager
def table(spark: Any, name: str, options: str) -> Iterator[None]:
    spark.sql(f"CREATE TABLE {name} USING cystore OPTIONS ({options})")
    try:
        yield
    finally:
        spark.sql(f"DROP TABLE {name}")


def refused(call: Callable[[], Any]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        call()
    return str(error.value)


def count(store: Any) -> int:
    return sum(1 for _ in store.scan())


def test_no_table_is_written_for_spark_does_not_say_which_one_it_is(spark, make_store):
    """Seen: INSERT INTO b SELECT * FROM a appended to a's store, as the rows' columns brought a's options along."""
    one, two = make_store("one", 20), make_store("two", 10)
    with table(spark, "a", f"path '{one.path}'"), table(spark, "b", f"path '{two.path}'"):
        for write in (
            lambda: spark.sql("INSERT INTO b SELECT * FROM a"),
            lambda: spark.sql("INSERT INTO b (topic, value) VALUES ('T', X'61')"),
            lambda: spark.table("a").write.mode("append").insertInto("b"),
            lambda: spark.table("a").writeTo("b").append(),
            lambda: spark.sql(f"CREATE TABLE c USING cystore OPTIONS (path '{two.path}') AS SELECT * FROM a"),
        ):
            assert 'df.write.format("cystore").mode("append").save(' in refused(write)
        row = spark.sql("SELECT 'T' AS topic, X'61' AS value")
        with_path = row.write.format("cystore").mode("append").options(path=one.path, **STORE_OPTIONS)
        for write in (
            lambda: with_path.saveAsTable("b"),
            lambda: row.writeTo("b").options(path=str(one.path), **STORE_OPTIONS).append(),
        ):
            assert "If a table is the target" in refused(write)
    assert (count(one), count(two)) == (20, 10)


@pytest.mark.slow
def test_no_table_is_made_of_rows_since_it_could_not_be_read(spark, make_store, tmp_path):
    """Seen: saveAsTable with a path appended to the store there, and left a table that could not be read."""
    one = make_store("one", 20)
    rows = spark.sql("SELECT 'T' AS topic, X'61' AS value")
    none = spark.createDataFrame([], rows.schema)
    for place in (str(one.path), str(tmp_path / "new")):
        for frame in (rows, none):
            table = frame.write.format("cystore").options(path=place, **STORE_OPTIONS)
            made = frame.writeTo("b").using("cystore").options(path=place, **STORE_OPTIONS)
            for make in (
                lambda table=table: table.saveAsTable("b"),
                lambda table=table: table.mode("append").saveAsTable("b"),
                made.create,
            ):
                said = refused(make)
                assert "would make a table that cannot be read" in said
                assert 'df.write.format("cystore").mode("append").save(' in said
                assert not spark.catalog.tableExists("b")
    assert count(one) == 20 and not (tmp_path / "new").exists()


def test_a_stream_saves_its_batches_by_itself(spark, make_store, tmp_path):
    """Spark runs such a write within the execution of the micro-batch, as it does the rows of a new table."""
    one, copy = make_store("one", 20), tmp_path / "copy"

    def save(frame: Any, number: int) -> None:
        writer = frame.write.format("cystore").mode("append").options(**STORE_OPTIONS)
        writer.options(txnAppId="copy", txnVersion=number).save(str(copy))

    stream = spark.readStream.format("cystore").option("startingOffsets", "earliest").load(str(one.path))
    writer = stream.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    with cystore.open(copy, services="none") as store:
        assert count(store) == 20


def test_rows_of_a_table_are_saved_to_the_store_that_is_named(spark, make_store, tmp_path):
    """Seen: the topic and key of the table that rows came from were asked of the store that they went to."""
    one = make_store("one", 20)
    copy = tmp_path / "copy"
    with table(spark, "a", f"path '{one.path}', topic 'topic-0', filterPushdown 'true'"):
        rows = spark.table("a")
        writer = rows.write.format("cystore").mode("append").options(**STORE_OPTIONS)
        assert "would read the old store" in refused(lambda: writer.save(str(copy)))
        writer.option("copyTable", "true").save(str(copy))
        with cystore.open(copy, services="none") as store:
            assert {message.topic for message in store.scan()} == {"topic-0"}
        two = make_store("two", 30)
        everything = spark.read.format("cystore").schema(rows.schema).load(str(two.path))
        assert everything.count() == 30, "the table's topic is not asked of another store"


@pytest.mark.slow
def test_tables_in_a_foreach_batch(spark, make_store, tmp_path):
    """Spark does not show there whether save(path) writes, or saveAsTable with a path."""
    from pyspark.errors import PySparkException

    one, copy, said = make_store("one", 20), tmp_path / "copy", []

    def save(frame: Any, number: int) -> None:
        writer = frame.write.format("cystore").mode("append")
        with_path = frame.write.format("cystore").mode("append").options(path=str(copy), **STORE_OPTIONS)
        for make in (
            lambda: writer.saveAsTable("b"),
            lambda: with_path.saveAsTable("a"),
            lambda: with_path.saveAsTable("c"),
        ):
            try:
                make()
                said.append("written")
            except PySparkException as error:
                said.append(str(error))

    with table(spark, "a", f"path '{one.path}'"):
        stream = spark.readStream.format("cystore").option("startingOffsets", "earliest").load(str(one.path))
        rows = stream.select("topic", "value").writeStream.foreachBatch(save)
        rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        rows.start().awaitTermination()
    assert "Spark does not tell" in said[0] and "If a table is the target" in said[1]
    assert said[2] == "written"
    try:
        assert "DROP TABLE it" in refused(lambda: spark.table("c").count())
        assert spark.read.format("cystore").load(str(copy)).count() == 20
    finally:
        spark.sql("DROP TABLE c")


@pytest.mark.slow
def test_what_spark_tells_a_python_source_of_tables(spark, make_store, tmp_path):
    """docs/spark.md says it. If this fails, Spark tells more: use it for the tables that are refused today."""
    path = str(tmp_path / "calls")

    def note(*what: Any) -> None:
        with open(path, "a") as file:
            file.write(json.dumps(what) + "\n")

    def calls_of(run: Callable[[], Any]) -> list[list[Any]]:
        open(path, "w").close()
        run()
        return [json.loads(line) for line in open(path)]

    spark.dataSource.register(recording_source(note))
    row = spark.sql("SELECT 'T' AS topic")
    with_path = row.write.format("recording").mode("append").option("path", "/p")
    listed = "CREATE TABLE a (topic STRING) USING recording OPTIONS (path '/p')"
    plain = "CREATE TABLE b USING recording OPTIONS (path '/p')"
    try:
        assert calls_of(lambda: spark.sql(listed)) == []
        (made,) = calls_of(lambda: spark.sql(plain))
        assert made[0] == "options" and made[1]["path"] == "file:/p"
        for name in ("a", "b"):
            assert calls_of(spark.table(name).collect) == [["options", {}], ["reader", ["topic"]]]
        saved = calls_of(with_path.save)
        assert [what for what, _ in saved] == ["options", "writer"] and saved[0][1] == {"path": "/p"}
        for write in (
            lambda: with_path.saveAsTable("a"),
            lambda: row.writeTo("a").option("path", "/p").append(),
            lambda: with_path.saveAsTable("c"),
        ):
            assert calls_of(write) == saved
    finally:
        for name in "abc":
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def recording_source(note: Callable[..., None]) -> type:
    """A data source that notes what Spark calls it with. It has no rows and keeps none."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, WriterCommitMessage

    class Reader(DataSourceReader):
        def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
            return iter(())

    class Writer(DataSourceWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return WriterCommitMessage()

    class Recording(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            note("options", dict(options))

        @classmethod
        def name(cls) -> str:
            return "recording"

        def schema(self) -> str:
            return "topic STRING"

        def reader(self, schema: Any) -> DataSourceReader:
            note("reader", schema.names)
            return Reader()

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            note("writer", schema.jsonValue())
            return Writer()

    return Recording


@pytest.mark.slow
def test_a_table_that_was_made_with_columns_says_how_it_is_made(spark, make_store):
    """Spark asks no Python source when such a table is made, so the first query is the first that can refuse it."""
    store = make_store("one", 5)
    spark.sql(f"CREATE TABLE a (topic STRING, value BINARY) USING cystore OPTIONS (path '{store.path}')")
    try:
        said = refused(lambda: spark.sql("SELECT * FROM a").collect())
        assert "DROP TABLE it" in said and "columns 'topic,value'" in said
        assert len(spark.sql(f"SELECT * FROM a WITH (path '{store.path}')").collect()) == 5
    finally:
        spark.sql("DROP TABLE a")


def test_no_secret_lies_in_a_tables_columns(spark, make_store):
    store = make_store("one", 5)
    made = f"CREATE TABLE a USING cystore OPTIONS (path '{store.path}', `fs.secret_key` 'hush-hush')"
    said = refused(lambda: spark.sql(made))
    assert "fs.secret_key may be a secret" in said and "hush" not in said
    with table(spark, "a", f"path '{store.path}', `fs.region` 'nowhere'"):
        assert spark.table("a").count() == 5
    shown = spark.read.format("cystore").option("fs.account_key", "hush-hush")
    said = refused(lambda: shown.load(str(store.path)))
    assert "fs.secret.account_key, which Spark hides" in said and "hush" not in said


def test_no_secret_leaves_the_driver_but_to_the_tasks(spark_folder, make_store, tmp_path):
    """Plans, schemas, Spark's event log and the files that were written from the rows are read for the value."""
    store = make_store("one", 5)
    secrets = {"secret_key": "hush-1", "session_token": "hush-2", "secret.account_key": "hush-3"}
    command = [sys.executable, "-m", "tests.support.spark.programs", "hush", str(tmp_path), str(store.path)]
    done = subprocess.run(
        [*command, json.dumps(secrets)], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    logs = [path for path in (tmp_path / "logs").rglob("events_*") if path.is_file()]
    written = list((tmp_path / "written").glob("*.parquet"))
    read = {path.name: path.read_bytes() for path in [*logs, *written]}
    assert logs and written and b"SparkListenerSQLExecutionStart" in b"".join(read.values())
    read |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert "RelationV2" in done.stdout and b"fs.secret.account_key" in b"".join(read.values())
    assert [name for name, content in read.items() if b"hush" in content] == []
