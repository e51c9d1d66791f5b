"""`python -m cystore.spark JOB ...`: jobs over whole stores, on Spark.

A job is a module of cystore.spark.jobs with HELP, `add_arguments(parser)`, `run(options)`, which gets a function for progress as
`options.report` and returns its summary, and, if it can find something wrong, `exit_code(summary)`. Its docstring is its help.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from cystore.cli.command import FAILED, OK, add_json
from cystore.cli.output import one_line, write_json, write_line
from cystore.cli.program import hint, whole_streams
from cystore.cli.progress import progress
from cystore.errors import StoreError

try:
    from cystore.spark.jobs import archive, live, rebuild, report, scrub
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("pyspark", "pyarrow"):
        raise
    raise SystemExit(f"cystore.spark: error: there is no {package}: pip install 'cystore[spark]'") from error

JOBS: dict[str, ModuleType] = {
    "scrub": scrub,
    "rebuild": rebuild,
    "archive": archive,
    "report": report,
    "live": live,
}
ROWS_SHOWN = 20


def build_parser() -> argparse.ArgumentParser:
    """The parser of all jobs."""
    parser = argparse.ArgumentParser(
        prog="python -m cystore.spark",
        description="Jobs over whole stores, on Spark. JOB --help has each job's options and an example.",
        allow_abbrev=False,
    )
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for name, job in JOBS.items():
        one = jobs.add_parser(
            name,
            help=job.HELP,
            description=job.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        job.add_arguments(one)
        add_json(one, "the summary as one JSON object")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one job and prints its summary; exit codes are those of the command `cystore`."""
    whole_streams()
    options = build_parser().parse_args(arguments)
    job = JOBS[options.job]
    try:
        with progress() as options.report:
            summary = job.run(options)
    except StoreError as error:
        sys.stderr.write(f"cystore.spark {options.job}: error: {one_line(str(error))}{hint(error)}\n")
        return FAILED
    if options.json:
        write_json(summary)
    else:
        _write(summary)
    return job.exit_code(summary) if hasattr(job, "exit_code") else OK


def _write(summary: dict[str, Any]) -> None:
    for name, value in summary.items():
        if not isinstance(value, list):
            write_line(one_line(f"{name.replace('_', ' ')}: {value}"))
            continue
        for row in value[:ROWS_SHOWN]:
            write_line("  " + one_line("  ".join(map(str, row.values() if isinstance(row, dict) else [row]))))
        if len(value) > ROWS_SHOWN:
            write_line(f"  ... {len(value) - ROWS_SHOWN} more; --json has them")


if __name__ == "__main__":
    raise SystemExit(main())
