"""Goal: `celery -A APP cystore ...` shows what the queries find, in lines and in JSON, and says what to do when it
cannot. Method: celery's own program in this process on a written log; the real command where it must follow one."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from celery import Celery, states

from cystore.celery import commands
from cystore.celery.base import events
from cystore.celery.commands import status
from cystore.celery.stores import close_shared
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.clock import turn

NAMES = commands.cystore.list_commands(click.Context(commands.cystore))
LISTS = ["history", "failures", "top", "unfinished", "slow"]
TIMEOUT_S = 60


@pytest.fixture
def written(backend):
    """A log of 40 runs of 4 names, and a result."""
    write(backend.store, runs(40))
    backend.store_result("t39", ValueError("39"), states.FAILURE, traceback="Traceback of the result")
    return backend


def test_each_module_of_a_command_is_listed():
    room = Path(commands.__file__).parent
    modules = {path.stem for folder in (room, room / "tasks") for path in folder.glob("[a-z]*.py")}
    assert set(NAMES) == modules


def test_the_life_of_a_task(written, rows, run):
    found = rows("history", "--task-id", "t39")
    assert [(row["kind"], row["state"]) for row in found] == [
        ("result", "FAILURE"),
        ("event", events.FAILED),
        ("event", events.STARTED),
        ("event", events.RECEIVED),
        ("event", events.SENT),
    ]
    assert found[1]["exception"] == "ValueError(39)"
    assert found[0]["result"]["exc_type"] == "ValueError"
    assert found[4]["args"] == "(39,)"
    assert all(row["task_id"] == row.get("root_id", "t39") == "t39" for row in found)
    lines = run("history", "--task-id", "t39").stdout.splitlines()
    assert len(lines) == 5
    assert "=FAILURE" in lines[0] and "exception=ValueError(39)" in lines[1]


def test_conditions_and_the_limit(written, rows, run):
    assert len(rows("history", "--limit", "3")) == 3
    assert len(rows("history", "--limit", "0")) == 161
    found = rows(
        "history", "--name", "app.task1", "--state", events.FAILED, "--state", events.STARTED, "--limit", "0"
    )
    assert {row["name"] for row in found} == {"app.task1"}
    assert len(found) == 10 + 2
    newest = rows("history", "--limit", "1")[0]["time"]
    assert len(rows("history", "--since", newest, "--limit", "0")) >= 1
    assert run("history", "--until", "2020-01-01", code=1).stdout == ""
    assert len(rows("history", "--since", "1h", "--limit", "0")) == 161


def test_a_workflow(written, rows):
    written.store.put_many(
        [
            event_message(events.SENT, "r", "app.task0", "r"),
            event_message(events.SENT, "c", "app.task0", "r", "g", parent_id="r"),
        ]
    )
    assert [row["task_id"] for row in rows("history", "--root-id", "r")] == ["c", "r"]
    assert [row["task_id"] for row in rows("history", "--group-id", "g")] == ["c"]


def test_failures(written, rows, run):
    assert [row["task_id"] for row in rows("failures")] == ["t39", "t29", "t19", "t9"]
    shown = run("failures", "--name", "app.task3", "--traceback", "--limit", "1").stdout
    assert shown.splitlines()[1:] == ["    Traceback of 39", "      line"]


def test_top(written, rows, run):
    found = rows("top")
    assert {row["name"]: (row["count"], row["failed"]) for row in found} == {
        "app.task0": (10, 0),
        "app.task1": (10, 2),
        "app.task2": (10, 0),
        "app.task3": (10, 2),
    }
    assert found[0]["runtime_p50_s"] == pytest.approx(0.017, rel=0.0101)
    assert [row["failed"] for row in rows("top", "--sort", "failures")] == [2, 2, 0, 0]
    assert rows("top", "--sort", "runtime", "--limit", "1")[0]["name"] == "app.task3"
    lines = run("top", "--limit", "2").stdout.splitlines()
    assert len(lines) == 3 and "p95" in lines[0]


def test_tail(written, rows):
    assert [row["state"] for row in rows("tail", "-n", "3")] == [events.STARTED, events.FAILED, "FAILURE"]
    found = rows("tail", "--name", "app.task0", "--state", events.SUCCEEDED, "-n", "2")
    assert [row["task_id"] for row in found] == ["t32", "t36"]


def test_status(written, rows, run):
    (told,) = rows("status")
    assert list(told) == list(status.SECTIONS)
    store = told["store"]
    assert store["topics"][events.EVENTS] == {"queues": 4, "messages": 160}
    assert (store["path"], store["state"], store["lifecycle"]) == (str(written.store.path), "live", True)
    assert store["wrote"] == written.store.wrote_position
    assert store["disk"]["allocated_bytes"] > 0
    shown = run("status").stdout
    assert "in use by other processes" in shown and "celery_events" in shown
    assert told["fleet"] == {
        "why_not": "no Redis is configured (cystore_redis_url): leases of duties are in the store",
        "stores": [],
    }


def test_status_says_when_nobody_delivers(written, run, monkeypatch):
    written.store.put("later", b"", delay_ms=1)
    written.store.dispatch()
    assert "NOBODY DELIVERS" not in run("status").stdout
    turn(monkeypatch, 60_000)
    assert run("status").stdout.count("NOBODY DELIVERS") == 1


def test_status_of_a_store_that_nobody_has_open(written, rows):
    close_shared()
    assert rows("status")[0]["store"]["state"] == "closed"


def test_a_section_of_the_status_can_be_added(written, rows, run, monkeypatch):
    section = status.Section(lambda ctx: {"hosts": 2}, lambda told: print(f"hosts: {told['hosts']}"))
    monkeypatch.setitem(status.SECTIONS, "more", section)
    assert rows("status")[0]["more"] == {"hosts": 2}
    assert run("status").stdout.endswith("hosts: 2\n")


def test_looking_changes_nothing(written, run):
    close_shared()
    path = written.location.path
    before = {name: os.stat(os.path.join(path, name)).st_mtime_ns for name in os.listdir(path)}
    for words in (["status"], ["history"], ["failures"], ["top"], ["tail"]):
        run(*words)
    assert {name: os.stat(os.path.join(path, name)).st_mtime_ns for name in os.listdir(path)} == before


def test_nothing_there(backend, run):
    assert backend.store.wrote_position == 0
    for words in (
        ["tail"],
        *([name] for name in LISTS),
        ["find", "--args", "x"],
        ["diff", "a", "b"],
        ["timeline", "a"],
    ):
        done = run(*words, code=0 if words == ["tail"] else 1)
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["history", "--since", "yesterday"], "90s, 15m, 2h, 7d"),
        (["history", "--task-id", ""], "must not be empty"),
        (["history", "--limit", "-1"], "--limit"),
        (["top", "--sort", "colour"], "--sort"),
    ],
)
def test_wrong_usage(written, run, words, says):
    assert says in run(*words, code=2).output


def test_no_advice_on_settings_where_none_is_wrong(written, run):
    said = run("web", "--host", "0.0.0.0", code=2).output
    assert "--token" in said and "result_backend" not in said


def test_no_store_there(run, url):
    more = {"find": ["--args", "x"], "diff": ["a", "b"], "timeline": ["a"], "rerun": ["a"],
            "move": ["--to", "memory://"], "queue": ["peek", "celery"]}  # fmt: skip
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    for name in set(NAMES) - {"create", "doctor"}:  # one makes it, the other one works without
        done = run(name, *more.get(name, ()), code=2, app=app)
        assert "there is no store here" in done.output, name
        assert not os.path.exists(url.removeprefix("cystore://"))


def test_an_app_with_another_backend(run):
    app = Celery("other", broker="memory://", backend="cache+memory://", set_as_current=False)
    assert "these commands need cystore:///" in run("status", code=2, app=app).output
    app = Celery("other", broker="memory://", backend="cystore://relative", set_as_current=False)
    assert "three slashes" in run("status", code=2, app=app).output


@pytest.mark.parametrize("url", ["cystore+remote://", "cystore://"])
def test_an_app_without_a_store(run, url):
    """A publisher's: the commands run on the host that has the store. Seen: "it can send tasks but not read
    results"."""
    app = Celery("other", broker="memory://", backend=url, set_as_current=False)
    for words in (("status",), ("history",), ("tail",), ("rerun", "t"), ("timeline", "t")):
        said = run(*words, code=2, app=app).output
        assert f"needs a store on this host, and result_backend is '{url}'" in said
        assert "run it on the host of the store" in said and "cystore_home" not in said


