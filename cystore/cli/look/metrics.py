"""`cystore metrics`: the numbers of stores and of their tasks in Prometheus's text format, once or for each scrape."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec

from cystore import StoreConfig
from cystore.errors import StoreConfigError
from cystore.metrics import Metric, exposition
from cystore.metrics.exporter import Exporter, Follower
from cystore.metrics.open_stores import OpenStores
from cystore.metrics.store_metrics import metrics
from cystore.metrics.text import NAMES_MOST, UNFINISHED_S
from cystore.operate.command import OK, Command, add_json, count, duration_of, reading_config
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress


def _address(text: str) -> tuple[str, int]:
    from cystore.metrics.listener import address_of

    try:
        return address_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _age(text: str) -> int:
    """An age in seconds: 90s, 15m, 2h, 7d, 2w."""
    try:
        seconds = duration_of(text) // 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds == 0:
        raise argparse.ArgumentTypeError("must be at least 1s")
    return seconds


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "one JSON object a metric")
    parser.add_argument(
        "--tasks", action="store_true", help="with the metrics of tasks; needs cystore[celery]"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", type=_address,
        help="serve the metrics of stores and tasks at http://HOST:PORT/metrics until Ctrl-C; a port alone is of this "
        "host, port 0 lets the system choose",
    )  # fmt: skip
    parser.add_argument(
        "--max-names", metavar="N", type=count, default=NAMES_MOST,
        help=f"pairs of a task's name and queue with labels of their own; the rest is `other` (default: {NAMES_MOST})",
    )  # fmt: skip
    parser.add_argument(
        "--unfinished-after", metavar="AGE", type=_age, default=UNFINISHED_S,
        help="a task without an event for so long counts as unfinished (default: 1h)",
    )  # fmt: skip
    parser.add_argument(
        "--from-oldest", action="store_true",
        help="with --listen: count the log from its oldest message on, not from now",
    )  # fmt: skip


def _follow(args: argparse.Namespace) -> Callable[[], Follower] | None:
    """The maker of what follows a store's tasks; None where Celery is not installed."""
    if find_spec("celery") is None:
        if args.tasks:
            raise StoreConfigError("--tasks needs celery: pip install 'cystore[celery]'")
        return None
    from cystore.celery.metrics.log_follower import LOOK_S, LogFollower

    once = args.listen is None

    def follow() -> Follower:
        return LogFollower(
            names_most=args.max_names, unfinished_s=args.unfinished_after, from_oldest=once or args.from_oldest,
            look_s=float("inf") if once else LOOK_S,
        )  # fmt: skip

    return follow


def _run(args: argparse.Namespace) -> int:
    config = reading_config(args)
    if args.listen is not None:
        if args.json:
            args.usage_error("--json and --listen exclude each other: what is served is Prometheus's text")
        return _serve(args, config)
    follow = _follow(args) if args.tasks else None
    stores = OpenStores(args.path, config)
    try:
        found = _found(stores, follow, labelled=args.tasks or len(stores.paths) > 1)
    finally:
        stores.close()
    if args.json:
        for metric in found:
            _write_object(metric)
    else:
        write_line(exposition(found).rstrip("\n"))
    return OK


def _found(stores: OpenStores, follow: Callable[[], Follower] | None, *, labelled: bool) -> list[Metric]:
    """The metrics now. Raises StoreError, unlike an exporter, which goes on."""
    with progress() as report:
        for path in stores.paths:
            stores.open(path, report)
    if not labelled:
        return metrics(stores.open(stores.paths[0]))
    return Exporter(stores, follow).found(strictly=True)


def _write_object(metric: Metric) -> None:
    samples = [{"labels": labels, "value": value} for labels, value in metric.samples]
    told = {"name": metric.name, "type": metric.kind, "help": metric.help, "samples": samples}
    if metric.sums:
        told["sums"] = [{"labels": labels, "value": value} for labels, value in metric.sums]
    write_json(told)


def _serve(args: argparse.Namespace, config: StoreConfig) -> int:
    from cystore.metrics.listener import Listener, bound  # nearly no command needs it

    stores = OpenStores(args.path, config)
    try:
        exporter = Exporter(stores, _follow(args))
        with progress() as report:
            for path in stores.paths:
                stores.open(path, report)  # one that is not there now is a mistake
        host, port = args.listen
        listener = Listener(bound(host, port, "give --listen another HOST:PORT"), exporter.text)
        try:
            exporter.found()  # the first scrape need not wait for the look back
            write_line(listener.url)
            listener.serve()
        finally:
            listener.stop()
    finally:
        stores.close()
    return OK


COMMAND = Command(
    name="metrics",
    summary="numbers of stores and tasks in Prometheus's text format",
    description="Writes counters, positions and lags of a store in Prometheus's text format, for example into "
    "a file that the node\n"
    "exporter reads; or serves them, and the metrics of its tasks, for scrapes. The numbers are those of all "
    "processes.\n"
    "docs/metrics.md lists them.",
    examples=(
        "cystore metrics /var/lib/app/store",
        "cystore metrics /var/lib/app/store --json",
        "cystore metrics /var/lib/app/store --listen 127.0.0.1:9109",
    ),
    add_arguments=_add_arguments,
    run=_run,
    several=True,
)
