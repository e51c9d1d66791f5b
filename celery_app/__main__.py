"""`python -m celery_app`: the main job."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from celery_app.app import DEFAULT_STORE
from celery_app.folder import FolderError, RunFolder
from celery_app.job import BROKERS, JobError, run_job, verify_in_a_fresh_process
from celery_app.report import report
from celery_app.tell import say
from celery_app.verify import verify
from cystore import StoreError
from cystore.operate.exits import INTERRUPTED
from tools.redis_server import RedisUnavailableError

LEAST_FILES = 10
OK, FAILED = 0, 1  # exit codes


def main(arguments: list[str]) -> int:
    """0: every acknowledged result is there; 1: one is missing, or the run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m celery_app",
        description="Indexes Python's own library with a Celery fleet, kills a worker half-way, shows the "
        "content of the store.",
    )
    parser.add_argument("--files", metavar="N", type=int, help="only N files (default: all, some thousands)")
    parser.add_argument("--path", type=Path, default=DEFAULT_STORE.parent,
                        help="the directory of the run, made anew (default: run/ in the repository)")  # fmt: skip
    parser.add_argument("--broker", choices=BROKERS, default=BROKERS[0],
                        help="where tasks wait, and leases are: in the store, with no server, or in a Redis (default: "
                        "%(default)s)")  # fmt: skip
    parser.add_argument("--verify", action="store_true",
                        help="run nothing: read the acknowledged results of the run in --path")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.files is not None and options.files < LEAST_FILES:
        parser.error(f"--files must be at least {LEAST_FILES}")
    try:
        if options.verify:
            verdict = verify(RunFolder(options.path.resolve()))
            say(json.dumps(dataclasses.asdict(verdict)))
        else:
            run = run_job(RunFolder.fresh(options.path), options.files, options.broker)
            verdict = verify_in_a_fresh_process(run.folder)
            report(run, verdict)
    except (FolderError, JobError, RedisUnavailableError, StoreError, FileNotFoundError) as error:
        print(f"celery_app: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK if verdict.good else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
