"""Goal: the helpers that everything else stands on do what they say. Method: use them for real, their failures too."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GROUP_OF_FOLDER
from tests.structure.sources import ROOT
from tools import build, interpreters, matrix, memory_folder, redis_server, run_tests

needs_redis = pytest.mark.skipif(redis_server.find_executable() is None, reason="no redis-server to start")


def _ping(url: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(url.removeprefix("unix://"))
        client.sendall(b"PING\r\n")
        return client.recv(100)


@needs_redis
def test_a_redis_is_started_answers_and_is_gone():
    with redis_server.redis_server(own=True) as redis:
        assert _ping(redis.url) == b"+PONG\r\n"
        assert redis.broker_url.startswith("redis+socket:///")
        folder = Path(redis.url.removeprefix("unix://")).parent
    assert not folder.exists()
    assert not Path(f"/proc/{redis.pid}").exists()


@needs_redis
def test_a_redis_ends_with_the_process_that_started_it():
    code = (
        "import signal\nfrom tools.redis_server import redis_server\n"
        "with redis_server(own=True) as redis:\n    print(redis.pid, flush=True)\n    signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        server = os.pidfd_open(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
    try:
        ended, _, _ = select.select([server], [], [], 30)
        assert ended
    finally:
        os.close(server)


def test_the_redis_that_is_given_is_used(monkeypatch):
    monkeypatch.setenv("CYSTORE_REDIS_URL", "redis+socket:///somewhere/s")
    with redis_server.redis_server() as redis:
        assert (redis.url, redis.broker_url) == ("unix:///somewhere/s", "redis+socket:///somewhere/s")
        assert not redis.started_by_us


def test_without_a_redis_the_error_says_what_to_type(monkeypatch):
    monkeypatch.delenv("CYSTORE_REDIS_URL", raising=False)
    monkeypatch.setattr(redis_server, "find_executable", lambda: None)
    with pytest.raises(redis_server.RedisUnavailableError, match="apt-get install redis-server"):
        redis_server.redis_server().__enter__()


def test_a_redis_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(redis_server, "find_executable", lambda: "/bin/false")
    with pytest.raises(redis_server.RedisUnavailableError, match="did not start"):
        redis_server.redis_server(own=True).__enter__()


@pytest.mark.parametrize(
    "line",
    [
        "cystore/_native/append.c:12:3: warning: unused variable 'x' [-Wunused-variable]",
        "warning: cystore/_native/derived/index.pyx:3:4: Unreachable code",
        "performance hint: cystore/_native/scan/log_walk.pyx:9:1: Exception check will always require the GIL",
    ],
)
def test_warnings_of_our_sources_are_seen(line):
    assert build.warnings_in(f"running build_ext\n{line}\n") == [line]


def test_warnings_of_others_are_not_ours():
    assert not build.warnings_in(
        "setuptools/dist.py:1: SetuptoolsDeprecationWarning: soon\nwarning: build_py: byte-compiling is off"
    )


def test_a_warning_costs_the_next_build_only_its_module(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    translated = tmp_path / "build" / "cython" / "cystore" / "_native" / "scan"
    compiled = tmp_path / "build" / "temp.linux" / "build" / "cython" / "cystore" / "_native" / "scan"

    def left(*warned: str) -> set[str]:
        for folder, ending in ((translated, "c"), (compiled, "o")):
            folder.mkdir(parents=True, exist_ok=True)
            for module in ("log_walk", "log", "walk"):
                (folder / f"{module}.{ending}").touch()
        build.forget("inplace", list(warned))
        return {path.name for path in (tmp_path / "build").rglob("*.[co]")}

    kept = {"log.c", "log.o", "walk.c", "walk.o"}
    assert left("build/cython/cystore/_native/scan/log_walk.c:12:3: warning: unused variable 'x'") == kept
    assert left("warning: cystore/_native/scan/log_walk.pyx:3:4: Unreachable code") == kept
    assert left() == kept | {"log_walk.c", "log_walk.o"}  # what failed has left nothing
    assert (
        left("warning: cystore/_native/scan/log.pyx:3:4: old", "atomics.h:7:1: warning: unused 'f'") == set()
    )


def test_a_warning_about_failpoints_costs_the_objects_of_the_build_in_place_too(tmp_path, monkeypatch):
    """Modules without a failpoint are compiled once for both builds."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    objects = [
        tmp_path / "build" / variant / "temp.linux/build/cython/cystore/_native/scan/log.o"
        for variant in ("", "failpoints", "asan")
    ]
    for built in objects:
        built.parent.mkdir(parents=True)
        built.touch()
    build.forget("failpoints", ["build/cython/cystore/_native/scan/log.c:1:1: warning: unused variable 'x'"])
    assert [built.exists() for built in objects] == [False, False, True]


