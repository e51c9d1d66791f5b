"""`cystore report`: what the tasks of stores did, as a page, as JSON or as Markdown."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cystore.operate.command import (
    OK,
    Command,
    add_json,
    count,
    moment,
    path_argument,
    reading_config,
)
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="FOLDER", type=path_argument,
        help="the folder to make, with the page and the tables as Parquet (default: only the page, to standard output)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an older report in FOLDER")
    parser.add_argument(
        "--format", choices=("html", "json", "md"),
        help="the page: HTML, JSON or Markdown (default: html with --out, else md)",
    )  # fmt: skip
    parser.add_argument(
        "--since", metavar="TIME", type=moment,
        help="events from this time on: ISO 8601 (UTC), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w",
    )  # fmt: skip
    parser.add_argument("--until", metavar="TIME", type=moment, help="events not later than this")
    parser.add_argument(
        "--name", metavar="TASK", dest="names", action="append", default=[],
        help="only tasks of this name; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--columns", metavar="NAMES", type=lambda text: tuple(text.split(",")), default=(),
        help="columns of the tables by task and worker, as count,failed,runtime_p95 (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--top", metavar="N", type=count, default=20, help="number of failures and workflows (default: 20)"
    )
    parser.add_argument("--skip-damaged", action="store_true", help="step over damage in a log")
    add_json(parser, "the summary as one JSON object; without --out the report as JSON")


def _run(args: argparse.Namespace) -> int:
    from cystore.reports import check_installed

    form_name: Any = args.format or ("html" if args.out is not None else "json" if args.json else "md")
    check_installed(plots=form_name == "html")
    from cystore.reports.report import Asked, Form, report_as_text, write_report

    asked = Asked(
        begin_ms=args.since, end_ms=None if args.until is None else args.until + 1, names=tuple(args.names),
        top=args.top, skip_damaged=args.skip_damaged,
    )  # fmt: skip
    form = Form(format=form_name, columns=args.columns)
    with progress() as report:
        if args.out is None:
            sys.stdout.write(
                report_as_text(args.path, config=reading_config(args), asked=asked, form=form, report=report)
            )
            return OK
        found = write_report(
            args.path, args.out, config=reading_config(args), asked=asked, form=form,
            overwrite=args.overwrite, report=report,
        )  # fmt: skip
    if args.json:
        write_json(found)
    else:
        write_line("  ".join(f"{name}: {value}" for name, value in found.items()))
    return OK


COMMAND = Command(
    name="report",
    summary="what the tasks of stores did: runs, failures, run times, as a page",
    description="Writes a report on the tasks of one or several stores: runs, failures and run times by task, worker "
    "and hour, the most\n"
    "frequent failures, the slowest workflows, unfinished tasks. Changes no store. Needs cystore[report].",
    examples=(
        "cystore report /var/lib/app/store --out report",
        "cystore report /var/lib/app/store --out today --since 1d --name shop.charge --overwrite",
        "cystore report /var/lib/app/store --since 1h --columns count,failed,runtime_p95",
    ),
    add_arguments=_add_arguments,
    run=_run,
    several=True,
)
