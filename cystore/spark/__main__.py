"""`python -m cystore.spark JOB ...`: jobs over whole stores, on Spark.

A job is a module of cystore.spark.jobs with HELP, `add_arguments(parser)` and `run(options)`, which returns a summary;
`options.report` is its function for progress. A job that can find damage also has `exit_code(summary)`. The module's
docstring is the job's help.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from cystore.errors import StoreError
from cystore.operate.command import FAILED, OK, add_json
from cystore.operate.exits import INTERRUPTED, PIPE_CLOSED, hint, leave, whole_streams
from cystore.operate.output import one_line, write_json, write_line
from cystore.operate.progress import progress

try:
    from cystore.spark.jobs import aggregate, archive, live, rebuild, report, scrub
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("pyspark", "pyarrow"):
        raise
    raise SystemExit(f"cystore.spark: error: there is no {package}: pip install 'cystore[spark]'") from error
except KeyboardInterrupt:  # pyspark and pyarrow take a second
    raise SystemExit(INTERRUPTED) from None

JOBS: dict[str, ModuleType] = {
    "scrub": scrub,
    "rebuild": rebuild,
    "archive": archive,
    "report": report,
    "aggregate": aggregate,
    "live": live,
}
ROWS_SHOWN = 20
OURS = re.compile(
    r"^(?:[\w.]*: )*cystore\.errors\.\w+: (.+)$", re.MULTILINE
)  # a line of a traceback in Spark's text


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
    """Runs one job and prints its summary. Exit codes are those of the command `cystore`: 0 done, 1 damage found, 2 an
    error (one line on standard error names it), 130 ended by Ctrl-C."""
    whole_streams()
    _log_no_interrupt()
    options = build_parser().parse_args(arguments)
    job = JOBS[options.job]
    try:
        with progress() as options.report:
            summary = job.run(options)
        _show(summary, as_json=options.json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except _PipeClosedError:
        return leave(PIPE_CLOSED)
    except StoreError as error:
        return _failed(options.job, f"{error}{hint(error)}")
    except Exception as error:  # noqa: BLE001 - of Spark, its JVM or the host: the job did not come to its end
        return _failed(options.job, cause(error))
    return job.exit_code(summary) if hasattr(job, "exit_code") else OK


def _log_no_interrupt() -> None:
    """Keeps Ctrl-C out of the log: in a call of Spark's JVM, py4j logs it as an error with a traceback. The host
    program's own logging does not change."""
    handler = logging.StreamHandler()
    handler.addFilter(_is_no_interrupt)
    logging.basicConfig(handlers=[handler])


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a log record has no error that Ctrl-C caused."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return False
        error = error.__cause__ or error.__context__
    return True


def _failed(job: str, text: str) -> int:
    sys.stderr.write(f"cystore.spark {job}: error: {one_line(text)}\n")
    return FAILED


def cause(error: BaseException) -> str:
    """The cause of a failure, taken from Spark's long report: the last error of the store, otherwise Java's own
    message, otherwise the first line."""
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        return ours[-1]
    first, _, rest = text.strip().partition("\n")
    second = rest.partition("\n")[0]
    return second[2:] if second.startswith(": ") else f"{type(error).__name__}: {first}"


class _PipeClosedError(Exception):
    """The reader of the summary has closed the pipe."""


def _show(summary: dict[str, Any], *, as_json: bool) -> None:
    """Writes the summary. Raises _PipeClosedError."""
    try:
        if as_json:
            write_json(summary)
        else:
            _write(summary)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise _PipeClosedError from error


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