def test_a_build_keeps_no_copy_of_what_was_changed_or_deleted(tmp_path):
    package = tmp_path / "cystore"
    package.mkdir()
    shutil.copyfile(ROOT / "cystore" / "clock.py", package / "clock.py")
    (package / "errors.py").write_bytes(b"of an older build")
    (package / "deleted_since.py").write_bytes(b"")
    build.drop_stale_sources(tmp_path)
    assert [path.name for path in package.iterdir()] == ["clock.py"]


def _group(folder: Path, text: str) -> run_tests.Group:
    (folder / "test_it.py").write_text(text)
    return run_tests.Group("sample", 60, "not crash", paths=(str(folder),))


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def test_a(): pass", 0, "==== 1 passed in"),
        ("def test_a(): assert 0\ndef test_b(): pass", 1, "==== 1 failed, 1 passed in"),
        ("def test_a(): assert 0", 1, "FAILED"),
        ("x = 1", 1, "NO TESTS"),
        ("import pytest\ndef test_a(): pytest.skip('x')", 1, "==== 1 skipped in"),
        ("import nothing_of_that_name", 1, "FAILED"),
        ("import os\ndef test_a(): os.abort()", 1, "FAILED"),
    ],
)
def test_the_runner_fails_when_it_should(text, code, said, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(run_tests, "GROUPS", (_group(tmp_path, text),))
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("CI", "")
    assert run_tests.main([]) == code
    assert said in capfd.readouterr().out


def test_no_process_of_a_group_compiles_what_another_one_compiled(tmp_path, monkeypatch):
    (tmp_path / "needed.py").write_text("")
    monkeypatch.setattr(run_tests, "GROUPS", (_group(tmp_path, "import needed\ndef test_a(): pass"),))
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert run_tests.main([]) == 0
    assert list((tmp_path / "__pycache__").glob("needed.*.pyc"))


def test_the_tests_are_compiled_before_the_groups(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_a(): pass")
    run_tests.compile_tests([run_tests.Group("three", 10, "", paths=(str(tmp_path),))])
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "__pycache__").iterdir()) == [
        "test_a",
        "test_b",
        "test_c",
    ]


def test_a_group_beyond_its_budget_is_reported():
    group = run_tests.Group("slow one", 10, "")
    text = run_tests.table([run_tests.Outcome(group, 11.0, 0, tests=3)], everything=False, setup_s=0)
    assert "BEYOND ITS BUDGET" in text
    assert "BEYOND" not in run_tests.table(
        [run_tests.Outcome(group, 11.0, 0, tests=3)], everything=True, setup_s=0
    )


def test_every_test_is_in_one_group():
    """The folders and the markers of the groups leave nothing out and take nothing twice."""
    names = ("crash", "rocketmq", "celery", "spark")
    by_hand = re.compile(rf"pytest\.mark\.({'|'.join(names)})\b")
    whole = [group for group in run_tests.GROUPS if not group.variant]
    for path in (ROOT / "tests").rglob("test_*.py"):
        file = path.relative_to(ROOT)
        of_folder = GROUP_OF_FOLDER.get(file.parts[1])
        for marker in [of_folder] if of_folder in names else [None, *by_hand.findall(path.read_text())]:
            values = {name: name == marker for name in names}
            taken = [
                group.name
                for group in whole
                if any(file.is_relative_to(folder) for folder in group.paths)
                and not any(file.is_relative_to(folder) for folder in group.without)
                and eval(group.markers, {}, values)
            ]
            assert len(taken) == 1, (file, marker, taken)


