"""The registry of the fleet in Redis: stores, their workers and their state, from heartbeats every few seconds.

Keys, all of which expire by themselves (`cystore.celery.base.duty_leases` has the other ones):

| key | holds | lives |
|---|---|---|
| `cystore:duties:stores` | sorted set: store ids by the time of their last heartbeat | a day after it |
| `cystore:duties:<store id>:seen` | hash: `store` (see `describe`) and `worker:<name>`, each "ms JSON" | a day |
| `cystore:duties:<store id>:ticks` | hash: duty and when its last tick was sent, ms | an hour after that |

Times are those of the Redis server: clocks of hosts differ. `client` is a redis-py client; nothing here imports redis.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from cystore import MessageStore
from cystore.clock import now_ms
from cystore.services.duty_table import DUTIES, DutyRun, Outcome
from cystore.services.scrub_progress import read_progress
from cystore.value_class import value_class

HEARTBEAT_S = 20.0  # each costs four commands
LIVE_S = 45.0  # without a heartbeat for this time a store counts as gone, and gets no ticks
REMEMBERED_S = 24 * 3600.0  # a gone store is shown for this time
TICKS_LIVE_S = 3600.0

PREFIX = "cystore:duties:"
STORES = f"{PREFIX}stores"
_TIME = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
# KEYS: stores, seen. ARGV: id, description of the store, field of the worker, description of the worker, lifetime of
# entries in ms, whether to remove older entries now ("1"). One heartbeat in ten minutes removes them; the others cost
# four commands.
BEAT = (
    _TIME
    + """
local at = string.format('%.0f', now)
redis.call('ZADD', KEYS[1], at, ARGV[1])
redis.call('HSET', KEYS[2], 'store', at .. ' ' .. ARGV[2], ARGV[3], at .. ' ' .. ARGV[4])
if ARGV[6] ~= '1' then return at end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
local seen = redis.call('HGETALL', KEYS[2])
for i = 1, #seen, 2 do
    local ms = tonumber(string.match(seen[i + 1], '^%d+'))
    if not ms or ms < now - ARGV[5] then redis.call('HDEL', KEYS[2], seen[i]) end
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return at
"""
)
# KEYS: stores. ARGV: ms. Returns pairs of id and ms since its last heartbeat, for stores with one in that time.
SEEN_WITHIN = (
    _TIME
    + """
local found = redis.call('ZRANGEBYSCORE', KEYS[1], now - ARGV[1], '+inf', 'WITHSCORES')
for i = 2, #found, 2 do found[i] = string.format('%.0f', now - tonumber(found[i])) end
return found
"""
)
# KEYS: ticks. ARGV: lifetime of the key in ms, then pairs of duty and the least ms since its last tick. Returns the
# duties that are due.
DUE = (
    _TIME
    + """
