"""Goal: what is handed out works. Method: make the source archive, a wheel from it, and use the wheel's content
alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from tests.structure.sources import ROOT, files, name_of


def _run(*command: str, cwd, **variables: str) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_source_archive_to_wheel_to_import(tmp_path):
    _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path), cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        tar.extractall(tmp_path, filter="data")
    sources = {name_of(path) for path in files(".py", ".pyx", ".pxd", ".pyi", ".h", under="cystore")}
    assert sources | {"LICENSE", "pyproject.toml", "setup.py"} <= names
    assert not [
        name for name in names if name.startswith(("build", "tests", ".venv")) or name.endswith((".so", ".c"))
    ]

    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    pip = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        "wheel",
        ".",
    )
    _run(*pip, cwd=source)
    (wheel,) = (source / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as zipped:
        inside = zipped.namelist()
        zipped.extractall(tmp_path / "site")
    assert not [name for name in inside if name.endswith((".pyx", ".pxd", ".c", ".h"))]
    assert "cystore/py.typed" in inside
    code = "import cystore, os; cystore.open('store').close(); print(os.path.dirname(cystore.__file__))"
    where = _run(sys.executable, "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert where.strip() == str(tmp_path / "site" / "cystore")


def test_every_entry_point_leads_somewhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = [*project["scripts"].values(), *project["entry-points"]["celery.result_backends"].values()]
    for target in targets:
        module, name = target.split(":")
        _run(sys.executable, "-c", f"from {module} import {name}", cwd=ROOT)
