"""Goal: the main job does what it says, and notices a lost result. Method: run it as a user does, on few files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cystore
from celery_app import sources, tasks
from celery_app.folder import FolderError, RunFolder
from celery_app.job import BROKERS
from cystore.celery.base import records
from tests.celery.conftest import ROOT

FILES = 60


def celery_app(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery_app", *arguments],
        cwd=ROOT,
        env=os.environ,
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module", params=BROKERS)
def run(request, tmp_path_factory) -> tuple[RunFolder, subprocess.CompletedProcess[str]]:
    folder = RunFolder((tmp_path_factory.mktemp("job") / "run").resolve())
    return folder, celery_app("--files", str(FILES), "--path", str(folder.root), "--broker", request.param)


def test_it_ends_well_and_shows_what_it_did(run):
    folder, done = run
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FILES} tasks" in done.stdout
    assert "SIGKILL" in done.stdout
    assert (
        f"a fresh process read all {FILES} acknowledged results back: 0 missing, 0 different" in done.stdout
    )
    for part in ("by id", "by name", "by time", "failed", "summary", "SyntaxError"):
        assert part in done.stdout
    leases = re.search(r"queues and index in \d+ runs, with leases in (the store|Redis)", done.stdout)[1]
    assert ("no server" in done.stdout) == (leases == "the store")
    assert not (folder.store / "abort").exists()


def test_the_commands_it_names_work(run):
    _, done = run
    commands = [
        line.split() for line in done.stdout.splitlines() if re.search(r"(info|query|tail) \S*store", line)
    ]
    assert len(commands) == 3
    for command in commands:
        shown = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
        assert shown.returncode == 0, shown.stderr
        assert records.RESULTS in shown.stdout


def test_a_lost_result_is_noticed(run):
    folder, _ = run
    assert celery_app("--verify", "--path", str(folder.root)).returncode == 0
    kept = folder.acknowledged.read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    assert len(lines) == FILES
    different = {**lines[0], "result": "something else"}
    lost = {**lines[1], "id": "never stored"}
    folder.acknowledged.write_text("\n".join(map(json.dumps, [different, lost])) + "\n")
    done = celery_app("--verify", "--path", str(folder.root))
    folder.acknowledged.write_text(kept)
    assert done.returncode == 1
    verdict = json.loads(done.stdout)
    assert verdict == {"checked": 2, "missing": ["never stored"], "different": [lines[0]["id"]]}


def test_nothing_acknowledged_is_no_good_end(run):
    folder, _ = run
    kept = folder.acknowledged.read_text()
    folder.acknowledged.write_text("")
    done = celery_app("--verify", "--path", str(folder.root))
    folder.acknowledged.write_text(kept)
    assert done.returncode == 1


def test_every_file_of_the_run_is_in_the_store(run):
    folder, _ = run
    with cystore.open(folder.store, read_only=True) as store:
        ids = {message.keys[0] for message in store.scan() if message.topic == records.RESULTS}
    assert len(ids) == FILES


def test_no_server_is_the_default(tmp_path):
    folder = RunFolder(tmp_path / "run")
    done = celery_app("--files", "12", "--path", str(folder.root))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "and no server: the store is the broker, too" in done.stdout


def test_a_run_starts_afresh_but_removes_nothing_of_others(tmp_path):
    first = RunFolder.fresh(tmp_path / "run")
    (first.root / "left").touch()
    assert not (RunFolder.fresh(tmp_path / "run").root / "left").exists()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    with pytest.raises(FolderError, match="files that no run made"):
        RunFolder.fresh(tmp_path / "precious")
    assert (tmp_path / "precious" / "file").exists()
    done = celery_app("--path", str(tmp_path / "precious"))
    assert done.returncode == 1
    assert "files that no run made" in done.stderr


def test_the_input_is_pythons_own_library():
    files = sources.python_files()
    assert len(files) > 500
    assert Path(os.__file__).resolve() in files
    assert Path(pytest.__file__).resolve() in files
    chosen = sources.chosen(files, files[-2:], 20)
    assert len(chosen) == len(set(chosen)) == 20
    assert set(files[-2:]) <= set(chosen)
    assert sources.chosen(files, [], 20) == sources.chosen(files, [], 20)
    assert len(sources.chosen(files, [], None)) == len(files)


def test_files_are_counted(tmp_path):
    source = tmp_path / "a.py"
    source.write_text(
        "import os\n\nclass A:\n    def b(self):\n        from os import path\n\n        async def c(): ...\n\n"
        "try:\n    pass\nexcept OSError:\n    import ast\nmatch 1:\n    case 1:\n        import re\n"
    )
    counts = tasks.index_file(str(source))
    assert counts == {"bytes": source.stat().st_size, "lines": 15, "functions": 2, "classes": 1, "imports": 4}


def test_broken_files_fail_for_real(tmp_path):
    for path in sources.write_broken(tmp_path / "broken"):
        with pytest.raises(SyntaxError):
            tasks.index_file(str(path))
    assert sources.failing([tmp_path / "broken" / "badly_indented.py"]) == [
        tmp_path / "broken" / "badly_indented.py"
    ]
    assert sources.failing([Path(os.__file__)]) == []
