"""`cystore spans`: each run of a task as a span of a trace, sent to a collector of OpenTelemetry."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from urllib.parse import urlsplit

import cystore
from cystore.errors import StoreConfigError
from cystore.operate.command import OK, Command, reading_config
from cystore.operate.output import write_line
from cystore.operate.progress import progress

URL = "http://127.0.0.1:4318/v1/traces"
NEEDED = ("celery", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
WAIT_S = 1.0


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r} is not the URL of a collector, like {URL}")
    return text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--otlp", metavar="URL", type=_url, default=URL, help=f"the collector (default: {URL})"
    )
    parser.add_argument("--service", metavar="NAME", default="celery", help="service.name (default: celery)")
    parser.add_argument(
        "--from-oldest", action="store_true", help="begin at the log's oldest message, not now"
    )
    parser.add_argument("--once", action="store_true", help="end at the log's end")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _run(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if not _is_there(name)]
    if missing:
        raise StoreConfigError(f"spans need {', '.join(missing)}: pip install 'cystore[otel]'")
    from cystore.celery.metrics.span_export import SpanExport

    with progress() as report, cystore.open(args.path, config=reading_config(args), progress=report) as store:
        export = SpanExport(store, args.otlp, service=args.service, from_oldest=args.from_oldest)
        try:
            sent = export.turn()
            while not (args.once and export.caught_up):
                export.wait(WAIT_S)
                sent += export.turn()
        finally:
            export.close()
    write_line(f"{sent} spans")
    return OK


COMMAND = Command(
    name="spans",
    summary="runs of tasks as spans, to a collector of OpenTelemetry",
    description="Follows the log of a store, and sends each run of a task as a span by OTLP over HTTP, until Ctrl-C. "
    "Changes\n"
    "nothing. Needs cystore[otel]. docs/metrics.md says which traces the spans belong to.",
    examples=(
        "cystore spans /var/lib/app/store --otlp http://127.0.0.1:4318/v1/traces",
        "cystore spans /var/lib/app/store --from-oldest --once",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
