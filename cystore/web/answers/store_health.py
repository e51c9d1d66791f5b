"""How the stores are: for probes and for the page."""

from __future__ import annotations

from typing import Any

from cystore import CorruptRecordError, MessageStore, StoreError
from cystore.ha.role import role_of
from cystore.ha.status import present_status
from cystore.operate.output import one_line, time_text
from cystore.operate.queue_messages import lost_range
from cystore.recovery.restore import listed
from cystore.services.duty_table import DUTIES
from cystore.web.answers.open_stores import OpenStores

TOPICS_MOST = 1000
QUARANTINE_MOST = 100


def healths(stores: OpenStores) -> list[dict[str, Any]]:
    """The state of each store; one that cannot be read has an `error`."""
    found = []
    for path in stores.paths:
        try:
            found.append({"path": str(path), "status": "ok", **_health(stores.open(path))})
        except StoreError as error:
            status = "damaged" if isinstance(error, CorruptRecordError) else "away"
            found.append({"path": str(path), "status": status, "error": one_line(str(error))})
    return found


def _health(store: MessageStore) -> dict[str, Any]:
    stats = store.stats()
    holes = [list(hole) for hole in stats["holes"]]
    topics, lost = store.topics(), lost_range(store)
    return {
        "status": "damaged" if holes or lost else "ok",
        "last_record": time_text(stats["last_store_timestamp_ms"]),
        "log_bytes": stats["wrote"] - stats["min_physical_offset"],
        "segments": _segments(store, stats),
        "segment_bytes": store.config.mapped_file_size_commit_log_bytes,
        "wrote": stats["wrote"],
        "flush_behind_bytes": max(0, stats["wrote"] - stats["flushed"]),
        "dispatch_behind_bytes": stats["dispatch_behind_bytes"],
        "disk_used_percent": round(store.used_disk_percent(), 1),
        "holes": holes,
        "lost": None if lost is None else list(lost),
        "quarantine": _quarantine(store),
        "replication": _replication(store, stats["wrote"]),
        "put_count": stats["put_count"],
        "put_failed": stats["put_failed"],
        "queues": stats["queues"],
        "delayed": sum(stats["delayed"].values()),
        "topics": [
            {
                "topic": topic,
                "queues": len(queues),
                "messages": sum(one.max_offset - one.min_offset for one in queues.values()),
            }
            for topic, queues in sorted(topics.items())[:TOPICS_MOST]
        ],
        "groups": [{"group": group, "lag": lag} for group, lag in store.groups.lags().items()],
        "duties": _duties(store),
        "holds": [
            {
                "name": name,
                "from": hold.physical_offset,
                "bytes": stats["wrote"] - max(hold.physical_offset, stats["min_physical_offset"]),
                "max_age_s": None if hold.max_age_ms is None else hold.max_age_ms / 1000,
            }
            for name, hold in sorted(store.holds().items())
            if hold.physical_offset < stats["wrote"]
        ],
    }


def _segments(store: MessageStore, stats: dict[str, Any]) -> int:
    size, first = store.config.mapped_file_size_commit_log_bytes, stats["min_physical_offset"]
    return int(-(-stats["wrote"] // size) - first // size)


def _quarantine(store: MessageStore) -> list[dict[str, Any]]:
    """Copies of damaged bytes, and damaged ranges without one."""
    return [
        {
            "name": one.name or None,
            "begin": one.begin,
            "end": one.end,
            "bytes": one.size_bytes,
            "state": one.state,
            "reason": one.reason,
            "found": time_text(one.found_ms),
        }
        for one in listed(store.path)[:QUARANTINE_MOST]
    ]


def _replication(store: MessageStore, wrote: int) -> dict[str, Any] | None:
    """The role of a store that is replicated, and how far the others are; None for a store of its own."""
    role, status = role_of(store._attached().manifest.snapshot()), present_status(store.path)
    is_replica = role.is_slave or (role.is_elected and not status.listens)
    if not is_replica and not role.is_elected and not status.listens and not status.slaves:
        return None
    told: dict[str, Any] = {"role": "replica" if is_replica else "master", "state": status.state or None}
    if is_replica:
        known = status.connected and status.masters_end >= 0
        behind = max(0, status.masters_end - wrote) if known else None
        return {
            **told,
            "master": status.master or None,
            "connected": status.connected,
            "behind_bytes": behind,
        }
    slaves = [
        {"name": name, "behind_bytes": max(0, status.wrote - acknowledged) if acknowledged >= 0 else None}
        for name, acknowledged, _ in status.slaves
    ]
    return {**told, "listens": status.listens or None, "slaves": slaves}


def _duties(store: MessageStore) -> list[dict[str, Any]]:
    """The duties that a process has done since the first one opened the store: the last run, and for how long the
    process that has the lease keeps it (with Redis, leases are there)."""
    found = []
    for duty in DUTIES:
        run, lease_ms = store.duties.last(duty), store.duties.lease_left_ms(duty)
        if run.runs or lease_ms:
            found.append(
                {
                    "duty": duty,
                    "begun": time_text(run.begun_ms) if run.runs else None,
                    "took_s": run.took_us / 1e6,
                    "pid": run.pid,
                    "outcome": run.outcome.name.lower(),
                    "runs": run.runs,
                    "lease_left_s": lease_ms / 1000,
                }
            )
    return found


def check(stores: OpenStores) -> None:
    """Raises StoreError unless each store can be read."""
    for path in stores.paths:
        stores.open(path).stats()
