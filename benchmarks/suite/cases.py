"""All cases as data: contestants, sizes, and the goal of each ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.suite.workload import Job

OURS = "cystore"
QUICK_DIVISOR = 10


@dataclass(frozen=True)
class Contestant:
    """One row: `peer` names the module of benchmarks/peers; `slower` divides the case's count for slow ones."""

    label: str
    peer: str
    slower: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """Our speed divided by that of the row `against` is at least `ratio`."""

    against: str
    ratio: float


@dataclass(frozen=True)
class Case:
    """`what` is one operation, for the headline. Row one is ours; every ratio is against it. A run measures a `long`
    case only if it is named."""

    name: str
    title: str
    what: str
    job: Job
    contestants: tuple[Contestant, ...]
    goals: tuple[Goal, ...] = ()
    long: bool = False

    def chosen_by(self, names: Sequence[str]) -> bool:
        """Whether a run measures the case: no names mean all cases, and a name means all that begin so."""
        if self.long:
            return self.name in names
        return not names or any(self.name.startswith(name) for name in names)

    def job_for(self, contestant: Contestant, folder: str, *, quick: bool) -> Job:
        job = replace(self.job, folder=folder, **contestant.overrides)
        count = job.count // contestant.slower // (QUICK_DIVISOR if quick else 1)
        step = job.batch * job.processes
        options = dict(job.options)
        if quick and "queries" in options:
            options["queries"] //= QUICK_DIVISOR
        return replace(job, count=max(step, count - count % step), options=options)


CYSTORE = Contestant(OURS, "cystore")
MEMCPY = Contestant("C memcpy loop", "memory")
MEMCPY_CACHED = Contestant("C memcpy loop, 1,024 records", "memory", overrides={"case": "put_cached"})
DEFAULTS = Contestant("cystore, default settings", "cystore", overrides={"options": {"settings": "default"}})
NOT_DISPATCHED = Contestant(
    "cystore without services, not dispatched", "cystore", overrides={"options": {"services": ()}}
)
NOT_DISPATCHED_PLAIN = Contestant(
    "cystore, no light queues", "cystore", overrides={"case": "put", "options": {"services": ()}}
)
NO_POOL = Contestant("cystore without a pool", "cystore", overrides={"options": {}})
ROCKETMQ = Contestant("RocketMQ 4.9.3 (JVM)", "rocketmq")
ROCKETMQ_BUILT = Contestant("RocketMQ, message built on the way", "rocketmq", overrides={"case": "put_built"})
ROCKETMQ_DISPATCHING = Contestant(
    "RocketMQ, dispatching beside its puts", "rocketmq", overrides={"options": {"dispatch": True}}
)
LMDB = Contestant("LMDB", "lmdb", slower=20)
LMDB_BEST = Contestant(
    "LMDB, WRITEMAP MAPASYNC NOSYNC", "lmdb", slower=10, overrides={"options": {"best": True}}
)
SQLITE = Contestant("SQLite WAL", "sqlite", slower=20)
ROCKSDB = Contestant("RocksDB", "rocksdb", slower=5)
REDIS = Contestant("Redis Streams", "redis", slower=100)
REDIS_PIPELINED = Contestant("Redis Streams, pipelined 100", "redis", slower=20, overrides={"batch": 100})

# Segments are so small that even a quick run has several.
RECOVER = Job("recover", 1_000_000, "", options={"flushed": 0.9, "segment_bytes": 4 << 20})


def _put(name: str, body_bytes: int, count: int, goals: tuple[Goal, ...]) -> Case:
    return Case(
        name,
        f"put from one thread, {body_bytes} B bodies, a key and a tag, async flush",
        "message",
        Job("put", count, "", body_bytes=body_bytes),
        (
            CYSTORE,
            DEFAULTS,
            NOT_DISPATCHED,
            MEMCPY,
            MEMCPY_CACHED,
            ROCKETMQ,
            ROCKETMQ_DISPATCHING,
            ROCKETMQ_BUILT,
            LMDB_BEST,
            LMDB,
            SQLITE,
            ROCKSDB,
            REDIS,
            REDIS_PIPELINED,
        ),
        goals,
    )


