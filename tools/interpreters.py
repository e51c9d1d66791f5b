"""Builds the kernels for the other Pythons of this machine, and runs the Python blocks of several pages with each.

    .venv/bin/python tools/interpreters.py [--seconds 60]

Nothing is downloaded: the C files are those of the build in place, and pytest runs with the Python of .venv. A Python
without headers is named and left out; so are those for which the time did not suffice. The seed of the tests chooses
who is first, so each commit begins with another one. Exit code not 0 only if a build or a test failed with a version
that pyproject.toml names as supported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import build  # noqa: E402
from tools.processes import ends_with_us  # noqa: E402
from tools.setup_env import LEAST_PYTHON  # noqa: E402

NEWEST_MINOR = 20
SECONDS = 60  # for all of them together
HANG_S = 600  # a build or a slice that needs so long hangs
# Their blocks use the log, reads by offset, key and time, groups, transactions, delays, filters and services, and need
# no package that is compiled for one Python.
PAGES = (
    "consumers",
    "delay",
    "dispatchers",
    "expiry",
    "filters",
    "light-queues",
    "once",
    "pool",
    "transactions",
)
PROBE = """
import json, os, sys, sysconfig
has = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
plain = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps([list(sys.version_info[:2]), has, plain]))
"""


@dataclass(frozen=True)
class Interpreter:
    path: Path
    version: tuple[int, int]
    has_headers: bool

    @property
    def name(self) -> str:
        return f"Python {self.version[0]}.{self.version[1]}"


def candidates() -> Iterator[Path]:
    """Programs that may be a Python: on PATH, and the versions of pyenv, whose names on PATH only lead to them."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted((pyenv / "versions").glob("*/bin"))
    for folder in folders:
        for minor in range(LEAST_PYTHON[1], NEWEST_MINOR):
            path = folder / f"python3.{minor}"
            if os.access(path, os.X_OK):
                yield path


def found() -> list[Interpreter]:
    """One interpreter for each version but that of .venv, oldest first. A program that is not a CPython is left out."""
    versions: dict[tuple[int, int], Interpreter] = {}
    for path in candidates():
        try:
            told = subprocess.run(
                [path, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
            ).stdout
            (major, minor), has_headers, plain = json.loads(told)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # a shim of a version that is not chosen here, or a broken program
        this = Interpreter(path, (major, minor), has_headers)
        known = versions.get(this.version)
        if plain and this.version != sys.version_info[:2] and (known is None or not known.has_headers):
            versions[this.version] = this
    return [versions[version] for version in sorted(versions)]


def supported() -> set[tuple[int, int]]:
    """The versions in the classifiers of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (\d+)\.(\d+)", "\n".join(project["classifiers"]))
    return {(int(major), int(minor)) for major, minor in versions}


def run(interpreter: Interpreter) -> int:
    """Builds the kernels and runs the pages' blocks with them; pytest's exit code. Raises BuildError."""
    packages = sysconfig.get_path("purelib")
    tree = build.build("interpreter", python=str(interpreter.path), packages=packages)
    path = os.pathsep.join([str(tree), packages])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [
        f"tests/structure/test_docs.py::test_every_python_block_runs[docs/{page}.md]" for page in PAGES
    ]
    env = {**os.environ, "DOCS_PYTHON": str(interpreter.path), "DOCS_PYTHONPATH": path}
    done = subprocess.run(ends_with_us(command), cwd=ROOT, env=env, timeout=HANG_S, check=False)
    return done.returncode


def run_all(seconds: float, seed: int) -> tuple[int, int]:
    """Runs the slice with each interpreter until the time is over; how many passed and failed."""
    there, passed, failed, begin, longest = found(), 0, 0, time.monotonic(), 0.0
    if not there:
        print("interpreters: no other CPython 3.11 or newer is on this machine")
    first = seed % max(1, len(there))
    for interpreter in there[first:] + there[:first]:
        if not interpreter.has_headers:
            print(f"interpreters: {interpreter.name} ({interpreter.path}) has no headers, left out")
            continue
        takes = longest  # as the longest one before it
        if takes and time.monotonic() - begin + takes > seconds:
            print(f"interpreters: {interpreter.name} not tried, there are {seconds:.0f} s for all of them")
            continue
        started = time.monotonic()
        try:
            code = run(interpreter)
        except (build.BuildError, subprocess.TimeoutExpired) as error:
            print(error)
            code = 1
        took = time.monotonic() - started
        longest = max(longest, took)
        if interpreter.version in supported():
            passed, failed = passed + (code == 0), failed + (code != 0)
        print(
            f"interpreters: {interpreter.name} {'FAILED' if code else 'passed'} in {took:.0f} s", flush=True
        )
    return passed, failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs a slice of the tests with each other Python.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="none begins later (%(default)s)")
    options = parser.parse_args(arguments)
    _, failed = run_all(options.seconds, int(os.environ.get("CYSTORE_SEED", "0")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
