"""Goal: a job that a Celery task submits runs in a process of its own, and its summary comes back. Method: the task
itself, and in the long tests a worker that takes it from a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.small_stores import SETTINGS

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")
pytest.importorskip("celery", reason="pip install 'cystore[celery]'")


def arguments(settings: dict[str, Any]) -> list[str]:
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["--master", "local[1]", *words]


@pytest.fixture
def damaged(make_store) -> Path:
    """A closed store with one damaged record."""
    store = make_store(count=60)
    store.dispatch()
    store.close()
    path = Path(store.path) / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    return Path(store.path)


def assert_told(summary: dict[str, Any]) -> None:
    assert summary["damaged_ranges"] == len(summary["damage"]) >= 1
    assert (summary["records"], summary["damaged_record"]) == (59, 1)
    assert [row["begin"] for row in summary["damage"] if row["kind"] == "record"] == [0]


@pytest.mark.slow
def test_the_summary_of_a_submitted_job_comes_back(spark_folder, damaged):
    from cystore.celery import spark_tasks

    assert_told(spark_tasks.scrub(str(damaged), arguments(SETTINGS)))


def test_a_job_that_fails_says_why(tmp_path):
    from cystore.celery import spark_tasks

    with pytest.raises(spark_tasks.JobFailedError, match=r"scrub exited with 2: .*no store here"):
        spark_tasks.scrub(str(tmp_path / "nothing"))
    with pytest.raises(spark_tasks.JobFailedError, match=r"aggregate exited with 2: .*no store here"):
        spark_tasks.aggregate(str(tmp_path / "nothing"), ["--out", str(tmp_path / "out")])
    with pytest.raises(spark_tasks.JobFailedError, match="rebuild exited with 2: "):
        spark_tasks.rebuild(str(tmp_path), ["--no-such-option"])


@pytest.mark.parametrize(("path", "options"), [("", []), (7, []), ("store", [1])])
def test_what_is_no_text_is_refused(path, options):
    from cystore.celery import spark_tasks

    with pytest.raises(spark_tasks.JobFailedError, match="paths and options must be text, not "):
        spark_tasks.scrub(path, options)


@pytest.mark.slow
def test_a_worker_runs_it(spark_folder, damaged, tmp_path):
    from cystore.celery import spark_tasks
    from tests.celery.conftest import fleet_in

    folder = tmp_path / "fleet"
    folder.mkdir()
    with fleet_in(folder, include=["cystore.celery.spark_tasks"]) as fleet:
        fleet.start("--concurrency=1")
        assert_told(fleet.task(spark_tasks.scrub).delay(str(damaged), arguments(SETTINGS)).get(timeout=240))
