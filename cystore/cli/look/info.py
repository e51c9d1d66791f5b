"""`cystore info`: the state, content and disk use of a store."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from cystore.attachment.attach import Attachment
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.engine.inspect.control_head import OURS, attached_processes, read_head
from cystore.engine.manifest.compaction_facts import compaction_of
from cystore.engine.manifest.manifest import read_damaged_ranges, read_facts, read_given_up, skipped_entries
from cystore.layout import FLAGS
from cystore.operate import facts
from cystore.operate.command import OK, Command, add_json, store_config
from cystore.operate.output import (
    one_line,
    size_text,
    time_text,
    write_json,
    write_line,
    write_table,
)
from cystore.operate.positions import positions
from cystore.operate.store_parts import looked_at
from cystore.services.delay.delivery import nobody_delivers
from cystore.system import files, platform
from cystore.verify.compacted import missing_file


def from_files(root: Path, state: facts.State) -> dict[str, Any]:
    """Facts from the files alone."""
    free, capacity = files.free_space(root)
    return {
        "path": str(root),
        "state": state.name,
        "writable": state.writable,
        "file_system": platform.file_system(root),
        "has_cystore_records": state.has_cystore_records,
        "segments": [dataclasses.asdict(segment) for segment in facts.segments(root)],
        "log_folders": facts.log_folders(root),
        "checkpoint": read_checkpoint(root)._asdict(),
        "holes": [dataclasses.asdict(hole) for hole in read_damaged_ranges(root)],
        "given_up": [lost._asdict() for lost in read_given_up(root)],
        "compaction": _compaction(root),
        "skipped": skipped_entries(root),
        "disk": {name: dataclasses.asdict(use) for name, use in facts.disk_use(root).items()},
        "disk_free_bytes": free,
        "disk_capacity_bytes": capacity,
    }


def _compaction(root: Path) -> dict[str, Any] | None:
    """What the manifest has of compaction; None for a store that never compacted anything."""
    known, _ = read_facts(root)
    topics, found = str(known.settings.get("compacted_topics", "")), compaction_of(known)
    if not topics and found.file is None:
        return None
    missing = missing_file(root)
    file = None if found.file is None else found.file._asdict()
    return {
        "topics": topics,
        "file": file,
        "dead_ratio": 0.0 if found.file is None else found.file.dead_ratio,
        "missing": None if missing is None else str(missing.path),
        "damaged": found.damaged,
        "findings": [one._asdict() for one in found.findings],
    }


def can_be_read(state: facts.State, attached: dict[str, Any] | None) -> bool:
    """Whether this process can read the positions of a store with these attached processes."""
    return state.name != "exclusive" and (
        attached is None or attached["is_ours"] or attached["can_be_followed"]
    )


def _positions_and_state(parts: Attachment) -> dict[str, Any]:
    found = positions(parts)
    return {**found, "state": "live"} if parts.recovered is None else found


def _show(info: dict[str, Any]) -> None:
    if info["attached"] is not None and info["attached"]["handover_text"] is not None:
        write_line(info["attached"]["handover_text"])
    access = "" if info["writable"] else "; this user may only read it"
    write_line(f"{one_line(info['path'])}: {facts.STATES[info['state']]}{access}")
    kinds = "RocketMQ and cystore records" if info["has_cystore_records"] else "RocketMQ records only"
    write_line(f"on {info['file_system']}; may hold {kinds}")
    if info["attached"] is not None:
        _show_attached(info["attached"], info["path"])
    if "positions" in info:
        _show_positions(info)
    write_line(f"segments: {len(info['segments'])}")
    rows: list[tuple[object, ...]] = [
        (s["name"], size_text(s["size_bytes"]), size_text(s["allocated_bytes"]), time_text(s["modified_ms"]))
        for s in info["segments"]
    ]
    write_table(("file", "length", "on disk", "written"), rows)
    if info["log_folders"]:
        rows = [
            (f["path"], f["segments"], "yes" if f["new_files"] else "no", size_text(f["disk_free_bytes"]))
            for f in info["log_folders"]
        ]
        write_table(("folder", "segments", "new ones", "free"), rows)
    if "positions" in info:
        _show_queues(info)
        _show_needs(info["needs"])
    _show_checkpoint(info["checkpoint"])
    write_line(f"holes: {len(info['holes'])}")
    rows = [(h["begin"], h["end"], h["reason"], h["copy"], time_text(h["found_ms"])) for h in info["holes"]]
    write_table(("begin", "end", "reason", "kept in", "found"), rows)
    if info["given_up"]:
        write_line("queue offsets whose messages are lost:")
        rows = [(lost["topic"], lost["queue_id"], lost["begin"], lost["end"]) for lost in info["given_up"]]
        write_table(("topic", "queue", "begin", "end"), rows)
    for what in info["skipped"]:
        write_line(f"SKIPPED: {what} in the manifest has no effect, because no topic can have that name")
    if info["compaction"] is not None:
        _show_compaction(info["compaction"])
    free, capacity = size_text(info["disk_free_bytes"]), size_text(info["disk_capacity_bytes"])
    write_line(f"disk: {free} of {capacity} free")
    rows = [
        (name, use["files"], size_text(use["size_bytes"]), size_text(use["allocated_bytes"]))
        for name, use in info["disk"].items()
    ]
    write_table(("part", "files", "length", "on disk"), rows)


def _show_needs(needs: list[dict[str, Any]]) -> None:
    write_line(f"kept from cleaning: {len(needs)}")
    rows: list[tuple[object, ...]] = [
        (
            need["owner"],
            need["physical_offset"],
            size_text(need["bytes"]),
            time_text(need["since_ms"]) if need["since_ms"] is not None else "-",
        )
        for need in needs
    ]
    write_table(("by", "from", "log", "since"), rows)


def _show_compaction(found: dict[str, Any]) -> None:
    """Writes it for people."""
    file = found["file"]
    topics = found["topics"] or "no topic any more"
    if file is None:
        write_line(f"compaction of {topics}: nothing yet")
    else:
        write_line(
            f"compaction of {topics}: {file['records']} records of {file['keys']} keys, "
            f"{size_text(file['size_bytes'])}, up to {file['covered']}, {time_text(file['made_ms'])}; "
            f"{found['dead_ratio']:.0%} of the examined records left out"
        )
        if file["uncertain_below"]:
            write_line(f"UNCERTAIN: compacted values from below {file['uncertain_below']} may be outdated")
    if found["missing"] is not None:
        write_line(f"MISSING: the compacted file {found['missing']}, and with it values that left the log")
    if found["damaged"]:
        write_line(f"damage that compaction met: {found['damaged']}")
        rows: list[tuple[object, ...]] = [
            (one["what"], time_text(one["found_ms"])) for one in found["findings"]
        ]
        write_table(("what", "found"), rows)


def _show_positions(info: dict[str, Any]) -> None:
    at = info["positions"]
    write_line(
        f"log: {at['min_physical_offset']} to {at['wrote']}, flushed to {at['flushed']}, dispatched to "
        f"{at['dispatched']}"
    )
    if at["pool_buffers"]:
        write_line(
            f"pool: {at['pool_buffers']} buffers, {at['remain_transient_store_buffer_numbs']} free; appended to "
            f"{at['appended']}, committed to {at['wrote']}"
        )
    write_line(f"dispatch behind: {at['dispatch_behind_bytes']} bytes")
    write_line(f"last message: {time_text(at['last_store_timestamp_ms'])}")
    if at["clock_ahead_ms"]:
        write_line(
            f"CLOCK: the wall clock is {at['clock_ahead_ms'] // 1000} s ahead of the store's and not believed "
            "(cystore clock)"
        )
    if info["state"] == "live":
        write_line(f"since the first process opened it: {at['put_count']} puts, {size_text(at['put_bytes'])}")
        write_line(
            f"puts: {at['put_failed']} failed, {at['put_slow']} took over 500 ms, the longest "
            f"{at['put_time_max_ms']} ms; "
            f"{at['room_requests']} waited for room, the longest {at['room_wait_max_ms']} ms"
        )
        write_line(
            f"gets: {at['get_count']}, {at['get_message_count']} messages, the longest {at['get_time_max_ms']} ms; "
            f"queries: {at['query_count']}"
        )
    for flag in info["flags"]:
        write_line(f"NOT WRITABLE: {FLAGS['FLAG_' + flag.upper()][1]}")
    if info["recovery"] is not None:
        write_line(f"the next open will find: {info['recovery']}")


def _show_queues(info: dict[str, Any]) -> None:
    topics = {queue["topic"] for queue in info["queues"]}
    write_line(f"topics: {len(topics)}, queues: {len(info['queues'])}")
    rows: list[tuple[object, ...]] = [
        (q["topic"], q["queue_id"], q["min_offset"], q["max_offset"], q["max_offset"] - q["min_offset"])
        for q in info["queues"]
    ]
    write_table(("topic", "queue", "min offset", "max offset", "between"), rows)
    write_line(f"waiting delayed messages: {sum(level['pending'] for level in info['delayed'])}")
    rows = [
        (
            d["level"] or "time",
            "none" if d["delay_ms"] is None else f"{d['delay_ms'] // 1000} s",
            d["pending"],
        )
        for d in info["delayed"]
    ]
    write_table(("level", "delay", "waiting"), rows)
    if words := nobody_delivers(info["delayed_overdue_ms"]):
        write_line(words)
    write_line(f"index files: {len(info['index_files'])}")
    rows = [
        (
            f["name"],
            f["next_entry"] - 1,
            f["capacity"] - 1,
            time_text(f["begin_timestamp_ms"]),
            time_text(f["end_timestamp_ms"]),
        )
        for f in info["index_files"]
    ]
    write_table(("file", "entries", "room for", "first message", "last message"), rows)


def _show_checkpoint(checkpoint: dict[str, int]) -> None:
    times = ", ".join(
        f"{name} {time_text(checkpoint[field])}"
        for name, field in (
            ("log", "physic_timestamp"),
            ("queues", "logics_timestamp"),
            ("index", "index_timestamp"),
        )
    )
    write_line(f"checkpoint: {times}; durable up to {checkpoint['watermark']}")


def attached_to(root: Path) -> dict[str, Any] | None:
    """The processes that have the store open, and their version. Needs no attachment, so it works for another version,
    too."""
    head = read_head(root)
    if head is None:
        return None
    return {
        "release": head.release or None,
        "layout_version": head.layout_version or None,
        "fingerprint": f"{head.fingerprint:016x}",
        "is_ours": head.is_ours,
        "can_be_followed": head.can_be_followed,
        "handover": head.handover,
        "handover_text": facts.standing_request(root),
        "processes": [process._asdict() for process in attached_processes(root)],
    }


def _show_attached(attached: dict[str, Any], root: str) -> None:
    layout = f"layout {attached['layout_version'] or '?'} ({attached['fingerprint']})"
    write_line(f"attached with: cystore {attached['release'] or '(older)'}, {layout}")
    if not attached["is_ours"]:
        write_line(
            f"ANOTHER VERSION: this is {OURS}, which can read beside it, and write after it (cystore handover "
            f"{one_line(root)})"
            if attached["can_be_followed"]
            else f"ANOTHER VERSION: this is {OURS}; positions cannot be read beside it (cystore handover "
            f"{one_line(root)})"
        )
    rows: list[tuple[object, ...]] = [
        (process["pid"], one_line(process["command"])) for process in attached["processes"]
    ]
    write_table(("attached", "command"), rows)


def _run(args: argparse.Namespace) -> int:
    state = facts.state(args.path)
    info = from_files(args.path, state)
    info["attached"] = attached = attached_to(args.path) if state.name == "live" else None
    if can_be_read(state, attached):
        info |= looked_at(args.path, store_config(args, read_only=True, services=()), _positions_and_state)
    if args.json:
        write_json(info)
    else:
        _show(info)
    return OK


COMMAND = Command(
    name="info",
    summary="segments, offsets, topics and queues, index files, checkpoint, disk use",
    description=(
        "Shows the state, content and disk use of a store, be it in use, closed, left by a crash, or in a "
        "directory that may\n"
        "only be read. Changes nothing. If no process has the store open, the positions are those that "
        "recovery would find."
    ),
    examples=("cystore info /var/lib/app/store", "cystore info /var/lib/app/store --json"),
    add_arguments=lambda parser: add_json(parser, "one JSON object"),
    run=_run,
)
