"""Shared by the jobs: a session, a store's settings, and work in parts on executors.

Parts hold paths, so every executor needs the driver's directories. A store's error on an executor is raised here as the
same error, not as Spark's report of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import SparkSession

from cystore import errors
from cystore.config import StoreConfig
from cystore.config_sources import resolve
from cystore.derived.reading.snapshot import PIECE_BYTES
from cystore.operate.command import add_settings, store_config, store_path
from cystore.operate.progress import Report
from cystore.spark.frames import cores_of
from cystore.spark.jobs.spread import spread
from cystore.spark.options import SETTING_PREFIX
from cystore.system.links import real_path
from cystore.system.threads import os_threads

LEAST_RANGE_BYTES = 4 << 20
LOOK_EVERY_S = 0.2
PARTITIONS, SPARKS_OWN = "spark.sql.shuffle.partitions", "200"

MASTER = re.compile(r"local|local\[[^]]+\]|local-cluster\[[^]]+\]|yarn|[a-z][a-z0-9+.-]*://\S+")
Part = TypeVar("Part")
Found = TypeVar("Found")


class Failed(NamedTuple):
    """An error of the store on an executor: the name of its class, and its text."""

    kind: str
    text: str


def add_master(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for Spark: its master and its settings."""
    parser.add_argument(
        "--master",
        type=_master,
        help="Spark's master, as local[4] (default: from Spark's configuration)",
    )
    parser.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_configured,
        help="a setting of Spark, as spark.driver.memory=4g; may be repeated",
    )


def _configured(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is no setting of Spark like spark.driver.memory=4g")
    return name.strip(), value


def _master(text: str) -> str:
    """Checks the master before Spark does: Spark would first start a JVM, and write a stack trace."""
    if not MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no master of Spark like local[4] or spark://host:7077")
    return text


def _from_one(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return number


def settings_given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of StoreConfig that --set and --config give. For every other field the store's own value counts.
    Raises StoreConfigError."""
    config = store_config(options)
    names = [field.name for field in dataclasses.fields(config)]
    return {name: getattr(config, name) for name in names if config.gives(name)}


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """The same, as options of the source."""
    return {f"{SETTING_PREFIX}{name}": _as_text(value) for name, value in settings_given(options).items()}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the store, its settings, and Spark."""
    parser.add_argument("path", metavar="PATH", type=store_path, help="directory of the store")
    add_master(parser)
    parser.add_argument(
        "--range-mib",
        type=_from_one,
        metavar="N",
        help="MiB of log for one task (default: by its size, at most 128)",
    )
    add_settings(parser)


@contextmanager
def own_session(
    name: str, master: str | None, conf: Iterable[tuple[str, str]] = ()
) -> Iterator[SparkSession]:
    """A session for one job, with Spark's settings `conf`. Its workers run this process's Python, unless PYSPARK_PYTHON
    names another."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"cystore {name}")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
    for setting, value in conf:
        builder = builder.config(setting, value)
    session = (builder if master is None else builder.master(master)).getOrCreate()
    try:
        with _ctrl_c_cancels(session):
            yield session
    finally:
        session.stop()


@contextmanager
def _ctrl_c_cancels(spark: SparkSession) -> Iterator[None]:
    """In the block, Ctrl-C cancels Spark's jobs and raises KeyboardInterrupt.

    PySpark's own handler calls Spark on the connection on which the main thread may be waiting. That breaks the
    connection, and the command hangs. So another thread cancels Spark's jobs repeatedly, until the main thread has left
    its call and the interrupt can be raised."""
    main = threading.main_thread()
    if is_connect(spark) or threading.current_thread() is not main or main.ident is None:
        yield
        return
    context, ident, asked, over = spark.sparkContext, main.ident, threading.Event(), threading.Event()

    def handle(_number: int, frame: FrameType | None) -> None:
        asked.set()
        if not over.is_set() and not _calls_spark(frame):
            over.set()
            raise KeyboardInterrupt

    def cancel() -> None:
        asked.wait()
        while not over.wait(LOOK_EVERY_S):
            context.cancelAllJobs()
            signal.pthread_kill(ident, signal.SIGINT)

    canceller = os_threads.begin(cancel, "cystore-cancel-jobs")
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Exception as error:
        if asked.is_set():  # the error of the cancelled job
            raise KeyboardInterrupt from error
        raise
    finally:
        over.set()
        asked.set()
        canceller.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _calls_spark(frame: FrameType | None) -> bool:
    """Whether the main thread is in a call of Spark's JVM."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def few_partitions(spark: SparkSession) -> None:
    """One shuffle partition for each core, unless the session sets another number: Spark's default of 200 suits larger
    tables."""
    if spark.conf.get(PARTITIONS) == SPARKS_OWN:
        spark.conf.set(PARTITIONS, cores_of(spark))


def settings_of(path: str | Path, settings: dict[str, Any], **fixed: Any) -> tuple[Path, StoreConfig]:
    """The store's place, with every link resolved, and its configuration. Raises StoreConfigError."""
    return real_path(os.fspath(path)), resolve({**settings, **fixed})


def range_bytes_for(spark: SparkSession, log_bytes: int, wanted: int | None) -> int:
    """Bytes of log for one task: small enough to keep all cores busy, large enough to be worth a task."""
    if wanted is not None:
        if wanted < 1:
            raise errors.StoreConfigError(f"range_bytes must be at least 1, not {wanted}")
        return wanted
    tasks = 2 * cores_of(spark)
    return max(LEAST_RANGE_BYTES, min(PIECE_BYTES, -(-log_bytes // tasks)))


def run_parts(
    spark: SparkSession,
    what: str,
    parts: Sequence[Part],
    work: Callable[[Part], Found],
    report: Report | None = None,
) -> list[Found]:
    """Runs `work` on each part, in one task for each. Returns the results in the order of the parts. Raises the first
    StoreError."""
    if not parts:
        return []

    def run_part(part: Part) -> Found | Failed:
        try:
            return work(part)
        except errors.StoreError as error:
            return Failed(type(error).__name__, str(error))

    with reported(spark, what, report):
        return sound(spread(spark, parts, run_part))


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect, which has DataFrames but no RDDs."""
    return ".connect." in type(spark).__module__


def sound(found: Iterable[Found | Failed]) -> list[Found]:
    """Returns the findings. Raises the first error among them."""
    kept = []
    for one in found:
        if isinstance(one, Failed):
            raise getattr(errors, one.kind, errors.StoreError)(one.text)
        kept.append(one)
    return kept


@contextmanager
def reported(spark: SparkSession, what: str, report: Report | None) -> Iterator[None]:
    """Reports the progress of the Spark tasks that this thread starts in the block. Through Spark Connect nothing is
    reported."""
    if report is None or is_connect(spark):
        yield
        return
    context, group, over = spark.sparkContext, uuid.uuid4().hex, threading.Event()
    context.setJobGroup(group, f"cystore {what}")

    def look() -> None:
        tracker = context.statusTracker()
        while not over.wait(LOOK_EVERY_S):
            done = total = 0
            for job in tracker.getJobIdsForGroup(group):
                stages = (tracker.getStageInfo(at) for at in getattr(tracker.getJobInfo(job), "stageIds", ()))
                for stage in stages:
                    if stage is not None:
                        done, total = done + stage.numCompletedTasks, total + stage.numTasks
            if total:
                report(what, done, total)

    watcher = os_threads.begin(look, "cystore-watch-jobs")
    try:
        yield
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", "")
