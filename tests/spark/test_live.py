"""Goal: `python -m cystore.spark live` writes windows while tasks run, each window once, also after it was ended and
started again. Method: the command in a process of its own, ended by Ctrl-C. The test writes events until the command
has written windows, however long that takes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.spark.conftest import ROOT
from tests.spark.test_processes import kill
from tests.spark.test_report import told
from tests.support.disks.access import check_access

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

pytestmark = pytest.mark.slow


@contextmanager
def live(store: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "cystore.spark", "live", str(store), "--out", str(out), "--json"]
    second = "1 second"
    options = ["--window", second, "--watermark", second, "--every", second, "--master", "local[2]"]
    process = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=0,
    )
    try:
        yield process
    finally:
        kill(process)


def windows(out: Path) -> list[dict[str, Any]]:
    """The content of the sink by Spark's own log of it."""
    import pyarrow.parquet as parquet

    found = []
    for entry in sorted((out / "_spark_metadata").glob("[0-9]*")):
        for line in entry.read_text().splitlines()[1:]:
            name = Path(json.loads(line)["path"].removeprefix("file://")).name
            found += parquet.read_table(out / name).to_pylist()
    return found


def write_until(
    store: cystore.MessageStore,
    written: list[float],
    process: subprocess.Popen[str],
    there: Callable[[], bool],
) -> None:
    """Writes at most ten tasks a second until something is there. Fails if the process ends before."""
    while not there():
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the command left with {process.wait(0.1)}")
        runtime = float(len(written))
        store.put_many([told("SUCCEEDED", "shop.pay", f"t{len(written)}", runtime=runtime)])
        store.flush()
        written.append(runtime)


def test_windows_come_while_tasks_go_on_and_each_comes_once(spark_folder, make_store, tmp_path):
    store, out = make_store(), tmp_path / "windows"
    written: list[float] = []
    for more in (1, 2):
        before = len(windows(out))
        with live(Path(store.path), out) as process:
            enough = before + more
            write_until(store, written, process, lambda enough=enough: len(windows(out)) >= enough)
            process.send_signal(signal.SIGINT)
            summary, said = process.communicate()
            assert process.returncode == 130, said
            assert "Traceback" not in said
        assert json.loads(summary)["batches"] >= 1
        check_access(out)
    found = windows(out)
    assert max(Counter((row["name"], row["begin"]) for row in found).values()) == 1
    assert {row["name"] for row in found} == {"shop.pay"}
    ordered = sorted(found, key=lambda row: row["begin"])
    assert all((row["end"] - row["begin"]).total_seconds() == 1 and row["failed"] == 0 for row in found)
    counted = sum(row["count"] for row in ordered)
    assert counted <= len(written)
    # The runtimes tell which tasks were counted: all from the first one on, none left out between.
    assert ordered[-1]["runtime_p99"] == counted - 1
