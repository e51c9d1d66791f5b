"""Goal: a job that a Celery task submits runs in a process of its own, and its summary comes back; a message reaches
only the stores and folders that the app allows, and no option of a command. Method: the task itself, and in the long
tests a worker that takes it from a broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_stores import SETTINGS

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")
celery = pytest.importorskip("celery", reason="pip install 'cystore[celery]'")

from cystore.celery import spark_tasks  # noqa: E402
from cystore.errors import StoreFormatError  # noqa: E402

JOBS = ("scrub", "rebuild", "archive", "report", "aggregate")


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


@pytest.fixture
def app() -> Any:
    return celery.Celery("jobs", broker="memory://", set_as_current=False)


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with `stores`, `out`, and `other`, which is not allowed."""
    for name in ("stores", "out", "other"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def tasks(app, place) -> Any:
    """The tasks of an app that allows `stores` and `out`."""
    spark_tasks.install(app, stores=[str(place / "stores")], folders=[str(place / "out")])
    return {name: app.tasks[f"cystore.spark.{name}"] for name in JOBS}


def assert_told(summary: dict[str, Any]) -> None:
    assert summary["damaged_ranges"] == len(summary["damage"]) >= 1
    assert (summary["records"], summary["damaged_record"]) == (59, 1)
    assert [row["begin"] for row in summary["damage"] if row["kind"] == "record"] == [0]


def test_no_other_install_registers_them():
    """In a process of its own, because an import can register a task with every app of its process."""
    program = (
        "import celery, cystore.celery\n"
        "other, app = celery.Celery('other', broker='memory://'), celery.Celery('app', broker='memory://')\n"
        "cystore.celery.install(app)\n"
        "cystore.celery.spark_tasks.install(other)\n"
        "for one in (app, other): print(len([name for name in one.tasks if name.startswith('cystore.spark.')]))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert run.stdout.split() == ["0", str(len(JOBS))]


def test_without_an_install_a_task_says_how_to_get_one(app, monkeypatch):
    app.set_current()
    with pytest.raises(AttributeError, match=r"no task cystore.spark.scrub: call .*install\(app, stores="):
        _ = spark_tasks.scrub
    spark_tasks.install(app)
    assert spark_tasks.scrub.name == "cystore.spark.scrub"
    assert not hasattr(spark_tasks, "live")


@pytest.mark.slow
def test_the_summary_of_a_submitted_job_comes_back(spark_folder, app, damaged):
    spark_tasks.install(app, stores=[str(damaged)], master="local[1]", settings=SETTINGS)
    assert_told(app.tasks["cystore.spark.scrub"](str(damaged)))


def test_a_job_that_fails_says_why(tasks, place):
    store = str(place / "stores" / "nothing")
    with pytest.raises(spark_tasks.JobFailedError, match=r"scrub exited with 2: .*no store here"):
        tasks["scrub"](store)
    with pytest.raises(spark_tasks.JobFailedError, match=r"aggregate exited with 2: .*no store here"):
        tasks["aggregate"](store, str(place / "out" / "daily"), watermark_h=2.5, lookback_days=0)


@pytest.mark.parametrize(
    ("job", "values", "match"),
    [
        ("scrub", {"path": ""}, "path must be a path on the worker's host, not ''"),
        ("scrub", {"path": 7}, "path must be a path on the worker's host, not 7"),
        ("scrub", {"path": "a\0b"}, "path must be a path"),
        ("scrub", {"path": "a\ud800"}, "path must be a path"),
        ("archive", {"path": "S/x", "folder": "O/x", "expiring_within_h": 10**400}, "must be a number"),
        (
            "report",
            {"stores": "s3://bucket/store", "out": "O/x"},
            "stores must be a path on the worker's host",
        ),
        ("report", {"stores": "file:S/x", "out": "O/x"}, "stores must be a path on the worker's host"),
        ("report", {"stores": {"a": 1}, "out": "O/x"}, "stores must be a path or several"),
        ("report", {"stores": [], "out": "O/x"}, "stores must be a path or several"),
        ("report", {"stores": "S/x", "out": "O/x", "begin": "x --conf=y"}, "begin must be a time"),
        ("report", {"stores": "S/x", "out": "O/x", "top": "3"}, "top must be a whole number"),
        ("report", {"stores": "S/x", "out": "O/x", "overwrite": "yes"}, "overwrite must be true or false"),
        ("scrub", {"path": "S/x", "range_mib": ["--conf", "spark.x=y"]}, "range_mib must be a whole number"),
        ("scrub", {"path": "S/x", "range_mib": True}, "range_mib must be a whole number"),
        ("archive", {"path": "S/x", "folder": "O/x", "format": "x"}, "format must be one of"),
        ("archive", {"path": "S/x", "folder": "O/x", "format": {}}, "format must be one of"),
        ("archive", {"path": "S/x", "folder": "O/x", "expiring_within_h": float("nan")}, "must be a number"),
        ("aggregate", {"stores": "S/x", "out": "O/x", "watermark_h": "1"}, "watermark_h must be a number"),
    ],
)
def test_a_value_of_another_kind_is_refused(tasks, place, job, values, match):
    def placed(value: Any) -> Any:
        known = isinstance(value, str) and value not in ("", "a\0b")
        return value.replace("S/", f"{place}/stores/").replace("O/", f"{place}/out/") if known else value

    with pytest.raises(spark_tasks.JobRefusedError, match=match):
        tasks[job](**{name: placed(value) for name, value in values.items()})


@pytest.mark.parametrize(
    "name", ["conf", "config", "set", "master", "settings", "options", "restore", "table"]
)
@pytest.mark.parametrize("job", JOBS)
def test_no_message_gives_an_option_of_the_command(tasks, place, job, name):
    places = [f"{place}/stores/x", f"{place}/out/x"][: 1 if job in ("scrub", "rebuild") else 2]
    with pytest.raises(TypeError, match=name):
        tasks[job](*places, **{name: ["spark.driver.extraJavaOptions=-XX:OnOutOfMemoryError=id"]})
    with pytest.raises(TypeError):
        tasks[job](*places, ["--conf", "spark.driver.extraJavaOptions=-XX:OnOutOfMemoryError=id"])


def test_without_a_setting_every_place_is_refused(app, place):
    spark_tasks.install(app)
    with pytest.raises(spark_tasks.JobRefusedError, match="to the setting cystore_spark_stores"):
        app.tasks["cystore.spark.scrub"](str(place / "stores"))
    app.conf.cystore_spark_stores = [str(place / "stores")]
    with pytest.raises(spark_tasks.JobRefusedError, match="to the setting cystore_spark_folders"):
        app.tasks["cystore.spark.report"](str(place / "stores" / "x"), str(place / "out" / "x"))


@pytest.mark.parametrize("job", JOBS)
def test_no_way_around_the_allowed_places(tasks, place, job):
    (place / "stores" / "link").symlink_to(place / "other")
    (place / "out" / "link").symlink_to(place / "other")
    inside, out = [f"{place}/stores/x"], [f"{place}/out/x"]
    second = job not in ("scrub", "rebuild")
    for path in (
        f"{place}/other",
        f"{place}/stores/../other",
        f"{place}/stores/link",
        f"{place}/stores/link/x",
        f"{place}/stores-too",
        f"{place}",
        "/",
        "stores/x",
        f"{place}/[so]*/x",
        f"{place}/stores/*/../../other",
    ):
        with pytest.raises(spark_tasks.JobRefusedError, match="the app does not allow"):
            tasks[job](path, *(out if second else []))
        if second:
            with pytest.raises(spark_tasks.JobRefusedError, match="the app does not allow"):
                tasks[job](*inside, path.replace("/stores", "/out"))
    if job == "scrub":
        with pytest.raises(spark_tasks.JobRefusedError, match="output: the app does not allow"):
            tasks[job](*inside, output=f"{place}/out/link/x")


def test_a_glob_matches_allowed_stores_only(tasks, place):
    (place / "stores" / "good").mkdir()
    (place / "stores" / "bad").symlink_to(place / "other")
    with pytest.raises(spark_tasks.JobRefusedError, match=r"the app does not allow .*/other"):
        tasks["report"](f"{place}/stores/*", f"{place}/out/x")
    with pytest.raises(StoreFormatError, match="no store matches"):
        tasks["report"]([f"{place}/stores/z*"], f"{place}/out/x")


def test_a_job_writes_into_no_store(tasks, place, make_store, damaged):
    """Even where a store lies in an allowed folder."""
    (place / "out" / "store").mkdir()
    (place / "out" / "store" / "checkpoint").write_bytes((damaged / "checkpoint").read_bytes())
    (place / "stores" / "store").symlink_to(damaged)
    tasks["report"].app.conf.cystore_spark_stores = [str(damaged)]
    with pytest.raises(spark_tasks.JobFailedError, match="is or lies in the store"):
        tasks["report"](str(damaged), str(place / "out" / "store" / "commitlog" / "x"))
    with pytest.raises(spark_tasks.JobFailedError, match="is or lies in the store"):
        tasks["scrub"](str(damaged), output=str(place / "out" / "store" / "x"))


@pytest.mark.slow
def test_a_worker_runs_it(spark_folder, damaged, tmp_path):
    from tests.celery.conftest import fleet_in
    from tests.support.celery import work

    folder = tmp_path / "fleet"
    folder.mkdir()
    settings = {
        "cystore_spark_stores": [str(damaged)],
        "cystore_spark_master": "local[1]",
        "cystore_spark_settings": SETTINGS,
    }
    with fleet_in(folder, **settings) as fleet:
        fleet.start("--concurrency=1", **{work.SPARK: "1"})
        spark_tasks.install(fleet.app)
        scrub = fleet.app.tasks["cystore.spark.scrub"]
        assert_told(scrub.delay(str(damaged)).get(timeout=900))
        with pytest.raises(spark_tasks.JobRefusedError, match="the app does not allow"):
            scrub.delay(str(tmp_path)).get(timeout=900)
