"""Goal: the options and the end of `celery -A APP cystore ...` are as users of other commands expect them. Method:
Celery's own program in this process on a written log; the real command where a pipe is closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from celery import Celery, states
from celery.bin.celery import celery
from click.testing import CliRunner, Result

import cystore
from cystore.celery.base import events
from cystore.celery.stores import close_shared
from cystore.clock import now_ms
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write

COMMAND = [sys.executable, "-m", "celery", "-A", "shop", "cystore"]


@pytest.fixture
def run(url):
    """`run("history")`: the command for an app on this test's store."""
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)

    def call(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(celery, ["cystore", *words], default_map={"app": app})
        assert done.exit_code == code, done.output
        return done

    return call


@pytest.fixture
def states_of(run):
    """The states in a command's JSON."""
    return lambda *words: {json.loads(line)["state"] for line in run(*words, "--json").stdout.splitlines()}


@pytest.mark.parametrize("name", ["history", "tail"])
def test_a_state_that_no_task_can_have(backend, run, name):
    """Was: "nothing meets these conditions", as if there were no such tasks."""
    write(backend.store, runs(20))
    said = run(name, "--state", "foo", code=2).output
    assert "--state foo" in said
    assert all(state in said for state in (*events.KINDS, *states.ALL_STATES))


@pytest.mark.parametrize("name", ["history", "tail", "failures", "top", "slow", "unfinished", "find"])
def test_a_name_that_no_task_has(backend, run, name):
    """Seen: "nothing meets these conditions", and `tail` without a word, as if it were a question of time."""
    write(backend.store, runs(20))
    more = ("--args", "x") if name == "find" else ()
    done = run(name, "--name", "app.taks0", *more, code=1)
    assert done.stdout == ""
    *more, told = done.stderr.splitlines()
    assert "no task has the name 'app.taks0'; did you mean app.task0" in told
    assert len(more) == (name == "unfinished")  # that says which age it means, too


def test_a_store_whose_files_another_program_made(url, run, request):
    """Seen: the commands refused the lengths of its files, which the app's processes keep."""
    lengths = {"mapped_file_size_commit_log_bytes": 1 << 20, "mapped_file_size_consume_queue_bytes": 20_000}
    cystore.open(url.removeprefix("cystore://"), services="none", **lengths).close()
    write(request.getfixturevalue("backend").store, runs(3))
    assert run("history").output
    assert run("status").output


def test_states_of_the_apps_own_and_small_letters(backend, run, states_of):
    write(backend.store, runs(20))
    backend.store_result("t1", {"done": 3}, "PROGRESS")
    assert states_of("history", "--state", "PROGRESS") == {"PROGRESS"}
    assert states_of("history", "--state", "failed") == {events.FAILED}
    assert states_of("tail", "--state", "failed") == {events.FAILED}
    assert (
        "no failures" not in run("history", "--state", "REVOKED", code=1).output
    )  # known, and nobody had it


def test_every_way_to_say_since_when(backend, run):
    """Was: weeks and seconds or milliseconds since 1970 were refused."""
    backend.store.put_many([event_message(events.SENT, "t", "app.task")])
    ago_s = now_ms() // 1000 - 60
    iso = datetime.fromtimestamp(ago_s, UTC).isoformat()
    for word in ("60s", "1m", "1h", "1d", "2w", str(ago_s), f"{ago_s}.5", str(ago_s * 1000), iso):
        assert len(run("history", "--since", word).stdout.splitlines()) == 1, word
        run("history", "--until", word, code=1)
    for word in ("2x", "5", "-1h", "w"):
        assert "2w" in run("history", "--since", word, code=2).output


def test_hints_name_no_option_that_the_command_lacks(backend, url, run):
    """Was: "check ... (--set, --config)", which these commands do not have."""
    folder = url.removeprefix("cystore://")
    os.makedirs(folder)
    with open(os.path.join(folder, "something"), "w") as file:
        file.write("else")
    said = run("history", code=2).output
    assert "--set" not in said and "--config" not in said
    assert "result_backend" in said


def test_the_reader_of_the_output_goes_away(backend, tmp_path):
    """Was: exit code 1, which says that nothing was found. `cystore` says 141 as a process does that SIGPIPE ends."""
    write(backend.store, runs(1000))
    close_shared()
    (tmp_path / "shop.py").write_text(
        f"from celery import Celery\napp = Celery('shop', broker='memory://', backend={backend.url!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    for words in (["history", "--limit", "0"], ["status"]):
        with subprocess.Popen(
            [*COMMAND, *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:  # fmt: skip
            if words[0] == "history":
                assert process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
        assert (process.returncode, said) == (141, "")
