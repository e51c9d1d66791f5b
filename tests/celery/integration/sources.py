"""Celery's and kombu's own integration tests: `t/` of the source distribution of the version that is installed here,
unpacked under build/."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "celery-integration"
WANTED = ("t/", "pyproject.toml")  # not the package beside them: under test is the one that is installed


class SourcesError(RuntimeError):
    """The source distribution cannot be had, or is not what the package index says."""


def sources(package: str = "celery") -> Path:
    """The folder that holds `t/integration`, fetched by pip the first time."""
    name = f"{package}-{version(package)}"
    folder = CACHE / name
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        archive = _download(Path(work), f"{package}=={version(package)}")
        with tarfile.open(archive) as tar:
            wanted = [m for m in tar.getmembers() if m.name.removeprefix(f"{name}/").startswith(WANTED)]
            tar.extractall(work, wanted, filter="data")
        try:
            (Path(work) / name).rename(folder)
        except OSError:
            if not folder.is_dir():  # else somebody else was faster
                raise
    return folder


def _download(work: Path, requirement: str) -> Path:
    """The archive, with the checksum that the index gave for it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source = ["-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", requirement]
    report = work / "report.json"
    _call([*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report), *source])
    (item,) = json.loads(report.read_text())["install"]
    expected = item["download_info"]["archive_info"]["hashes"]["sha256"]
    _call([*pip, "download", "--dest", str(work / "archive"), *source])
    (archive,) = (work / "archive").iterdir()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != expected:
        raise SourcesError(f"{archive.name} has sha256 {found}; the package index says {expected}")
    return archive


def _call(command: list[str]) -> None:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SourcesError(f"{' '.join(command)} failed:\n{done.stdout}")
