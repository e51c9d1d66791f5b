"""The build backend: setuptools, in a copy of the sources. `pip install .` leaves nothing in the clone.

setuptools writes `build` and `cystore.egg-info` beside setup.py. The copy has the sources alone: no kernel that was
built in place, and no output of an earlier build. An editable install is about the clone itself, and stays in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

SOURCES = (
    "cystore",
    "tools/backend",
    "pyspark_cystore.py",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
Settings = dict[str, str | list[str] | None] | None


@contextmanager
def copied() -> Iterator[None]:
    """The working directory is a copy of the sources, which is gone afterwards."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="cystore-build-") as folder:
        for name in SOURCES:
            target = os.path.join(folder, name)
            if os.path.isdir(name):
                shutil.copytree(name, target, ignore=BUILT)
            else:
                shutil.copy2(name, target)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return []  # pyproject.toml names them all


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    metadata_directory = os.path.abspath(metadata_directory)
    with copied():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    wheel_directory = os.path.abspath(wheel_directory)
    with copied():
        return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    sdist_directory = os.path.abspath(sdist_directory)
    with copied():
        return str(build_meta.build_sdist(sdist_directory, config_settings))
