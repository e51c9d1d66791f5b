"""`cystore metrics`: a store's numbers in Prometheus's text format."""

from __future__ import annotations

import argparse

import cystore
from cystore.metrics import exposition, metrics
from cystore.operate.command import OK, Command, add_json, reading_config
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "one JSON object a metric")


def _run(args: argparse.Namespace) -> int:
    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        found = metrics(store)
    if args.json:
        for metric in found:
            samples = [{"labels": labels, "value": value} for labels, value in metric.samples]
            write_json({"name": metric.name, "type": metric.kind, "help": metric.help, "samples": samples})
    else:
        write_line(exposition(found).rstrip("\n"))
    return OK


COMMAND = Command(
    name="metrics",
    summary="numbers of a store in Prometheus's text format",
    description="Writes counters, positions and lags of a store in Prometheus's text format, for example into "
    "a file that the node\n"
    "exporter reads. No server is needed. The numbers are those of all processes.",
    examples=(
        "cystore metrics /var/lib/app/store",
        "cystore metrics /var/lib/app/store --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
