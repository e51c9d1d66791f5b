"""`celery cystore create`: makes the app's store, with the app's options. For apps whose processes must not
(`create=false`)."""

from __future__ import annotations

from pathlib import Path

import click

from cystore.celery.base.identity import store_id_of
from cystore.celery.commands.shared import app_store, command_options
from cystore.engine.inspect.recognize import is_store
from cystore.operate.output import one_line, write_json, write_line


@click.command("create", epilog=command_options.examples("create"))
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Make the store at the path that result_backend names; an existing one does not change."""
    location = app_store.location_of(ctx)
    with app_store.as_command_errors():
        path = Path(location.path)
        is_there = path.is_dir() and is_store(path)
        with location.opened(location.config(create=True)) as store:
            number = store_id_of(store)
    if as_json:
        write_json({"store": number, "path": location.path, "made": not is_there})
    else:
        was = "was there already, and did not change" if is_there else "made"
        write_line(f"store {number} at {one_line(location.path)}: {was}")
