"""`celery cystore doctor`: checks the app's store, its host and its Redis in one go."""

from __future__ import annotations

from pathlib import Path

import click
from celery.exceptions import ImproperlyConfigured

from cystore import StoreConfig
from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.redis_urls import SCHEMES, redis_location_of
from cystore.cli.host import doctor
from cystore.cli.host.site import Site

NO_REDIS = "the app has none, and needs none: leases of duties are in the store"


@click.command("doctor", epilog=command_options.examples("doctor", "doctor --verify", "doctor --json"))
@click.option(
    "--redis", "redis_url", metavar="URL", help="The Redis to check; default: the broker, if it is one."
)
@click.option("--verify", "reads_all", is_flag=True, help="Read every record, however long the log is.")
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, redis_url: str | None, reads_all: bool, as_json: bool) -> None:
    """The store, its host, limits and the broker's Redis: a line for each check, and what to do.

    Changes nothing. Limits are those of this process: run it as a worker is run. Exit code 1: something is bad.
    """
    location = app_store.location_of(ctx)
    if redis_url is None:
        broker = ctx.obj.app.conf.broker_read_url or ""
        redis_url = broker if isinstance(broker, str) and broker.partition("://")[0] in SCHEMES else ""
    try:
        alone = redis_location_of(ctx.obj.app) is None
    except ImproperlyConfigured as error:
        raise app_store.CommandError(str(error)) from error
    with app_store.as_command_errors():
        config = StoreConfig.from_mapping(location.settings)
        site = Site(Path(location.path), config, redis_url=redis_url, no_redis=NO_REDIS if alone else "",
                    reads_all=reads_all)  # fmt: skip
        code = doctor.report(site, as_json=as_json)
    if code:
        ctx.exit(code)
