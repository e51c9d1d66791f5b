"""Goal: reading, writing, streams and jobs work through Spark Connect, where there are DataFrames and nothing below
them. Method: a process of its own starts a Connect server and is its client; without a server only what is decided
before a query."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from cystore.errors import StoreConfigError
from cystore.spark.jobs.rebuild import rebuild
from cystore.spark.jobs.running import is_connect
from cystore.spark.jobs.spread import spread
from tests.spark.conftest import ROOT

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

import cystore
import cystore.spark
from cystore.spark.jobs.archive import archive
from cystore.spark.jobs.live import follow
from cystore.spark.jobs.report import write_report
from cystore.spark.jobs.running import is_connect
from cystore.spark.jobs.scrub import scrub
from cystore.spark.task_runs import read_runs
from tests.spark.conftest import fill, spark_settings
from tests.spark.test_report import told
from tests.support.small_stores import SETTINGS, open_small

folder = Path(sys.argv[1])
path = str(folder / "store")
with open_small(path) as store:
    fill(store, 300)
    store.put_many([told("SENT", "a", "t"), told("STARTED", "a", "t"), told("FAILED", "a", "t", exception="E(1)")])
    store.flush()
builder = SparkSession.builder.remote("local[2]")
for name, value in {**spark_settings(folder), "spark.connect.grpc.binding.port": "0"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert is_connect(spark)
read = spark.read.format("cystore").option("topic", "topic-1").load(path)
assert read.where("tags = 'odd'").count() == 150
assert cystore.spark.count(spark, path, "topic-0") == 150
cystore.spark.views(spark, path, ["topic-0"], columns="offset")
assert spark.sql("SELECT count(*) FROM `topic-0`").first()[0] == 150
copy = str(folder / "copy")
read.write.format("cystore").mode("append").save(copy)
assert spark.read.format("cystore").load(copy).count() == 150
again = str(folder / "again")
stream = spark.readStream.format("cystore").option("startingOffsets", "earliest").load(copy)
query = stream.writeStream.format("cystore").option("path", again)
query = query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
assert spark.read.format("cystore").load(again).count() == 150
(run,) = read_runs(spark.read, path).collect()
assert (run["task_id"], run["outcome"], run["class"]) == ("t", "FAILED", "E")
assert write_report(spark, path, folder / "report")["failed"] == 1
assert scrub(spark, path).summary["damaged_ranges"] == 0
assert archive(spark, path, folder / "archive", settings=dict(SETTINGS), all_sealed=True)["rows"] > 0
follow(spark, path, folder / "windows", once=True)
spark.stop()
print("all of it")
"""


@pytest.mark.slow
def test_all_but_rebuild_works_through_spark_connect(tmp_path):
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    # With SPARK_TESTING the client asks the server for its port, so any free one will do.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_TESTING": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "all of it", done.stderr[-4000:]


class Client:
    """Of the module that sessions of Spark Connect are of."""


Client.__module__ = "pyspark.sql.connect.session"


def test_rebuild_says_that_it_needs_another_session(make_store):
    assert is_connect(Client())  # type: ignore[arg-type]
    with pytest.raises(StoreConfigError, match="cannot run through Spark Connect"):
        rebuild(Client(), make_store().path)  # type: ignore[arg-type]


def test_parts_are_spread_in_their_order(spark):
    assert not is_connect(spark)
    assert spread(spark, [], len) == []
    assert spread(spark, ["a", "bb", "", "cccc"], len) == [1, 2, 0, 4]
    assert Path(spread(spark, [Path("/x")], str)[0]) == Path("/x")
