"""The jobs of cystore.spark as Celery tasks: each starts `python -m cystore.spark JOB` in a process of its own and
returns its summary.

    cystore.celery.spark_tasks.scrub.delay("/var/lib/app/store", ["--master", "local[4]"])

The worker needs `cystore[spark]` and a JDK; a message can say which stores and folders are read and written, so route
these tasks to a queue that only trusted clients reach. A worker that is killed takes the job with it, and each job
can be run again.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from celery import shared_task

from cystore.errors import StoreError
from cystore.operate.command import FOUND_WRONG, OK
from cystore.system.folders import LIBC

TASKS = {name: f"cystore.spark.{name}" for name in ("scrub", "rebuild", "archive", "report", "aggregate")}
SUMMARY_CODES = (OK, FOUND_WRONG)  # exit codes of a job that ended regularly
SAID_CHARACTERS = 2000
_PR_SET_PDEATHSIG = 1
PARENT_GONE = 1  # the exit code of a job whose worker is gone


class JobFailedError(StoreError):
    """A job that ended without a summary; the message has the end of its standard error."""


def submit(job: str, path: str, options: Sequence[str] = (), folder: str | None = None) -> dict[str, Any]:
    """Runs a job on the store at `path` and waits for it; `options` are those of its command, `folder` is the place of
    an archive. Raises JobFailedError."""
    paths = [path] if folder is None else [path, folder]
    if any(not isinstance(one, str) or not one for one in paths) or any(
        not isinstance(one, str) for one in options
    ):
        raise JobFailedError(f"paths and options must be text, not {paths!r} and {options!r}")
    # Behind "--" an argument that begins with "-" is a path, too.
    command = [sys.executable, "-m", "cystore.spark", job, "--json", *options, "--", *paths]
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
            f"{job} exited with {process.returncode}: {errors.strip()[-SAID_CHARACTERS:]}", path=path
        )
    return dict(json.loads(summary[-1]))


def _die_with(parent: int) -> Any:
    """For the child: the kernel sends it SIGTERM when the worker ends, in whatever way."""

    def ask() -> None:
        LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(PARENT_GONE)

    return ask


def _task(job: str) -> Any:
    def run(path: str, options: Sequence[str] = ()) -> dict[str, Any]:
        return submit(job, path, options)

    run.__doc__ = f"`python -m cystore.spark {job}`; returns its summary."
    run.__name__ = job
    return shared_task(name=TASKS[job], acks_late=False)(run)


scrub = _task("scrub")
rebuild = _task("rebuild")
report = _task("report")
aggregate = _task("aggregate")


@shared_task(name=TASKS["archive"], acks_late=False)
def archive(path: str, folder: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """`python -m cystore.spark archive`; returns its summary."""
    return submit("archive", path, options, folder)
