"""Goal: what is handed out works, and a build that cannot work says so. Method: make the source archive, a wheel from
it, and use the wheel's content alone; build in environments in which something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.structure.sources import ROOT, files, name_of

SDIST = (
    "import sys; sys.path.insert(0, 'tools/backend'); import in_a_copy; in_a_copy.build_sdist(sys.argv[1])"
)


def _run(*command: str, cwd, **variables: str) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _written() -> set[tuple[str, int]]:
    """What setuptools would write beside setup.py: the content of these folders, with its time."""
    folders = [ROOT, ROOT / "build", *ROOT.glob("*.egg-info")]
    return {(path.name, path.stat().st_mtime_ns) for folder in folders[2:] for path in folder.iterdir()} | {
        (name_of(path), 0) for folder in folders[:2] if folder.exists() for path in folder.iterdir()
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The content of the source archive, which is made without a trace in the clone."""
    folder = tmp_path_factory.mktemp("sdist")
    before = _written()
    _run(sys.executable, "-c", SDIST, str(folder), cwd=ROOT)
    assert not _written() - before
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (content,) = (path for path in folder.iterdir() if path.is_dir())
    return content


def test_the_source_archive_has_what_a_build_needs_and_nothing_built(source):
    names = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    sources = {name_of(path) for path in files(".py", ".pyx", ".pxd", ".pyi", ".h", under="cystore")}
    assert (
        sources | {"LICENSE", "README.md", "pyproject.toml", "setup.py", "tools/backend/in_a_copy.py"}
        <= names
    )
    assert not [
        name for name in names if name.startswith(("build", "tests", ".venv")) or name.endswith((".so", ".c"))
    ]


@pytest.mark.slow
def test_source_archive_to_wheel_to_import(tmp_path, source):
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
    assert not [path.name for path in source.iterdir() if path.name == "build"]
    (wheel,) = (source / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as zipped:
        inside = zipped.namelist()
        zipped.extractall(tmp_path / "site")
    assert not [name for name in inside if name.endswith((".pyx", ".pxd", ".c", ".h"))]
    assert "cystore/py.typed" in inside
    code = "import cystore, os; cystore.open('store').close(); print(os.path.dirname(cystore.__file__))"
    where = _run(sys.executable, "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert where.strip() == str(tmp_path / "site" / "cystore")


BUILD = ("setup.py", "build_ext")
PRETEND = "import sys; sys.{} = {}; sys.argv = ['setup.py', 'build_ext']; exec(open('setup.py').read())"
APT = "apt-get install"


def _fails(source: Path, *command: str, **variables: str) -> str:
    """The last line of a build that fails before it translates or compiles anything."""
    env = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=source,
        env=env,
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode, done.stdout
    assert "Cythonizing" not in done.stdout
    assert not (source / "build" / "cython").exists()
    return done.stderr.splitlines()[-1]


def test_a_build_without_a_compiler_says_so_at_once(source):
    told = _fails(source, *BUILD, PATH="", CC="gcc")
    assert told == (
        "error: cystore needs a C compiler, and there is no 'gcc': "
        f"{APT} gcc libc6-dev (Fedora: dnf install gcc), or name another one in CC"
    )
    assert "there is no 'no-such-cc'" in _fails(source, "setup.py", "bdist_wheel", CC="no-such-cc -m64")
    assert "false does not work: exit code 1" in _fails(source, *BUILD, CC="false")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (["zlib.h"], f"cystore needs the header of zlib: {APT} zlib1g-dev (Fedora: dnf install zlib-devel)"),
        (
            ["Python.h", "zlib.h"],
            (
                f"cystore needs the headers of Python, the header of zlib: {APT} python3-dev zlib1g-dev "
                "(Fedora: dnf install python3-devel zlib-devel)"
            ),
        ),
    ],
    ids=["zlib", "two"],
)
def test_a_build_without_a_header_names_its_package(source, tmp_path, headers, told):
    for header in headers:
        (tmp_path / header).write_text("#error this machine does not have it\n")
    assert _fails(source, *BUILD, CC="cc", CPPFLAGS=f"-I{tmp_path}") == f"error: {told}"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("platform", "'darwin'", "cystore runs on Linux only, and this is darwin"),
        (
            "version_info",
            "(3, 10, 13, 'final', 0)",
            "cystore needs Python 3.11 or newer, and this is Python 3.10",
        ),
    ],
    ids=["macOS", "Python"],
)
def test_a_build_for_another_system_says_so_before_it_imports_anything(source, name, value, told):
    # The environment has no packages: neither setuptools nor Cython is imported before the check.
    assert _fails(source, "-I", "-S", "-c", PRETEND.format(name, value)).startswith(told)


def test_every_entry_point_leads_somewhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = [*project["scripts"].values(), *project["entry-points"]["celery.result_backends"].values()]
    for target in targets:
        module, name = target.split(":")
        _run(sys.executable, "-c", f"from {module} import {name}", cwd=ROOT)
