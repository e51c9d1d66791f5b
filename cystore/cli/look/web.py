"""`cystore web`: a page on tasks and stores, and its JSON API."""

from __future__ import annotations

import argparse

from cystore.operate.command import OK, Command, count, reading_config, store_path

PORT_MOST = 65_535


def port_number(text: str) -> int:
    """An argument that is a port; 0 lets the system choose."""
    if not (text.isascii() and text.isdecimal() and int(text) <= PORT_MOST):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to {PORT_MOST}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=port_number, default=5556, help="port; 0 lets the system choose (default: 5556)"
    )
    parser.add_argument(
        "--token",
        help="what clients must send; needed for every other address than this host's own; default: "
        "the environment's CYSTORE_WEB_TOKEN",
    )
    parser.add_argument("--url-prefix", metavar="/PATH", default="", help="where a proxy serves the page")
    parser.add_argument(
        "--allowed-host", metavar="NAME", dest="allowed_hosts", action="append", default=[],
        help="a name under which the page may be asked without a token; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--rate", metavar="N", type=count, default=200,
        help="requests that one client may send in a second, over a longer time (default: 200)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-actions", metavar="APP",
        help="let clients with the token act on tasks, schedules and topics of this Celery app (module or module:name)",
    )  # fmt: skip
    parser.add_argument("--certificate", metavar="FILE", type=store_path, help="serve TLS with it")
    parser.add_argument("--key", metavar="FILE", type=store_path, help="its key, if the file has none")


def _run(args: argparse.Namespace) -> int:
    from cystore.web import check_installed

    check_installed()
    from cystore.web.server import serve

    celery = None
    if args.allow_actions is not None:
        from celery.app.utils import find_app

        celery = find_app(args.allow_actions)
    serve(
        args.path, host=args.host, port=args.port, token=args.token, url_prefix=args.url_prefix,
        allowed_hosts=args.allowed_hosts, rate_per_s=args.rate, certificate=args.certificate, key=args.key,
        config=reading_config(args), celery=celery,
    )  # fmt: skip
    return OK


COMMAND = Command(
    name="web",
    summary="a page on the tasks of stores, and its JSON API",
    description="Serves a page that shows every task of one or several stores, and a JSON API. Changes nothing. "
    "Writes the address\n"
    "when it can be asked; Ctrl-C ends it. Needs cystore[web]. docs/web.md describes the API.",
    examples=(
        "cystore web /var/lib/app/store",
        "cystore web /var/lib/app/store /var/lib/app/replica --port 8080",
        "CYSTORE_WEB_TOKEN=... cystore web /var/lib/app/store --host 0.0.0.0",
    ),
    add_arguments=_add_arguments,
    run=_run,
    several=True,
)