local due = {}
for i = 2, #ARGV, 2 do
    local last = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') or 0
    if now - last >= tonumber(ARGV[i + 1]) or now < last then
        redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now))
        due[#due + 1] = ARGV[i]
    end
end
if #due > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return due
"""
)


class WorkerStatus(NamedTuple):
    """A worker that has a store: `roles` is its work for it; `seen_s` is the time since its last heartbeat."""

    name: str
    host: str
    pid: int
    roles: tuple[str, ...]
    seen_s: float

    @property
    def live(self) -> bool:
        """Whether it sent a heartbeat lately."""
        return self.seen_s <= LIVE_S


@value_class(frozen=True)
class StoreStatus:
    """A store of the fleet as it was `seen_s` ago; `facts` is the result of `describe`."""

    store_id: str
    seen_s: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
    holders: Mapping[str, str] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether a worker sent a heartbeat lately."""
        return self.seen_s <= LIVE_S

    def last_run(self, duty: str) -> DutyRun:
        """The last run of a duty."""
        known = self.facts.get("duties", {}).get(duty)
        if known is None:
            return DutyRun(0, 0, 0, Outcome.NEVER, 0)
        return DutyRun(**{**known, "outcome": Outcome[known["outcome"].upper()]})

    def as_json(self) -> dict[str, Any]:
        """All fields, for programs."""
        workers = [{**worker._asdict(), "live": worker.live} for worker in self.workers]
        return {
            "store_id": self.store_id,
            "live": self.live,
            "seen_s": self.seen_s,
            **self.facts,
            "workers": workers,
            "holders": dict(self.holders),
        }


def describe(store: MessageStore) -> dict[str, Any]:
    """A heartbeat's facts of a store: its place, offsets, dispatch behind, disk use, the last run of each duty, the
    scrub."""
    stats = store.stats()
    scrub = read_progress(store.path)
    names = (
        "min_physical_offset",
        "wrote",
        "flushed",
        "dispatched",
        "dispatch_behind_bytes",
        "queues",
        "put_count",
    )
    return {
        "host": socket.gethostname(),
        "path": str(store.path),
        "now_ms": now_ms(),
        **{name: stats[name] for name in names},
        "log_bytes": stats["allocated"] - stats["min_physical_offset"],
        "disk_used_percent": round(store.used_disk_percent(), 1),
        "duties": {duty: _run_fields(store.duties.last(duty)) for duty in DUTIES},
        "scrub": {
            "position": scrub.position,
            "rounds": scrub.rounds,
            "damaged": scrub.damaged,
            "mended": scrub.mended,
            "findings": len(scrub.findings),
        },
    }


def heartbeat(
    client: Any,
    store_id: str,
    store: MessageStore,
    worker: str,
    roles: Sequence[str] = ("worker",),
    *,
    needs: Sequence[str] | None = None,
    prune: bool = True,
) -> None:
    """Sends a heartbeat of a worker with the state of its store. One round trip. Raises redis.RedisError.

    `needs` names overdue duties; None: they are not known, and ticks of all duties are welcome. `prune` also renews the
    keys, and removes entries that are older than their lifetime: needed now and then.
    """
    who = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "roles": list(roles)})
    facts = describe(store) if needs is None else {**describe(store), "needs": list(needs)}
    what = json.dumps(facts)
    client.eval(
        BEAT,
        2,
        STORES,
        store_key(store_id),
        store_id,
        what,
        f"worker:{worker}",
        who,
        int(REMEMBERED_S * 1000),
        int(prune),
    )


def live_stores(client: Any) -> list[str]:
    """Ids of the stores that a worker serves now."""
    return list(_stores_within(client, LIVE_S))


def needs_of(client: Any, store_ids: Sequence[str]) -> dict[str, list[str] | None]:
    """The overdue duties of each store by its workers; None if an older worker does not report them. One round trip for
    all."""
    pipeline = client.pipeline(transaction=False)
    for store_id in store_ids:
        pipeline.hget(store_key(store_id), "store")
    answers = pipeline.execute() if store_ids else []
    facts = [json.loads(_text(answer).partition(" ")[2]) if answer else {} for answer in answers]
    return {store_id: found.get("needs") for store_id, found in zip(store_ids, facts, strict=True)}


def due_ticks(
    client: Any, store_ids: Collection[str], periods_s: Mapping[str, float], slack_s: float
) -> dict[str, list[str]]:
    """Duties of each store whose last tick is a period ago, less the slack; they count as sent. One round trip for
    all."""
    pipeline = client.pipeline(transaction=False)
    least = [
        word
        for duty, period_s in periods_s.items()
        for word in (duty, int(max(period_s - slack_s, 0) * 1000))
    ]
    for store_id in store_ids:
        pipeline.eval(DUE, 1, f"{PREFIX}{store_id}:ticks", int(TICKS_LIVE_S * 1000), *least)
    answers = pipeline.execute() if store_ids else []
    return {store_id: [_text(duty) for duty in due] for store_id, due in zip(store_ids, answers, strict=True)}


