"""Goal: a job's own session has the settings that suit it, and Ctrl-C ends the job quietly. Method: commands in
processes of their own; Spark's event log; a master that takes a connection and never answers."""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ROOT
from tests.spark.test_processes import kill

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from cystore.spark import jobs
from cystore.spark.__main__ import main
from cystore.spark.jobs import report
from cystore.spark.jobs.report import _is_local

QUICK = "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        (None, False),
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
    ],
)
def test_only_a_master_in_one_process_is_local(master, local):
    assert _is_local(master) is local


@pytest.mark.parametrize("master", [[], ["--master", "local[2]"]])
def test_a_small_report_on_this_host_starts_no_session(make_store, tmp_path, monkeypatch, master):
    """Seen: with --master local[2] a million events took 66 s, 14 s of them for the session's start and 33 s for
    Spark's first stage."""
    store = make_store(count=10)
    monkeypatch.setattr(report, "own_session", lambda *_: pytest.fail("a session was started"))
    assert main(["report", str(store.path), "--out", str(tmp_path / "out"), *master]) == 0
    assert (tmp_path / "out" / "report.html").exists()


def properties(done: subprocess.CompletedProcess[str], logs: Path) -> dict[str, Any]:
    """Spark's settings in the event log of a job that ended well."""
    assert done.returncode == 0, done.stderr
    for file in logs.rglob("*"):
        for line in file.read_text().splitlines() if file.is_file() and not file.name.startswith(".") else ():
            if json.loads(line)["Event"] == "SparkListenerEnvironmentUpdate":
                found: dict[str, Any] = json.loads(line)["Spark Properties"]
                return found
    pytest.fail(f"no environment in {logs}")


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [None, "-Dcystore.test=1"])
def test_a_small_report_takes_the_quick_compiler_unless_the_user_says_otherwise(make_store, tmp_path, given):
    store, logs = make_store(count=10), tmp_path / "logs"
    logs.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{logs}",
        "spark.local.dir": str(tmp_path),
        "spark.ui.enabled": "false",
        **({"spark.driver.defaultJavaOptions": given} if given else {}),
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "cystore.spark", "report", str(store.path), "--master", "local[1]"]
    command += ["--out", str(tmp_path / "out"), *words]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert properties(done, logs)["spark.driver.defaultJavaOptions"] == (given or QUICK)


def test_ctrl_c_ends_a_job_with_130_and_no_traceback(make_store, tmp_path):
    """It comes while Spark's driver waits for its master."""
    store = make_store(count=10)
    with socket.create_server(("127.0.0.1", 0)) as master:
        master.settimeout(120)
        url = f"spark://127.0.0.1:{master.getsockname()[1]}"
        command = [sys.executable, "-m", "cystore.spark", "scrub", str(store.path), "--master", url]
        command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=pipe, stderr=pipe, start_new_session=True
        )
        try:
            connection, _ = master.accept()
            with connection:
                os.killpg(process.pid, signal.SIGINT)
                out, err = process.communicate(timeout=60)
        finally:
            kill(process)
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err and "KeyboardInterrupt" not in err


def test_ctrl_c_while_the_jobs_are_loaded_leaves_no_traceback(monkeypatch):
    """PySpark and pyarrow take a second."""

    class Interrupts:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "cystore.spark.jobs.live":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    for name in ("cystore.spark.jobs.live", "cystore.spark.__main__"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(jobs, "live")
    with pytest.raises(SystemExit) as end:
        runpy.run_module("cystore.spark.__main__", run_name="loaded")
    assert end.value.code == 130


@pytest.mark.slow
def test_a_summary_that_nobody_reads_ends_as_one_of_cystore(make_store, tmp_path):
    command = [sys.executable, "-m", "cystore.spark", "report", str(make_store(count=1).path)]
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as out:
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "out")],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


BLOCKS = """
import signal, sys

class Blocks:
    def find_spec(self, name, path=None, target=None):
        if name == "cystore":
            with open({pipe!r}, "w") as told:
                told.write("started")
            signal.pause()

sys.meta_path.insert(0, Blocks())
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_job_in_a_running_stage(make_store, tmp_path):
    """Seen: PySpark's handler called Spark on the connection on which the job waited, and the command hung. The
    stage's task blocks when it imports cystore."""
    store, worker, pipe = make_store(count=10), tmp_path / "worker", tmp_path / "started"
    os.mkfifo(pipe)
    (tmp_path / "sitecustomize.py").write_text(BLOCKS.format(pipe=str(pipe)))
    worker.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:{ROOT}:$PYTHONPATH exec {sys.executable} "$@"\n')
    worker.chmod(0o755)
    command = [sys.executable, "-m", "cystore.spark", "scrub", str(store.path), "--master", "local[1]"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": str(worker)},
    )
    try:
        with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as started:
            assert select.select([started], [], [], 240)[0], "no task began"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)
    finally:
        kill(process)
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err and "KeyboardInterrupt" not in err
