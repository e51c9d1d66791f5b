"""Spark with the jars of Delta and Iceberg, in an environment of its own: the newest PySpark that both have jars
for."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.interop.rocketmq import BUILD_TIMEOUT_S, UNREACHABLE, Unavailable

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
HOME = ROOT / "build" / "table-readers"
PYSPARK = "pyspark==4.1.4"
NO_INDEX = ("No matching distribution", "Could not find a version", "ConnectionError", "Read timed out")


def read_tables(delta: str, iceberg: str, out: Path) -> dict[str, Any]:
    """What `read_tables.py` says of both tables; it also writes their rows below `out`. Raises Unavailable."""
    python, jars = _built()
    script = str(HERE / "read_tables.py")
    done = subprocess.run(
        [str(python), script, str(jars), delta, iceberg, str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads((out / "answers.json").read_text())
    return answers


def _built() -> tuple[Path, Path]:
    """The environment's Python and the folder of the jars; made once for each state of the files here."""
    digest = hashlib.sha256((PYSPARK + sys.version).encode() + (HERE / "pom.xml").read_bytes()).hexdigest()[
        :16
    ]
    home = HOME / digest
    HOME.mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            _make(home)
            (home / "ready").touch()
    return home / "venv" / "bin" / "python", home / "jars"


def _make(home: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no mvn: the jars of Delta and Iceberg cannot be fetched (apt-get install maven)")
    pom = str(HERE / "pom.xml")
    _run([maven, "-B", "-q", "-f", pom, "package", f"-Dbuild.root={home / 'jars'}"], UNREACHABLE)
    _run([sys.executable, "-m", "venv", str(home / "venv")], ())
    _run([str(home / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", PYSPARK], NO_INDEX)


def _run(command: Sequence[str], unreachable: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    told = done.stdout + done.stderr
    if done.returncode and any(sign in told for sign in unreachable):
        raise Unavailable(f"{command[0]} reaches no server: {told[:500]}")
    assert done.returncode == 0, told