def fleet(client: Any) -> list[StoreStatus]:
    """Every store with a heartbeat within a day, live ones first, then by host and path."""
    found = _stores_within(client, REMEMBERED_S)
    pipeline = client.pipeline(transaction=False)
    for store_id in found:
        pipeline.hgetall(store_key(store_id))
        for duty in DUTIES:
            pipeline.hget(f"{PREFIX}{store_id}:lease:{duty}", "by")
    answers = iter(pipeline.execute() if found else [])
    stores = []
    for store_id, seen_s in found.items():
        fields = {_text(name): _text(value) for name, value in next(answers).items()}
        holders = {duty: _text(by) for duty in DUTIES if (by := next(answers)) is not None}
        times = {name: int(value.partition(" ")[0]) for name, value in fields.items()}
        newest = max(times.values(), default=0)
        contents = {name: json.loads(value.partition(" ")[2]) for name, value in fields.items()}
        workers = [
            WorkerStatus(
                name.removeprefix("worker:"),
                content["host"],
                content["pid"],
                tuple(content["roles"]),
                seen_s + (newest - times[name]) / 1000,
            )
            for name, content in sorted(contents.items())
            if name.startswith("worker:")
        ]
        stores.append(StoreStatus(store_id, seen_s, contents.get("store", {}), tuple(workers), holders))
    return sorted(stores, key=lambda status: (not status.live, status.facts.get("host", ""), status.store_id))


def here(store: MessageStore, store_id: str) -> StoreStatus:
    """The status of a store of this host, without a Redis."""
    return StoreStatus(store_id, 0.0, describe(store))


def render(stores: Sequence[StoreStatus]) -> str:
    """The fleet as text: a table of the stores, then one of the duties of each."""
    if not stores:
        return "fleet: Redis has no heartbeat of a store; workers with the duties' tasks send them (tasks.install)"
    rows: list[tuple[str, ...]] = [
        ("store", "host", "state", "path", "behind", "log", "disk", "queues", "workers")
    ]
    for status in stores:
        facts, live = status.facts, [worker for worker in status.workers if worker.live]
        rows.append(
            (
                status.store_id[:8],
                str(facts.get("host", "?")),
                "live" if status.live else f"gone, seen {_ago(status.seen_s)} ago",
                str(facts.get("path", "?")),
                f"{facts.get('dispatch_behind_bytes', 0):,} B",
                f"{facts.get('log_bytes', 0) / 2**20:,.0f} MiB",
                f"{facts.get('disk_used_percent', 0)} %",
                f"{facts.get('queues', 0):,}",
                ", ".join(f"{worker.name} ({'+'.join(worker.roles)})" for worker in live) or "-",
            )
        )
    text = [_table(rows)]
    for status in stores:
        scrub = status.facts.get("scrub", {})
        rows = [("duty", "last run", "took", "done", "outcome", "runs", "now")]
        for duty in DUTIES:
            run = status.last_run(duty)
            if run.runs:
                at = (status.facts["now_ms"] - run.begun_ms) / 1000 if "now_ms" in status.facts else None
                rows.append(
                    (
                        duty,
                        "?" if at is None else f"{_ago(max(at + status.seen_s, 0))} ago",
                        f"{run.took_us / 1000:,.1f} ms",
                        f"{run.done:,}",
                        run.outcome.name.lower(),
                        f"{run.runs:,}",
                        f"by {status.holders[duty]}" if duty in status.holders else "",
                    )
                )
        found = f"{scrub.get('damaged', 0)} damaged ranges, {scrub.get('mended', 0)} mended in this round"
        text.append(f"{status.store_id}  scrub: {scrub.get('rounds', 0)} rounds, {found}\n{_table(rows)}")
    return "\n\n".join(text)


def store_key(store_id: str) -> str:
    """The key of the workers of a store."""
    return f"{PREFIX}{store_id}:seen"


def _stores_within(client: Any, seconds: float) -> dict[str, float]:
    found = [_text(word) for word in client.eval(SEEN_WITHIN, 1, STORES, int(seconds * 1000))]
    return {store_id: int(ms) / 1000 for store_id, ms in zip(found[::2], found[1::2], strict=True)}


def _run_fields(run: DutyRun) -> dict[str, Any]:
    return {**run._asdict(), "outcome": run.outcome.name.lower()}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _ago(seconds: float) -> str:
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