def test_a_group_ends_with_its_runner(tmp_path):
    """Whoever ends the runner ends the tests too: nothing continues working in the tree unseen."""
    (tmp_path / "test_it.py").write_text(
        "import os, signal\n"
        "def test_a():\n"
        "    with open(os.environ['PIPE'], 'w') as pipe:\n"
        "        pipe.write(str(os.getpid()))\n"
        "    signal.pause()\n"
    )
    os.mkfifo(tmp_path / "pipe")
    code = (
        "import pathlib, runpy, signal, sys\n"
        "from tools import run_tests\n"
        f"group = run_tests.Group('sample', 60, 'not crash', paths=({str(tmp_path)!r},))\n"
        f"run_tests.RESULTS = pathlib.Path({str(tmp_path)!r})\n"
        "run_tests.run(group, everything=False, seed=1)\n"
    )
    env = {**os.environ, "PIPE": str(tmp_path / "pipe")}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.DEVNULL
    ) as runner:
        tests = os.pidfd_open(int((tmp_path / "pipe").read_text()))
        runner.send_signal(signal.SIGKILL)
    try:
        assert select.select([tests], [], [], 30)[0]
    finally:
        os.close(tests)


def test_the_quick_group_runs_only_when_it_is_named():
    assert run_tests.QUICK not in run_tests.GROUPS
    for path in run_tests.QUICK.paths:
        assert (ROOT / path).exists(), path
    with pytest.raises(SystemExit):
        run_tests.main(["no-such-group"])


