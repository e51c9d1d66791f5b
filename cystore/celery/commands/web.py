"""`celery cystore web`: a page on the app's tasks, and its JSON API."""

from __future__ import annotations

from pathlib import Path

import click

from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.lifecycle.redaction import Redaction
from cystore.web import check_installed


@click.command("web", epilog=command_options.examples("web", "web --port 8080 --url-prefix /tasks"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=5556, show_default=True,
    help="Port; 0 lets the system choose.",
)  # fmt: skip
@click.option(
    "--token", envvar="CYSTORE_WEB_TOKEN", show_envvar=True,
    help="What clients must send; needed for every other address than this host's own.",
)  # fmt: skip
@click.option("--url-prefix", metavar="/PATH", default="", help="Where a proxy serves the page.")
@click.option(
    "--allowed-host", "allowed_hosts", metavar="NAME", multiple=True,
    help="A name under which the page may be asked without a token; may be repeated.",
)  # fmt: skip
@click.option(
    "--rate", type=click.IntRange(min=1), default=200, show_default=True,
    help="Requests that one client may send in a second, over a longer time.",
)  # fmt: skip
@click.option("--certificate", type=click.Path(path_type=Path), help="Serve TLS with this certificate.")
@click.option("--key", type=click.Path(path_type=Path), help="The key, if the certificate's file has none.")
@click.option(
    "--allow-actions", is_flag=True, help="Let clients with the token act on tasks, schedules and topics."
)
@click.pass_context
def command(
    ctx: click.Context, host: str, port: int, token: str | None, url_prefix: str, allowed_hosts: tuple[str, ...],
    rate: int, certificate: Path | None, key: Path | None, allow_actions: bool,
) -> None:  # fmt: skip
    """A page that shows every task of the app's store, and a JSON API; Ctrl-C ends it. Needs cystore[web].

    The setting cystore_lifecycle_redact hides values here too, also in records that are older than the setting.
    """
    location = app_store.location_of(ctx)
    with app_store.as_command_errors():
        check_installed()
        from cystore.web.answers.task_rows import Texts
        from cystore.web.server import serve

        serve(
            [Path(location.path)], host=host, port=port, token=token, url_prefix=url_prefix,
            allowed_hosts=allowed_hosts, rate_per_s=rate, certificate=certificate, key=key,
            config=app_store.settings_of(location),
            texts=Texts(Redaction.of(ctx.obj.app.conf, ctx.obj.app), app_store.is_valid(ctx)),
            celery=ctx.obj.app if allow_actions else None,
        )  # fmt: skip
