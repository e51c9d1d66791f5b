"""Reads a Delta and an Iceberg table by Spark SQL: `python read_tables.py JARS DELTA_FOLDER ICEBERG_METADATA OUT`.

Writes the rows of each table to OUT/delta and OUT/iceberg as Parquet, and the answers of some questions to
OUT/answers.json. Runs in an environment of its own, which has PySpark and not cystore.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

QUESTIONS = {
    "rows": "SELECT count(*) FROM {table}",
    "distinct": "SELECT count(DISTINCT physical_offset) FROM {table}",
    "topics": "SELECT topic, count(*) FROM {table} GROUP BY topic ORDER BY topic",
    "one topic": "SELECT count(*) FROM {table} WHERE topic = 'plain'",
    "the first": "SELECT physical_offset FROM {table} ORDER BY physical_offset LIMIT 1",
    "recent": "SELECT count(*) FROM {table} WHERE timestamp >= timestamp'2000-01-01'",
    "never": "SELECT count(*) FROM {table} WHERE timestamp < timestamp'2000-01-01'",
}


def main(jars: str, delta: str, iceberg: str, out: str) -> None:
    settings = {
        "spark.jars": ",".join(sorted(map(str, Path(jars).glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": out,
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("cystore tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = {}
    for table, place in (("delta", delta), ("iceberg", iceberg)):
        frame = spark.read.format(table).load(place)
        frame.createOrReplaceTempView(table)
        frame.coalesce(1).write.parquet(f"{out}/{table}")
        answers[table] = {
            name: [list(row) for row in spark.sql(text.format(table=table)).collect()]
            for name, text in QUESTIONS.items()
        }
    Path(out, "answers.json").write_text(json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
