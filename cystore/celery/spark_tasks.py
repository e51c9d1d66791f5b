"""The jobs of cystore.spark as Celery tasks: each starts `python -m cystore.spark JOB` in a process of its own and
returns its summary.

    cystore.celery.spark_tasks.install(app, stores=["/var/lib/app/store"], folders=["/var/lib/app/reports"])
    cystore.celery.spark_tasks.scrub.delay("/var/lib/app/store")

Only `install` here registers them: no other install does. A client that can send a message can run a task, on any
queue. So a message gives values of fixed kinds and no option of a command. The app says which stores a job may use,
which folders it may write, where Spark runs, and with which settings; without that every job is refused. The worker
needs `cystore[spark]` and a JDK. A worker that is killed takes the job with it, and each job can be run again.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from celery import current_app

from cystore.errors import StoreError
from cystore.operate.command import FOUND_WRONG, OK
from cystore.system.folders import LIBC
from cystore.system.links import real_path

TASKS = {name: f"cystore.spark.{name}" for name in ("scrub", "rebuild", "archive", "report", "aggregate")}
STORES, FOLDERS = "cystore_spark_stores", "cystore_spark_folders"
MASTER, CONF, SETTINGS = "cystore_spark_master", "cystore_spark_conf", "cystore_spark_settings"
SUMMARY_CODES = (OK, FOUND_WRONG)  # exit codes of a job that ended regularly
SAID_CHARACTERS = 2000
FORMATS = ("parquet", "delta", "iceberg")
INT64_MAX = (1 << 63) - 1
_PR_SET_PDEATHSIG = 1
PARENT_GONE = 1  # the exit code of a job whose worker is gone

Words = list[str]


class JobFailedError(StoreError):
    """A job that ended without a summary; the message has the end of its standard error."""


class JobRefusedError(JobFailedError):
    """A message that asks for a store or folder that the app does not allow, or has a value of the wrong kind. No
    process was started."""


def install(
    app: Any,
    *,
    stores: Sequence[str] | None = None,
    folders: Sequence[str] | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Registers the jobs as tasks of this app. Each argument that is given becomes a setting of the app:

    `stores`: the stores that jobs may use, or folders in which they lie (`cystore_spark_stores`). `folders`: the
    folders in which jobs may write (`cystore_spark_folders`). `master`, `conf`: Spark's master and settings
    (`cystore_spark_master`, `cystore_spark_conf`). `settings`: fields of StoreConfig (`cystore_spark_settings`).
    """
    given = {STORES: stores, FOLDERS: folders, MASTER: master, CONF: conf, SETTINGS: settings}
    app.conf.update({name: value for name, value in given.items() if value is not None})
    for job in (_scrub, _rebuild, _archive, _report, _aggregate):
        # Not shared: the tasks of another app in this process stay as they are.
        app.task(job, name=TASKS[job.__name__[1:]], bind=True, shared=False, acks_late=False)


def __getattr__(name: str) -> Any:
    """`scrub`, `rebuild`, `archive`, `report`, `aggregate`: the tasks of the current app."""
    if name not in TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = current_app.tasks.get(TASKS[name])
    if found is None:
        raise AttributeError(
            f"the current app has no task {TASKS[name]}: call cystore.celery.spark_tasks.install(app, stores=[...], "
            "folders=[...])"
        )
    return found


def _scrub(
    self: Any, path: str, *, range_mib: int | None = None, output: str | None = None
) -> dict[str, Any]:
    """`python -m cystore.spark scrub`; returns its summary."""
    words = [] if range_mib is None else [_whole("range-mib", range_mib)]
    if output is not None:
        words.append(f"--output={_folder(self.app, 'output', output)}")
    return _run(self.app, "scrub", words, [_store(self.app, path)])


def _rebuild(self: Any, path: str, *, range_mib: int | None = None) -> dict[str, Any]:
    """`python -m cystore.spark rebuild`; returns its summary."""
    words = [] if range_mib is None else [_whole("range-mib", range_mib)]
    return _run(self.app, "rebuild", words, [_store(self.app, path)])


def _archive(
    self: Any,
    path: str,
    folder: str,
    *,
    format: str | None = None,
    expiring_within_h: float | None = None,
    all_sealed: bool = False,
    skip_damage: bool = False,
    step_bytes: int | None = None,
) -> dict[str, Any]:
    """`python -m cystore.spark archive`; returns its summary. A table at a URL, and `--restore`, are left to the
    command."""
    words = [] if expiring_within_h is None else [_number("expiring-within-h", expiring_within_h)]
    if step_bytes is not None:
        words.append(_whole("step-bytes", step_bytes))
    if format is not None:
        if format not in FORMATS:
            raise JobRefusedError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
        words.append(f"--format={format}")
    words += [*_flag("all", all_sealed), *_flag("skip-damage", skip_damage)]
    return _run(self.app, "archive", words, [_store(self.app, path), _folder(self.app, "folder", folder)])