def _run(folder: Path, text: str, *, everything: bool = False) -> int:
    group = replace(_group(folder, text), in_memory=True)
    return run_tests.run(group, everything=everything, seed=1).exit_code


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The folder that stands for the host's memory, which has room."""
    monkeypatch.setattr(memory_folder, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(memory_folder, "ROOM_BYTES", 0)
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("FILES", str(tmp_path / "files"))
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


WRITES = """
import os
from pathlib import Path
def test_it(tmp_path):
    (tmp_path / "file").write_text("left")
    Path(os.environ["FILES"]).write_text(str(tmp_path))
    assert {passes}
"""


@pytest.mark.parametrize(
    ("room_bytes", "everything", "is_there"), [(0, False, True), (0, True, False), (1 << 60, False, False)]
)
def test_files_of_tests_are_in_memory_where_there_is_room(
    memory, tmp_path, monkeypatch, room_bytes, everything, is_there
):
    """`make test-all` has them on the disk."""
    monkeypatch.setattr(memory_folder, "ROOM_BYTES", room_bytes)
    assert _run(tmp_path, WRITES.format(passes=True), everything=everything) == 0
    assert Path((tmp_path / "files").read_text()).is_relative_to(memory) == is_there
    assert list(memory.iterdir()) == []


def test_a_host_without_a_folder_in_memory_uses_the_disk(memory, tmp_path):
    memory.rmdir()
    assert _run(tmp_path, WRITES.format(passes=True)) == 0
    assert not memory.exists()


def test_files_of_failed_tests_are_kept_on_the_disk(memory, tmp_path):
    assert _run(tmp_path, WRITES.format(passes=False)) == 1
    assert list(memory.iterdir()) == []
    (kept,) = (tmp_path / "results" / "sample-files").rglob("file")
    assert kept.read_text() == "left"


@pytest.mark.disk
def test_a_test_that_needs_a_disk_has_one(tmp_path, in_memory):
    """A pytest of its own makes its folders in memory."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import tmp_path")
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.disk\n"
        "def test_a(tmp_path): assert os.stat(tmp_path).st_dev != int(os.environ['MEMORY'])\n"
        "def test_b(tmp_path): assert os.stat(tmp_path).st_dev == int(os.environ['MEMORY'])\n"
    )
    env = {**os.environ, "MEMORY": str(in_memory.stat().st_dev)}
    if in_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={in_memory / 't'}"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_same_files_get_the_same_seed_of_the_tests(tmp_path, monkeypatch):
    def commit(content: str) -> int:
        (tmp_path / "file").write_text(content)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "--allow-empty", "-m", content]):
            subprocess.run([*git, *words], cwd=tmp_path, check=True)
        return run_tests.seed_of_this_version()

    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    first, changed, again = commit("one"), commit("two"), commit("one")
    assert first == again != changed
    assert 0 <= first < 2**32


def _program(folder: Path, name: str, does: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]) -> None:
    """A machine on which only these programs are."""
    for name, does in told.items():
        _program(tmp_path / "bin", name, does)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))


def test_other_pythons_are_found_and_shims_that_lead_nowhere_are_not(tmp_path, monkeypatch):
    (tmp_path / "pyenv" / "versions" / "3.18.1").mkdir(parents=True)
    _program(tmp_path / "pyenv" / "versions" / "3.18.1" / "bin", "python3.18", "echo '[[3, 18], true, true]'")
    own = f"python3.{sys.version_info[1]}"
    programs = {
        own: f"exec {sys.executable} \"$@\"", "python3.18": "echo no such version; exit 127",
        "python3.17": "echo '[[3, 17], false, true]'", "python3.19": "echo '[[3, 19], true, false]'",
        "python3.10": "echo '[[3, 10], true, true]'",
    }  # fmt: skip
    _machine(tmp_path, monkeypatch, programs)
    assert [(one.version, one.has_headers) for one in interpreters.found()] == [
        ((3, 17), False),
        ((3, 18), True),
    ]


def test_a_python_that_is_missing_or_cannot_be_compiled_for_fails_nothing(tmp_path, monkeypatch, capsys):
    _machine(tmp_path, monkeypatch, {})
    assert interpreters.run_all(60, seed=1) == (0, 0)
    assert "no other CPython" in capsys.readouterr().out
    _machine(tmp_path, monkeypatch, {"python3.17": "echo '[[3, 17], false, true]'"})
    assert interpreters.run_all(60, seed=1) == (0, 0)
    assert "has no headers" in capsys.readouterr().out


@pytest.mark.parametrize(("minor", "counted"), [(12, (0, 1)), (19, (0, 0))])
def test_a_slice_that_fails_counts_for_supported_versions(tmp_path, monkeypatch, capsys, minor, counted):
    """The program is no Python: it builds nothing."""
    _machine(tmp_path, monkeypatch, {f"python3.{minor}": f"echo '[[3, {minor}], true, true]'; test $# = 2"})
    assert interpreters.run_all(60, seed=1) == counted
    assert f"Python 3.{minor} FAILED" in capsys.readouterr().out


def test_no_python_begins_when_the_time_is_over(tmp_path, monkeypatch, capsys):
    fails = "test $# = 2"
    programs = {f"python3.{minor}": f"echo '[[3, {minor}], true, true]'; {fails}" for minor in (12, 13)}
    _machine(tmp_path, monkeypatch, programs)
    assert interpreters.run_all(0, seed=1) == (0, 1), "one is tried all the same"
    assert "Python 3.12 not tried" in capsys.readouterr().out


def test_the_table_of_the_matrix_keeps_rows_that_were_not_tried(tmp_path, monkeypatch):
    page = tmp_path / "releases.md"
    monkeypatch.setattr(matrix, "PAGE", page)
    page.write_text(f"before\n{matrix.BEGIN}\n{matrix.END}\nafter\n")
    first, second, *_ = matrix.pairs()
    second.found, second.result = {"celery": "5.4.0", "redis": "6.1", "pytest": "8"}, "3 tests passed"
    matrix.write([second])
    matrix.write([first])
    assert page.read_text().splitlines() == [
        "before", matrix.BEGIN, "| | with | versions | result |", "|---|---|---|---|",
        "| Celery 5.4 | redis-py 5 |  | pip finds no such pair |",
        "| Celery 5.4 | redis-py 6 | celery 5.4.0, redis 6.1 | 3 tests passed |", matrix.END, "after",
    ]  # fmt: skip
    second.result = "4 tests passed"
    matrix.write([second])
    assert page.read_text().count("passed") == 1 and "4 tests passed" in page.read_text()


def test_the_newest_redis_py_of_a_celery_gets_the_slice_of_celery():
    known = list(matrix.pairs())[:3]
    known[0].found = known[1].found = {"celery": "5.4.0"}
    matrix.newest_first(known)
    assert [len(pair.slices) for pair in known] == [2, 7, 2]
