"""Goal: the source works where driver, executors and writers are processes of their own, and a killed driver leaves
no gap and no repeat behind. Method: a local cluster of two executors; SIGKILL of a driver in the middle of its
batches while a writer continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ROOT
from tests.support.spark.programs import to_parquet

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")


def command(*arguments: str, module: str = "tests.support.spark.programs") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def program(*arguments: str, module: str = "tests.support.spark.programs") -> Iterator[subprocess.Popen[str]]:
    """One of tests/support/spark/programs.py, in a session of its own, so that its JVM can be killed with it."""
    process = subprocess.Popen(
        command(*arguments, module=module),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Driver, JVM and Python workers at once, as a host that dies."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def answer(process: subprocess.Popen[str]) -> Any:
    """The next line that is JSON."""
    assert process.stdout is not None
    for line in process.stdout:
        try:
            return json.loads(line)
        except ValueError:
            continue
    pytest.fail(f"the program ended ({process.wait()}) without an answer")


@pytest.mark.slow
def test_executors_in_processes_of_their_own(
    spark_folder: Path, make_store: Callable[..., Any], tmp_path: Path
):
    store = make_store(count=300)
    store.dispatch()
    with program("cluster", str(tmp_path), str(store.path)) as driver:
        told = answer(driver)
    assert told["numbers"] == list(range(300))
    assert told["partitions"] >= 4


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_driver_leaves_every_message_once(spark: Any, tmp_path: Path, kills: int):
    """Killed in the middle of batches, while a writer continues; the last driver, this one, reads to the end."""
    store, folder = str(tmp_path / "store"), tmp_path / "work"
    folder.mkdir()
    with program("write", store, "0", "50") as writer:
        assert writer.stdin is not None
        durable = answer(writer)

        def write_more(count: int = 1) -> int:
            for _ in range(count):
                writer.stdin.write("\n")
            writer.stdin.flush()
            return [answer(writer) for _ in range(count)][-1]

        durable = write_more(3)
        done = -1
        for _ in range(kills):
            with program("stream", str(folder), store) as driver:
                for _ in range(2):
                    done = answer(driver)["batch"]
                    durable = write_more(2)
                kill(driver)
        assert done >= 2 * kills - 1, "each driver went on where the one before it was"
        assert list((folder / "checkpoint" / "offsets").glob("[0-9]*"))
    query = to_parquet(spark, str(folder), store).trigger(availableNow=True).start()
    query.awaitTermination()
    assert numbers_in(folder / "out") == list(range(durable))


def numbers_in(out: Path) -> list[int]:
    """The content of the sink by Spark's own log of it: files of uncommitted batches do not count."""
    import pyarrow.parquet as parquet

    committed = set()
    for entry in (out / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            committed.add(Path(json.loads(line)["path"].removeprefix("file://")).name)
    return sorted(
        number for name in committed for number in parquet.read_table(out / name)["number"].to_pylist()
    )


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_pyspark_the_jobs_say_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; "
    code += "import runpy; runpy.run_module('cystore.spark', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"cystore.spark: error: there is no {missing}: pip install 'cystore[spark]'\n"
