"""Shared by the Spark tests: one local session, a JDK that is new enough, small stores with known rows."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.support.small_stores import open_small

ROOT = Path(__file__).resolve().parent.parent.parent
LEAST_JAVA = 17
INSTALL = "apt-get install default-jdk-headless"
# As options of the source: how the tests' stores are laid out.
STORE_OPTIONS = {"cystore.services": "none"}


@functools.cache
def java_version() -> int:
    """Of the java that Spark would take, 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], text=True, capture_output=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a JDK every test here is skipped, with the command that brings one."""
    if java_version() >= LEAST_JAVA:
        return
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(f"Spark needs a JDK {LEAST_JAVA} or newer: {INSTALL}"))


def spark_settings(folder: Path) -> dict[str, str]:
    """A session that starts fast and leaves nothing outside of a folder."""
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder}",
        "spark.sql.streaming.pollingDelay": "5ms",
        "spark.log.level": "ERROR",
    }


def start_session(master: str, folder: Path, **more: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("cystore tests")
    for name, value in {**spark_settings(folder), **more}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark may write; its workers find this repository as users' find the installed package."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_folder: Path) -> Iterator[Any]:
    """local[2], for the whole run."""
    session = start_session("local[2]", spark_folder)
    yield session
    session.stop()


def fill(store: cystore.MessageStore, count: int, first: int = 0) -> None:
    """Messages whose every field tells their number."""
    store.put_many(
        [
            cystore.Message(
                topic=f"topic-{number % 2}",
                queue_id=number % 3,
                body=f"body {number}".encode() * 10,
                keys=(f"key-{number}", "all"),
                tags=("even", "odd")[number % 2],
                properties={"number": str(number)},
            )
            for number in range(first, first + count)
        ]
    )


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[..., cystore.MessageStore]]:
    """`make_store("name", count)`: an open store of small files with so many messages."""
    made = []

    def make(name: str = "store", count: int = 0) -> cystore.MessageStore:
        store = open_small(tmp_path / name)
        made.append(store)
        fill(store, count)
        store.flush()
        return store

    yield make
    for store in made:
        store.close()