def _same_count(*contestants: Contestant) -> tuple[Contestant, ...]:
    return tuple(replace(contestant, slower=1) for contestant in contestants)


def _scan(name: str, body_bytes: int, count: int) -> Case:
    return Case(
        name,
        f"scan of the log with checksum, {body_bytes} B bodies",
        "record",
        Job("scan", count, "", body_bytes=body_bytes),
        (
            CYSTORE,
            Contestant("checksum alone, record by record", "memory", overrides={"case": "checksum_pieces"}),
            Contestant("checksum alone, in one piece", "memory", overrides={"case": "checksum_whole"}),
        ),
        (Goal("checksum alone, in one piece", 0.60),),
    )


CELERY_OURS = Contestant(OURS, "celery", overrides={"options": {"backend": "cystore"}})
CELERY_PEERS = {
    "Redis": {"backend": "redis"},
    "SQLite (db+sqlite)": {"backend": "sqlite"},
    "filesystem": {"backend": "filesystem"},
    "in memory": {"backend": "memory"},
    "cystore, lifecycle log on": {"backend": "cystore", "lifecycle": True},
}


def _celery(
    name: str,
    title: str,
    what: str,
    job: Job,
    peers: dict[str, int],
    goals: tuple[Goal, ...],
    floors: dict[str, str] | None = None,
) -> Case:
    """`peers`: label and divisor of its count; `floors`: label and job of a contestant without a backend."""
    contestants = (
        Contestant(label, "celery", slower, {"options": CELERY_PEERS[label]})
        for label, slower in peers.items()
    )
    without = (
        Contestant(label, "celery", 1, {"case": floor, "options": {"backend": "none"}})
        for label, floor in (floors or {}).items()
    )
    rows = (CELERY_OURS, *without, *contestants)
    return Case(f"celery-{name}", title, what, job, rows, goals)


# The last two poll for a result twice a second, and for the end of a chord once.
ACROSS = {"cystore, lifecycle log on": 1, "Redis": 1, "SQLite (db+sqlite)": 1, "filesystem": 1}
POLLED = {**ACROSS, "SQLite (db+sqlite)": 10, "filesystem": 10}
CELERY = (
    _celery(
        "store",
        "result backends: store_result of a small SUCCESS, one process",
        "result",
        Job("store", 100_000, ""),
        {"in memory": 1, "Redis": 5, "SQLite (db+sqlite)": 50, "filesystem": 10},
        (Goal("in memory", 0.85),),
    ),
    _celery(
        "get",
        "result backends: get_task_meta of a stored result, one process",
        "result",
        Job("get", 50_000, ""),
        {"Redis": 5, "SQLite (db+sqlite)": 25, "filesystem": 5},
        (Goal("Redis", 6.0),),
    ),
    _celery(
        "wait",
        "result backends: .delay().get() through one prefork worker, median",
        "task",
        Job("wait", 300, ""),
        POLLED,
        (Goal("Redis", 2.0),),
        floors={"no backend at all": "wait_floor", "no backend, a bare append wakes": "wait_push_floor"},
    ),
    _celery(
        "tasks",
        "result backends: tasks through one prefork worker",
        "task",
        Job("tasks", 2_000, ""),
        ACROSS,
        (Goal("Redis", 1.2),),
    ),
    _celery(
        "chord",
        "result backends: a chord of 50 through one prefork worker, median",
        "chord",
        Job("chords", 20, ""),
        POLLED,
        (Goal("Redis", 2.5),),
        floors={
            "no backend at all": "chords_floor",
            "no backend, a bare durable append each": "chords_durable_floor",
        },
    ),
)