def _report(
    self: Any,
    stores: str | Sequence[str],
    out: str,
    *,
    begin: str | None = None,
    end: str | None = None,
    top: int | None = None,
    overwrite: bool = False,
    include_archive: bool = False,
) -> dict[str, Any]:
    """`python -m cystore.spark report`; returns its summary. `begin` and `end` are times in ISO 8601."""
    words = [f"--out={_folder(self.app, 'out', out)}"]
    words += [_time(name, text) for name, text in (("begin", begin), ("end", end)) if text is not None]
    words += [] if top is None else [_whole("top", top)]
    words += [*_flag("overwrite", overwrite), *_flag("include-archive", include_archive)]
    return _run(self.app, "report", words, _stores(self.app, stores))


def _aggregate(
    self: Any,
    stores: str | Sequence[str],
    out: str,
    *,
    watermark_h: float | None = None,
    lookback_days: int | None = None,
    include_archive: bool = False,
) -> dict[str, Any]:
    """`python -m cystore.spark aggregate`; returns its summary."""
    words = [f"--out={_folder(self.app, 'out', out)}", *_flag("include-archive", include_archive)]
    words += [] if watermark_h is None else [_number("watermark-h", watermark_h)]
    words += [] if lookback_days is None else [_whole("lookback-days", lookback_days)]
    return _run(self.app, "aggregate", words, _stores(self.app, stores))


# ------------------------------------------------------------------------------------- values of a message


def _whole(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        raise JobRefusedError(f"{name.replace('-', '_')} must be a whole number from 0, not {value!r}")
    return f"--{name}={value}"


def _number(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= INT64_MAX:
        raise JobRefusedError(f"{name.replace('-', '_')} must be a number, not {value!r}")
    return f"--{name}={value}"


def _flag(name: str, value: Any) -> Words:
    if not isinstance(value, bool):
        raise JobRefusedError(f"{name.replace('-', '_')} must be true or false, not {value!r}")
    return [f"--{name}"] if value else []


def _time(name: str, value: Any) -> str:
    try:
        return f"--{name}={datetime.fromisoformat(value).isoformat()}"
    except (TypeError, ValueError):
        raise JobRefusedError(f"{name} must be a time like 2026-01-31T12:00, not {value!r}") from None


def _store(app: Any, path: Any) -> str:
    """The place of one store, with every link resolved."""
    return _allowed(app, STORES, "path", path)


def _stores(app: Any, given: Any) -> Words:
    """The stores that paths and globs name now, with every link resolved."""
    from cystore.columns.arrow import places_of  # pyarrow takes a while to import

    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, list | tuple) or not patterns:
        raise JobRefusedError(f"stores must be a path or several, not {given!r}")
    for pattern in patterns:
        _allowed(app, STORES, "stores", pattern)  # before any folder is listed
    places = [place for pattern in patterns for place in places_of(pattern)]
    return list(dict.fromkeys(_allowed(app, STORES, "stores", place) for place in places))


def _folder(app: Any, name: str, path: Any) -> str:
    """The place of a folder to write, with every link resolved."""
    return _allowed(app, FOLDERS, name, path)


def _allowed(app: Any, setting: str, name: str, path: Any) -> str:
    """The path, with every link resolved. It must be one that the setting names, or in it."""
    if not _is_path(path):
        raise JobRefusedError(f"{name} must be a path on the worker's host, not {path!r}")
    named = app.conf.get(setting) or ()
    roots = [named] if isinstance(named, str | os.PathLike) else named
    place = str(real_path(path))
    if not any(
        os.path.commonpath([place, root]) == root for root in map(os.path.realpath, filter(None, roots))
    ):
        raise JobRefusedError(
            f"{name}: the app does not allow {place} to jobs: add it, or a folder above it, to the setting {setting}"
        )
    return place


def _is_path(path: Any) -> bool:
    if not isinstance(path, str) or not path or "\0" in path or "://" in path or path.startswith("file:"):
        return False
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


# -------------------------------------------------------------------------------------------- the process


def _run(app: Any, job: str, words: Words, places: Words) -> dict[str, Any]:
    """Runs a job with checked words on the stores and folders `places`, and waits for it. Raises JobFailedError."""
    master, conf, settings = (app.conf.get(name) for name in (MASTER, CONF, SETTINGS))
    words = [f"--master={master}"] * bool(master) + words
    words += [f"--conf={name}={value}" for name, value in (conf or {}).items()]
    words += [f"--set={name}={_setting(value)}" for name, value in (settings or {}).items()]
    # Behind "--" an argument that begins with "-" is a path, too.
    command = [sys.executable, "-m", "cystore.spark", job, "--json", *words, "--", *places]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_die_with(os.getpid()),
    )
    with process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.terminate()
            raise
    summary = output.splitlines()
    if process.returncode not in SUMMARY_CODES or not summary:
        raise JobFailedError(
            f"{job} exited with {process.returncode}: {errors.strip()[-SAID_CHARACTERS:]}", path=places[0]
        )
    return dict(json.loads(summary[-1]))


def _setting(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _die_with(parent: int) -> Any:
    """For the child: the kernel sends it SIGTERM when the worker ends, in whatever way."""

    def ask() -> None:
        LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(PARENT_GONE)

    return ask
