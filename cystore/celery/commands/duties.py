"""`celery cystore duties`: the last run of each duty of the app's store, and which process does it now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from celery.exceptions import ImproperlyConfigured

from cystore.celery import registry
from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.duties import duty_runs
from cystore.celery.redis_urls import RedisAwayError
from cystore.celery.replicas import home_at
from cystore.operate import facts
from cystore.operate.output import one_line, time_text, write_json, write_line, write_table
from cystore.operate.store_parts import attached
from cystore.services.duty_table import DUTIES, Duties
from cystore.system import platform


def runs_of(noted: Duties) -> dict[str, dict[str, Any]]:
    """The last run and the present lease of each duty, for programs."""
    told = {}
    for name in DUTIES:
        run, lease = noted.last(name), noted.lease(name)
        told[name] = {
            **run._asdict(),
            "outcome": run.outcome.name.lower(),
            "lease": None if lease is None else lease._asdict(),
        }
    return told


def process_text(pid: int) -> str:
    """A process for people: its id, and its command if it still runs."""
    if pid == 0:
        return "a process of another PID namespace"
    return one_line(f"process {pid} ({platform.command_of(pid) or 'ended since'})")


def holder_text(lease: dict[str, int] | None) -> str:
    """The holder of a lease in the store, for people."""
    return "" if lease is None else process_text(lease["pid"])


def _in_redis(ctx: click.Context, path: Path) -> tuple[str, dict[str, str]]:
    """Where leases live, for people; and the holders by Redis."""
    app = ctx.obj.app
    try:
        coordination = duty_runs.coordination_for(app)
        if coordination is None:
            return "in the store: no Redis is configured", {}
        store_id = home_at(path)
        found = coordination.call(registry.fleet)
        holders = {duty: by for one in found if one.store_id == store_id for duty, by in one.holders.items()}
        return f"in Redis at {coordination.location}", holders
    except (RedisAwayError, ImproperlyConfigured) as error:
        return f"in the store: {error}", {}


@click.command("duties", epilog=command_options.examples("duties", "duties --json"))
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """The duties of the app's store: the last run of each, and the process that has its lease now.

    Leases live in Redis if the app has one that answers, else in the store. A lease in the store ends with its process.
    """
    location = app_store.location_of(ctx)
    path = Path(location.path)
    with app_store.as_command_errors():
        if facts.state(path).name == "exclusive":
            raise app_store.CommandError(f"{path}: one process has the store alone, and does all duties")
        with attached(path, app_store.settings_of(location)) as parts:
            told = runs_of(Duties(parts.control))
        where, holders = _in_redis(ctx, path)
    for name, one in told.items():
        one["holder"] = holders.get(name) or holder_text(one["lease"])
        if as_json:
            write_json({"duty": name, **one})
    if as_json:
        return
    write_line(one_line(f"leases: {where}"))
    write_table(
        ("duty", "last run", "by process", "outcome", "runs", "now"),
        [
            (name, time_text(one["begun_ms"]) if one["runs"] else "never", one["pid"] or "-",
             one["outcome"], one["runs"], one["holder"])
            for name, one in told.items()
        ],
    )  # fmt: skip