def test_text_that_would_move_the_cursor(backend, run):
    backend.store.put_many([event_message(events.FAILED, "t", "app.\x1b[2J", exception="a\nb")])
    (line,) = run("history").stdout.splitlines()
    assert "\x1b" not in line and r"a\nb" in line


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example(run, name):
    assert f"celery -A shop cystore {name}" in run(name, "--help").stdout


@pytest.mark.parametrize("name", sorted({*NAMES} - {"web"}))  # which serves it
def test_every_command_has_json(run, name):
    assert "--json" in run(name, "--help").stdout


def test_a_misspelt_command_gets_a_hint(run):
    """Celery's own commands have one: `celery statu`."""
    said = run("unfinishd", code=2).output
    assert "No such command 'unfinishd'" in said and "Did you mean" in said and "unfinished" in said


def test_the_commands_of_the_documents_exist(run):
    """With the options that they are shown with."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    shown = [shlex.split(line, comments=True) for line in re.findall(r"^celery -A .*$", text, re.MULTILINE)]
    used = [words[4:] for words in shown if words[3] == "cystore"]
    assert {words[0] for words in used} == set(NAMES)
    for words in used:
        assert "Usage" in run(*words, "--help").stdout


def test_the_real_command_follows(written, tmp_path):
    """As a user types it: found by its entry point, ended by Ctrl-C without a word."""
    app = tmp_path / "shop.py"
    app.write_text(
        f"from celery import Celery\napp = Celery('shop', broker='memory://', backend={written.url!r})\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "shop", "cystore", "tail", "-f", "-n", "1", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert json.loads(process.stdout.readline())["task_id"] == "t39"
            for number in range(3):
                written.store.put_many([event_message(events.SENT, f"new{number}", "app.task0")])
                assert json.loads(process.stdout.readline())["task_id"] == f"new{number}"
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_doctor(run, url, make_backend):
    """The store, the host, and the broker if it is a Redis; a store that is not there is no error."""
    assert "no store" in run("doctor").output
    make_backend().store_result("id", 1, states.SUCCESS)
    told = json.loads(run("doctor", "--json").stdout)
    assert told["path"] == url.removeprefix("cystore://") and told["status"] != "bad"
    checks = {one["check"]: one for one in told["checks"]}
    assert checks["redis"]["found"].startswith("the app has none, and needs none")
    away = Celery("shop", broker="redis://127.0.0.1:1/0", backend=url, set_as_current=False)
    done = run("doctor", app=away, code=1)
    assert "redis://127.0.0.1:1/0 does not answer" in done.output
    assert "127.0.0.1:1/0" not in run("doctor", "--redis", "redis://127.0.0.1:2/0", app=away, code=1).output
