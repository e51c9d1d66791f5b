"""`celery cystore status`: the state of the store and the fleet. Each section of the answer is one function; more can
be added to `SECTIONS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from celery.exceptions import ImproperlyConfigured

from cystore.celery import registry
from cystore.celery.base import events, records
from cystore.celery.commands import duties
from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.duties import duty_runs
from cystore.celery.lifecycle import recorder
from cystore.celery.redis_urls import RedisAwayError
from cystore.celery.registry import StoreStatus
from cystore.operate import facts
from cystore.operate.facts import STATES
from cystore.operate.output import (
    one_line,
    size_text,
    time_text,
    write_json,
    write_line,
    write_table,
)
from cystore.operate.positions import positions
from cystore.operate.store_parts import attached
from cystore.services.delay.delivery import nobody_delivers
from cystore.services.duty_table import Duties

TOPICS = (records.RESULTS, records.GROUPS, records.CHORDS, events.EVENTS)


@dataclass(frozen=True)
class Section:
    """A part of the status: its facts, their display for people, and JSON values (the facts themselves, if they are
    JSON)."""

    facts: Callable[[click.Context], Any]
    show: Callable[[Any], None]
    as_json: Callable[[Any], dict[str, Any]] = dict


def _store_facts(ctx: click.Context) -> dict[str, Any]:
    """This host's store."""
    location = app_store.location_of(ctx)
    path = Path(location.path)
    with app_store.as_command_errors():
        state = facts.state(path)
        use = facts.disk_use(path)["total"]
    told: dict[str, Any] = {
        "path": str(path),
        "state": state.name,
        "handover": facts.standing_request(path) if state.name == "live" else None,
        "writable": state.writable,
        "disk": asdict(use),
        "lifecycle": bool(ctx.obj.app.conf.get(recorder.SETTING, True)),
    }
    if state.name == "exclusive":
        return told
    with app_store.as_command_errors(), attached(path, app_store.settings_of(location)) as parts:
        at = positions(parts)
        runs = duties.runs_of(Duties(parts.control))
    names = (
        "wrote",
        "flushed",
        "dispatched",
        "dispatch_behind_bytes",
        "last_store_timestamp_ms",
        "put_count",
    )
    return {
        **told,
        **{name: at["positions"][name] for name in names},
        "delayed_overdue_ms": at["delayed_overdue_ms"],
        "topics": {topic: _count(at["queues"], topic) for topic in TOPICS},
        "duties": runs,
    }


def _count(queues: list[dict[str, Any]], topic: str) -> dict[str, int]:
    """Queues and messages of a topic, dispatched or not."""
    mine = [queue for queue in queues if queue["topic"] == topic]
    return {
        "queues": len(mine),
        "messages": sum(queue["next_offset"] - queue["min_offset"] for queue in mine),
    }


def _show_store(told: dict[str, Any]) -> None:
    if told["handover"] is not None:
        write_line(told["handover"])
    write_line(f"store: {one_line(told['path'])}: {STATES[told['state']]}")
    write_line(f"lifecycle log: {'on' if told['lifecycle'] else 'off'}")
    disk = told["disk"]
    write_line(f"disk: {size_text(disk['allocated_bytes'])} in {disk['files']} files")
    if "wrote" not in told:
        return
    write_line(
        f"log: written to {told['wrote']}, flushed to {told['flushed']}, dispatched to {told['dispatched']}"
    )
    write_line(f"dispatch behind: {told['dispatch_behind_bytes']} bytes")
    write_line(f"last message: {time_text(told['last_store_timestamp_ms'])}")
    if words := nobody_delivers(told["delayed_overdue_ms"]):
        write_line(words)
    write_table(
        ("topic", "queues", "messages"),
        [(topic, counts["queues"], counts["messages"]) for topic, counts in told["topics"].items()],
    )
    cleaned = told["duties"][duty_runs.CLEAN_EXPIRED.name]
    if not cleaned["runs"]:
        write_line("not cleaned since the first process opened the store")
    else:
        at, by = time_text(cleaned["begun_ms"]), duties.process_text(cleaned["pid"])
        write_line(f"cleaned last at {at} by {by}: {cleaned['outcome']}")
    write_table(
        ("duty", "last run", "by process", "outcome", "runs", "now"),
        [
            (name, time_text(run["begun_ms"]), run["pid"] or "elsewhere", run["outcome"], run["runs"],
             duties.holder_text(run["lease"]))
            for name, run in told["duties"].items()
            if run["runs"]
        ],
    )  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """The stores that Redis knows; `why_not` is the reason why it was not asked."""

    stores: Sequence[StoreStatus] = ()
    why_not: str = ""


def _fleet(ctx: click.Context) -> Fleet:
    """Every store with a worker that sends heartbeats to Redis."""
    try:
        coordination = duty_runs.coordination_for(ctx.obj.app)
        if coordination is None:
            return Fleet(
                why_not="no Redis is configured (cystore_redis_url): leases of duties are in the store"
            )
        return Fleet(coordination.call(registry.fleet))
    except (RedisAwayError, ImproperlyConfigured) as error:
        return Fleet(why_not=str(error))


def _show_fleet(fleet: Fleet) -> None:
    write_line("")
    write_line(f"fleet: {one_line(fleet.why_not)}" if fleet.why_not else registry.render(fleet.stores))


def _fleet_json(fleet: Fleet) -> dict[str, Any]:
    return {"why_not": fleet.why_not, "stores": [status.as_json() for status in fleet.stores]}


SECTIONS: dict[str, Section] = {
    "store": Section(_store_facts, _show_store),
    "fleet": Section(_fleet, _show_fleet, _fleet_json),
}


@click.command("status", epilog=command_options.examples("status", "status --json"))
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """The place of the app's store, its users, content, disk use and dispatch; and the fleet's stores."""
    told = {name: section.facts(ctx) for name, section in SECTIONS.items()}
    if as_json:
        write_json({name: section.as_json(told[name]) for name, section in SECTIONS.items()})
        return
    for name, section in SECTIONS.items():
        section.show(told[name])