READER = Contestant(OURS, "cystore_read")
READS = {"queries": 100_000}
LMDB_READ = Contestant(LMDB_BEST.label, "lmdb", overrides={"options": {**READS, "best": True}})
LMDB_BATCHES = Contestant("LMDB, a transaction for each batch", "lmdb", overrides={"options": {"best": True}})
READ_CASES = (
    Case(
        "get-new",
        "put of 100 B, then get of that message by its queue offset",
        "put and get",
        Job("get_new", 300_000, ""),
        (READER, replace(LMDB_BEST, slower=1), LMDB),
        (Goal(LMDB_BEST.label, 1.0),),
    ),
    Case(
        "get-filter",
        "get from one end of a queue to the other with the SQL92 filter a > 89 AND b IN ('x', 'y'), batches of 32",
        "message that the filter looks at",
        Job("get_filtered", 300_000, "", batch=32, options={"filter": "a > 89 AND b IN ('x', 'y')"}),
        (READER, ROCKETMQ),
        (Goal(ROCKETMQ.label, 2),),
    ),
    Case(
        "get-filter-bitmap",
        "get by a group from one end of a queue to the other with the SQL92 filter a = 7, which 1 % match, by the "
        "bitmaps of its registered filter, batches of 32",
        "message that the filter looks at",
        Job("get_filtered", 300_000, "", batch=32, options={"filter": "a = 7", "group": "marked"}),
        (
            READER,
            Contestant(
                "cystore, the group's filter is not registered",
                "cystore_read",
                overrides={"options": {"filter": "a = 7", "group": "plain"}},
            ),
        ),
    ),
    Case(
        "get-one",
        "get of one of 300,000 messages by its queue offset, chosen at random",
        "get",
        Job("get_one", 300_000, "", options=READS),
        (
            READER,
            LMDB_READ,
            Contestant("cystore, read(physical offset)", "cystore_read", overrides={"case": "read_one"}),
            Contestant("cystore, query of a key", "cystore", overrides={"case": "query"}),
        ),
        (Goal(LMDB_READ.label, 1.0),),
    ),
    Case(
        "get-bodies",
        "get from one end of a queue to the other, batches of 32, 100 B bodies, the body of each looked at",
        "message",
        Job("get_bodies", 300_000, "", batch=32),
        (
            READER,
            Contestant("RocketMQ, messages decoded", "rocketmq", overrides={"case": "get_decoded"}),
            Contestant(LMDB_BEST.label, "lmdb", overrides={"case": "get", "options": {"best": True}}),
            LMDB_BATCHES,
            Contestant("cystore, raw=True", "cystore", overrides={"case": "get_raw"}),
            Contestant("a bare memoryview", "cystore_read", overrides={"case": "bare_views"}),
            Contestant("checksum of the record", "memory", overrides={"case": "checksum_pieces"}),
        ),
        (
            Goal("RocketMQ, messages decoded", 1.5),
            Goal(LMDB_BEST.label, 1.0),
            Goal(LMDB_BATCHES.label, 1.0),
        ),
    ),
    Case(
        "get-read-only",
        "get from one end of a queue to the other, batches of 32, 100 B bodies, by a handle for reading only",
        "message",
        Job("get_bodies", 100_000, "", batch=32),
        (
            READER,
            Contestant(
                "read-only, nothing is dispatched",
                "cystore_read",
                overrides={"options": {"reader": "behind"}},
            ),
            Contestant(
                "read-only beside a writer", "cystore_read", overrides={"options": {"reader": "beside"}}
            ),
            Contestant(
                "read-only, no process is attached",
                "cystore_read",
                overrides={"options": {"reader": "alone"}},
            ),
        ),
    ),
    Case(
        "offset-by-time",
        "offset_by_time of times chosen at random in a queue of 250,000 messages, 100 of each millisecond; RocketMQ "
        "takes any message of the millisecond, cystore finds the first",
        "search",
        Job("offset_by_time", 250_000, "", batch=100, options={"queries": 20_000}),
        (READER, ROCKETMQ),
    ),
    Case(
        "group-offsets",
        "commit of a consumer group's offset, then the query of it; RocketMQ's are in the heap of the broker "
        "(ConsumerOffsetManager)",
        "commit and query",
        Job("offsets", 200_000, ""),
        (READER, ROCKETMQ),
    ),
    Case(
        "query-many",
        "query_many of 1,000 keys of 1,000,000, chosen at random",
        "key",
        Job("query_many", 1_000_000, "", batch=1000, options=READS),
        (READER, LMDB_READ),
        (Goal(LMDB_READ.label, 1.0),),
    ),
    Case(
        "query-many-large",
        "query_many of 1,000 keys of 20,000,000, chosen at random",
        "key",
        Job("query_many", 20_000_000, "", batch=1000, options={**READS, "segment_bytes": 1 << 30}),
        (READER,),
        long=True,
    ),
    Case(
        "find-new",
        "put of 1,000 messages with 2 keys one by one until the last is found by queue and by key",
        "message",
        Job("find_new", 300_000, "", keys=2, batch=1000),
        (READER, replace(LMDB_BEST, slower=3)),
        (Goal(LMDB_BEST.label, 3.0),),
    ),
    Case(
        "wake",
        "put in one process until wait returns in another, median",
        "wake-up",
        Job("wake", 2_000, ""),
        (
            READER,
            Contestant("bare futex", "futex"),
            Contestant("Redis BLPOP", "redis"),
        ),
    ),
)


