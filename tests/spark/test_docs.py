"""Goal: what docs/spark.md says works. Method: its Python blocks in order, in one folder, in the running session."""

from __future__ import annotations

from tests.structure.sources import ROOT
from tests.structure.test_docs import blocks


def test_every_block_of_the_spark_page_runs(spark, tmp_path, monkeypatch):
    page = ROOT / "docs" / "spark.md"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    runnable = [block for block in blocks(page.read_text()) if block.language == "python" and block.run]
    assert len(runnable) > 3
    try:
        for block in runnable:
            # The JVM is in a folder of its own: relative paths are this test's.
            source = block.source.replace('"store"', f'"{tmp_path}/store"').replace(
                "'store'", f"'{tmp_path}/store'"
            )
            for folder in ("orders.", "history"):
                source = source.replace(f'"{folder}', f'"{tmp_path}/{folder}')
            exec(compile("\n" * block.line + source, page.name, "exec"), names)
    finally:
        spark.sql("DROP TABLE IF EXISTS paid")
        spark.catalog.dropTempView("orders")
