"""Tables that SQL makes over a store: they read their own store, they are never written, and they hold no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cystore
from tests.spark.conftest import STORE_OPTIONS

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
    assert (count(one), count(two)) == (20, 10)


def test_rows_of_a_table_are_saved_to_the_store_that_is_named(spark, make_store, tmp_path):
    """Seen: the topic and key of the table that rows came from were asked of the store that they went to."""
    one = make_store("one", 20)
    copy = tmp_path / "copy"
    with table(spark, "a", f"path '{one.path}', topic 'topic-0', filterPushdown 'true'"):
        rows = spark.table("a")
        writer = rows.write.format("cystore").mode("append").options(**STORE_OPTIONS)
        assert "the new table would read the old store" in refused(lambda: writer.save(str(copy)))
        writer.option("copyTable", "true").save(str(copy))
        with cystore.open(copy, services="none") as store:
            assert {message.topic for message in store.scan()} == {"topic-0"}
        two = make_store("two", 30)
        everything = spark.read.format("cystore").schema(rows.schema).load(str(two.path))
        assert everything.count() == 30, "the table's topic is not asked of another store"


@pytest.mark.slow
def test_a_table_that_was_made_with_columns_says_how_it_is_made(spark, make_store):
    store = make_store("one", 5)
    spark.sql(f"CREATE TABLE a (topic STRING, value BINARY) USING cystore OPTIONS (path '{store.path}')")
    try:
        assert "without a list of columns" in refused(lambda: spark.sql("SELECT * FROM a").collect())
    finally:
        spark.sql("DROP TABLE a")


@pytest.mark.slow
def test_no_secret_lies_in_a_tables_columns(spark, make_store, tmp_path):
    store = make_store("one", 5)
    made = f"CREATE TABLE a USING cystore OPTIONS (path '{store.path}', `fs.secret_key` 'hush-hush')"
    assert "fs.secret_key may be a secret" in refused(lambda: spark.sql(made))
    with table(spark, "a", f"path '{store.path}', `fs.region` 'nowhere'"):
        assert spark.table("a").count() == 5
    frame = spark.read.format("cystore").option("fs.secret_key", "hush-hush").load(str(store.path))
    frame.write.parquet(str(tmp_path / "written"))
    footers = b"".join(path.read_bytes() for path in (tmp_path / "written").glob("*.parquet"))
    plan = frame._jdf.queryExecution().toString()
    for shown in (frame.schema.json(), plan, repr(frame), footers.decode("latin-1")):
        assert "hush" not in shown