CASES = (
    _put("put-100", 100, 3_000_000, (Goal(MEMCPY.label, 0.25), Goal(ROCKETMQ.label, 3.0))),
    _put("put-1k", 1024, 300_000, ()),
    Case(
        "put-floors",
        "the indispensable parts of a put with 100 B bodies, each by itself",
        "message",
        Job("put", 1_000_000, ""),
        (
            CYSTORE,
            MEMCPY,
            Contestant("checksum of the record", "memory", overrides={"case": "checksum_pieces"}),
            Contestant("free robust lock, shared", "memory", overrides={"case": "lock"}),
            Contestant("C function that does nothing", "memory", overrides={"case": "call"}),
        ),
    ),
    Case(
        "put-pool",
        "put from one thread into a pool of buffers (TransientStorePool), 100 B bodies, async flush and commit",
        "message",
        Job("put", 1_000_000, "", options={"pool": True}),
        (CYSTORE, NO_POOL, ROCKETMQ),
        (Goal(NO_POOL.label, 0.9),),
    ),
    Case(
        "put-batch",
        "put_many of 100 messages as one batch of a producer, 100 B bodies, a key and a tag, async flush, not "
        "dispatched",
        "message",
        Job("put_batch", 1_000_000, "", batch=100),
        (
            CYSTORE,
            ROCKETMQ,
            Contestant(
                "RocketMQ, batch encoded on the way", "rocketmq", overrides={"case": "put_batch_built"}
            ),
        ),
    ),
    Case(
        "put-light",
        "put from one thread of messages in 3 light queues (LMQ), 100 B bodies, a key and a tag, async flush, not "
        "dispatched",
        "message",
        Job("put_light", 500_000, "", options={"light_queues": 3}),
        (
            CYSTORE,
            NOT_DISPATCHED_PLAIN,
            ROCKETMQ,
            Contestant(
                "RocketMQ, message built on the way", "rocketmq", overrides={"case": "put_light_built"}
            ),
        ),
    ),
    Case(
        "put-many-1k",
        "put_many of 1,000 messages, 1,024 B bodies, a key and a tag, async flush",
        "message",
        Job("put_many", 300_000, "", body_bytes=1024, batch=1000),
        (
            CYSTORE,
            MEMCPY,
            MEMCPY_CACHED,
            replace(LMDB_BEST, slower=3),
            replace(LMDB, slower=3),
            replace(SQLITE, slower=3),
            replace(ROCKSDB, slower=3),
            Contestant("Redis Streams, pipelined 1,000", "redis", slower=10),
        ),
        (Goal(MEMCPY.label, 0.45),),
    ),
    Case(
        "put-sync",
        "put from one thread, 100 B bodies, each on disk before it returns",
        "message",
        Job("put", 2_000, "", sync=True),
        _same_count(CYSTORE, LMDB, SQLITE, ROCKSDB, REDIS, REDIS_PIPELINED),
    ),
    Case(
        "put-processes",
        "put from 4 processes at once into one store, 100 B bodies, async flush",
        "message",
        Job("put_processes", 1_000_000, "", processes=4),
        (CYSTORE, LMDB, SQLITE, REDIS),
    ),
    Case(
        "put-processes-sync",
        "put from 4 processes at once into one store, each message on disk before its put returns",
        "message",
        Job("put_processes", 4_000, "", processes=4, sync=True),
        _same_count(CYSTORE, LMDB, SQLITE, REDIS),
    ),
    _scan("scan-1k", 1024, 300_000),
    _scan("scan-100", 100, 1_000_000),
    Case(
        "get",
        "get from one end of a queue to the other, batches of 32, 100 B bodies, as objects",
        "message",
        Job("get", 300_000, "", batch=32),
        (
            CYSTORE,
            Contestant("cystore, raw=True", "cystore", overrides={"case": "get_raw"}),
            ROCKETMQ,
            Contestant("RocketMQ, messages decoded", "rocketmq", overrides={"case": "get_decoded"}),
            replace(LMDB, slower=1),
            replace(SQLITE, slower=1),
            replace(ROCKSDB, slower=1),
            replace(REDIS, slower=10),
        ),
    ),
    Case(
        "query",
        "query by a key that one of 1,000,000 messages has, chosen at random",
        "query",
        Job("query", 1_000_000, "", options={"queries": 100_000}),
        (CYSTORE, ROCKETMQ, LMDB_READ, *_same_count(LMDB, SQLITE, ROCKSDB)),
        (Goal(ROCKETMQ.label, 0.7), Goal(LMDB_READ.label, 1.0)),
    ),
    Case(
        "dispatch",
        "dispatch of a written log into consume queue and index, 2 keys a message",
        "message",
        Job("dispatch", 1_000_000, "", keys=2),
        (CYSTORE, ROCKETMQ),
        (Goal(ROCKETMQ.label, 4.0),),
    ),
    Case(
        "large-dispatch",
        "the same with 20 million messages, whose two index files the caches do not hold",
        "message",
        Job("dispatch", 20_000_000, "", keys=2, options={"segment_bytes": 1 << 30}),
        (CYSTORE, ROCKETMQ),
        (Goal(ROCKETMQ.label, 4.0),),
    ),
    Case(
        "dispatch-light",
        "dispatch of a written log whose messages are in 3 light queues (LMQ) beside their own one, a key each",
        "message",
        Job("dispatch", 500_000, "", options={"light_queues": 3}),
        (CYSTORE, ROCKETMQ),
    ),
    Case(
        "deliver",
        "delivery of delayed messages that are due, 100 B bodies, a key and a tag, async flush, until dispatched",
        "message",
        Job("deliver", 200_000, ""),
        (CYSTORE, ROCKETMQ),
    ),
    Case(
        "recover",
        "open after an abnormal exit, 100 B bodies, all dispatched, nine tenths of them flushed",
        "message",
        RECOVER,
        (CYSTORE, ROCKETMQ),
        (Goal(ROCKETMQ.label, 1.0),),
    ),
    Case(
        "recover-checkpoint",
        "the same when the checkpoint is young and nine tenths are old: recovery begins there",
        "message",
        RECOVER,
        (
            replace(CYSTORE, overrides={"case": "recover_from_checkpoint"}),
            Contestant("cystore, from the beginning", "cystore"),
        ),
    ),
    *READ_CASES,
    *CELERY,
)
