"""`cystore ha status`: the role of a store, and the lag of its slaves, or behind its master."""

from __future__ import annotations

import argparse
from typing import Any

from cystore import clock
from cystore.attachment.attach import Attachment
from cystore.config import StoreConfig
from cystore.engine.manifest.manifest import read_facts
from cystore.errors import ElectionError, StoreError
from cystore.ha.election.orders import group_of
from cystore.ha.home import home_of
from cystore.ha.role import Role, master_of, role_of
from cystore.ha.status import NOBODY, present_status
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import one_line, size_text, write_json, write_line
from cystore.operate.store_parts import looked_at

ELECTED_FACTS = ("epoch", "state", "problem")  # the shown fields of a status


def _lag_s(parts: Attachment, position: int) -> float | None:
    """The age of the first record behind a log position. If the rest is lost, records of this age and younger are lost.
    None if it cannot be read."""
    control = parts.control
    if position >= control.wrote:
        return 0.0
    try:
        record = next(parts.commit_log.scan(max(position, control.min_physical_offset)), None)
    except StoreError:
        return None
    if record is None:
        return 0.0
    return float(max(clock.now_ms(control) - (record.store_timestamp_ms or 0), 0) / 1000)


def _age_s(parts: Attachment) -> float | None:
    """The age of the last record that is here. The missing records are younger."""
    control = parts.control
    return float(max(clock.now_ms(control) - control.last_store_timestamp_ms, 0) / 1000)


def facts(parts: Attachment) -> dict[str, Any]:
    """Role, end of the log, and each peer with its lag in bytes and seconds."""
    role, status, wrote = role_of(parts.manifest.snapshot()), present_status(parts.root), parts.control.wrote
    found: dict[str, Any] = {
        "role": role.broker_role,
        "wrote": wrote,
        "min_physical_offset": parts.control.min_physical_offset,
        "at_ms": status.at_ms,
        "home": home_of(parts.root, parts.manifest.snapshot()),
        "alive": status.state != NOBODY,
        "pid": status.pid,
    }
    if role.is_elected:
        found |= {"group": role.group, "member": role.member}
        found |= {name: getattr(status, name) for name in ELECTED_FACTS}
        if not status.listens:
            role = role._replace(broker_role="slave")
    if role.is_slave:
        behind = max(status.masters_end - wrote, 0) if status.masters_end >= 0 else None
        return {
            **found,
            "master": master_of(parts.manifest, parts.root),
            "connected": status.connected,
            "lag_bytes": behind,
            "lag_s": None if behind is None else _age_s(parts) if behind else 0.0,
        }
    slaves = [
        {
            "name": name,
            "acknowledged": end,
            "cystore": ours,
            "lag_bytes": max(status.wrote - end, 0) if end >= 0 else None,
            "lag_s": None if end < 0 else _lag_s(parts, end) if end < status.wrote else 0.0,
        }
        for name, end, ours in status.slaves
    ]
    return {**found, "listens": status.listens, "slaves": slaves}


def _group_facts(role: Role, config: StoreConfig) -> dict[str, Any]:
    """The group's present state in etcd."""
    try:
        with group_of(role, config) as group:
            view = group.look()
    except ElectionError as error:
        return {"etcd": str(error)}
    master, state = view.master, view.state
    return {
        "etcd": "",
        "elected": "" if master is None else master.member,
        "elected_address": "" if master is None else master.address,
        "elected_epoch": 0 if master is None else master.epoch,
        "in_sync": [] if state is None else sorted(state.in_sync),
    }


def _run_status(args: argparse.Namespace) -> int:
    config = store_config(args, read_only=True, services=())
    found = looked_at(args.path, config, facts)
    if "group" in found:
        found |= _group_facts(role_of(read_facts(args.path)[0]), config)
    is_replica = "slaves" not in found
    peers = found["connected"] if is_replica else bool(found["slaves"])
    if args.json:
        write_json(found)
        return OK if peers else FOUND_WRONG
    write_line(f"role: {found['role']}, log from {found['min_physical_offset']} to {found['wrote']}")
    if found["home"]:
        write_line(f"home of Celery's tasks: {found['home']}")
    if "group" in found:
        _show_group(found)
    if is_replica:
        state = "connected" if found["connected"] else "not connected"
        lag = "unknown" if found["lag_bytes"] is None else size_text(found["lag_bytes"])
        age = f", {found['lag_s']:.1f} s" if found["lag_s"] else ""
        write_line(one_line(f"master {found['master'] or 'unknown'}: {state}, behind by {lag}{age}"))
        return OK if peers else FOUND_WRONG
    write_line(one_line(f"listens on {found['listens']}" if found["listens"] else "no process serves slaves"))
    for slave in found["slaves"]:
        age = "" if slave["lag_s"] is None else f", {slave['lag_s']:.1f} s"
        lag = (
            "nothing reported yet"
            if slave["lag_bytes"] is None
            else f"behind by {size_text(slave['lag_bytes'])}{age}"
        )
        write_line(one_line(f"slave {slave['name']}: {lag}"))
    return OK if peers else FOUND_WRONG


def _show_group(found: dict[str, Any]) -> None:
    write_line(one_line(f"group {found['group']}, member {found['member']}: {found['state'] or NOBODY}"))
    if found["etcd"]:
        write_line(one_line(found["etcd"]))
    elif found["elected"]:
        where = f"{found['elected']} at {found['elected_address']}"
        write_line(one_line(f"elected: {where}, epoch {found['elected_epoch']}"))
    else:
        write_line("elected: nobody")
    if "elected" in found:
        write_line(one_line(f"in sync: {', '.join(found['in_sync']) or 'nobody yet'}"))
    if found["problem"]:
        write_line(one_line(found["problem"]))


STATUS = Command(
    name="status",
    summary="role, peers, and how far they are behind",
    description=(
        "Shows whether the store is a master or a slave, and each peer that is connected with its lag: the bytes\n"
        "of log that it does not have yet, and the age of the first of them. Of a store whose master is elected\n"
        "also the group as etcd has it: master, epoch, members in sync. The process that replicates writes its\n"
        "part down every second. Exit code 1: no peer is connected."
    ),
    examples=("cystore ha status /var/lib/app/store", "cystore ha status /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object"),
    run=_run_status,
)
