"""Numbers of one store, from shared memory and from its files.

Each number is the store's and not a process's: it comes from shared memory, whichever process counted it. So one
process exports for all processes, and several exporters give the same numbers. Rates over time are Prometheus's work:
``rate(...[1m])``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cystore._native.append.append import LATENCY_BOUNDS_MS
from cystore.engine.inspect.stats import latency_labels
from cystore.errors import StoreError
from cystore.ha.role import role_of
from cystore.ha.status import ReplicationStatus, present_status
from cystore.layout import HALF_TOPIC
from cystore.metrics.text import Kind, Metric, Samples
from cystore.services.duty_table import DUTIES, Outcome

if TYPE_CHECKING:
    from cystore.store import MessageStore

# Name, kind, key in `MessageStore.stats`, factor to Prometheus's unit, help.
_OF_STATS: tuple[tuple[str, Kind, str, float, str], ...] = (
    ("cystore_put_messages_total", "counter", "put_count", 1, "Messages appended since the first process attached."),
    ("cystore_put_bytes_total", "counter", "put_bytes", 1, ("Bytes of records appended since the first process "
                                                           "attached.")),
    ("cystore_put_duration_max_seconds", "gauge", "put_time_max_ms", 1e-3, "The longest put."),
    ("cystore_put_failed_total", "counter", "put_failed", 1, "Puts that ended in an error of the store."),
    ("cystore_put_slow_total", "counter", "put_slow", 1, "Puts that took longer than 500 ms."),
    ("cystore_get_total", "counter", "get_count", 1, "Gets, whatever they found."),
    ("cystore_get_found_total", "counter", "get_found_count", 1, "Gets that found messages."),
    ("cystore_get_messages_total", "counter", "get_message_count", 1, "Messages that gets found."),
    ("cystore_get_duration_max_seconds", "gauge", "get_time_max_ms", 1e-3, "The longest get."),
    ("cystore_query_total", "counter", "query_count", 1, "Queries by key."),
    ("cystore_room_requests_total", "counter", "room_requests", 1, "Puts that waited for room in the log."),
    ("cystore_room_wait_seconds_total", "counter", "room_wait_ms", 1e-3, "The sum of these waits."),
    ("cystore_room_wait_max_seconds", "gauge", "room_wait_max_ms", 1e-3, "The longest of these waits."),
    ("cystore_log_files_made_total", "counter", "files_made", 1, "Files of the log that were made."),
    ("cystore_mapped_files", "gauge", "mapped_files", 1, "Files that the exporting process has mapped."),
    ("cystore_mapped_bytes", "gauge", "mapped_bytes", 1, "Length of the files that the exporting process has mapped."),
    ("cystore_dispatch_messages_total", "counter", "dispatch_count", 1, "Records entered into queues and index."),
    ("cystore_dispatch_behind_bytes", "gauge", "dispatch_behind_bytes", 1, "Log that is not dispatched yet."),
    ("cystore_log_start_offset_bytes", "gauge", "min_physical_offset", 1, "The log's lowest physical offset."),
    ("cystore_log_end_offset_bytes", "gauge", "wrote", 1, "The physical offset of the next append."),
    ("cystore_log_flushed_offset_bytes", "gauge", "flushed", 1, "The physical offset below which the log is durable."),
    ("cystore_log_dispatched_offset_bytes", "gauge", "dispatched", 1, ("The physical offset below which the log "
                                                                      "is dispatched.")),
    ("cystore_last_put_timestamp_seconds", "gauge", "last_store_timestamp_ms", 1e-3, ("Store timestamp of the "
                                                                                     "newest message.")),
    ("cystore_queues", "gauge", "queues", 1, "Queues of all topics."),
    ("cystore_clock_clamps_total", "counter", "clock_clamps", 1, ("Store timestamps that kept their order "
                                                                 "although the clock went back.")),
    ("cystore_clock_ahead_seconds", "gauge", "clock_ahead_ms", 1e-3, ("How far store timestamps are ahead of "
                                                                     "the host's clock.")),
    ("cystore_compacted_records", "gauge", "compacted_records", 1, "Records in the compacted file."),
    ("cystore_compacted_keys", "gauge", "compacted_keys", 1, "Keys in the compacted file."),
    ("cystore_compacted_bytes", "gauge", "compacted_bytes", 1, "Length of the compacted file."),
    ("cystore_compacted_dead_ratio", "gauge", "compacted_dead_ratio", 1, ("Share of the records that the last turn of "
                                                                          "compaction read and did not keep.")),
    ("cystore_compacted_offset_bytes", "gauge", "compacted_up_to", 1, ("The physical offset below which the log is "
                                                                       "compacted.")),
    ("cystore_compacted_behind_bytes", "gauge", "compacted_behind_bytes", 1, "Log that is not compacted yet."),
    ("cystore_compacted_last_turn_timestamp_seconds", "gauge", "compacted_last_turn_ms", 1e-3, ("When compaction made "
                                                                                                "its last file.")),
    ("cystore_compacted_uncertain_offset_bytes", "gauge", "compacted_uncertain_below", 1, (
        "Compacted values from below this physical offset may be outdated, 0: none.")),
    ("cystore_compacted_damaged_total", "counter", "compacted_damaged", 1, "Damaged parts that compaction met."),
    ("cystore_compacted_missing", "gauge", "compacted_missing", 1, "1 if the compacted file is missing."),
    ("cystore_ha_epoch", "gauge", "epoch", 1, "The epoch of this store as the elected master; 0 for other stores."),
    ("cystore_ha_in_sync_members", "gauge", "in_sync", 1, "Members of the in-sync set of an elected master."),
    ("cystore_ha_lease_left_seconds", "gauge", "lease_left_ms", 1e-3, "Time left for replicated puts."),
    ("cystore_ha_replicated_offset_bytes", "gauge", "replicated", 1, "The physical offset below which slaves have it."),
)  # fmt: skip


def metrics(store: MessageStore) -> list[Metric]:
    """The store's present metrics. Raises the errors of `MessageStore.stats`, and StoreError if the disk cannot be
    read."""
    stats = store.stats()
    found = [
        Metric(name, kind, text, [({}, stats[key] * factor)]) for name, kind, key, factor, text in _OF_STATS
    ]
    times = [_durations("put", stats["put_latency"]), _durations("get", stats["get_latency"])]
    return [
        *found,
        *times,
        *_of_topics(store),
        *_of_groups(store),
        *_of_transactions(store),
        *_of_dispatchers(store),
        *_of_duties(store),
        *_others(store, stats),
        *_of_replication(store, stats),
    ]


def _durations(what: str, latency: dict[str, int]) -> Metric:
    """A histogram with RocketMQ's buckets. They count whole milliseconds, so the first one, 0 ms, ends at 1 ms. The sum
    of all times is not counted."""
    bounds = [1, *LATENCY_BOUNDS_MS[1:]]
    ends = [*(f"{bound / 1000:g}" for bound in bounds), "+Inf"]
    samples: Samples = []
    total = 0
    for end, label in zip(ends, latency_labels(), strict=True):
        total += latency[label]
        samples.append(({"le": end}, total))
    return Metric(
        f"cystore_{what}_duration_seconds",
        "histogram",
        f"Time that a {what} took, in all processes.",
        samples,
    )


def _others(store: MessageStore, stats: dict[str, Any]) -> Iterator[Metric]:
    holes = stats["holes"]
    yield Metric(
        "cystore_flush_behind_bytes",
        "gauge",
        "Bytes of the log that are not flushed: a power cut may lose them.",
        [({}, max(stats["wrote"] - stats["flushed"], 0))],
    )
    yield Metric(
        "cystore_hole_bytes",
        "gauge",
        "Bytes of damaged ranges of the log.",
        [({}, sum(end - begin for begin, end in holes))],
    )
    yield Metric(
        "cystore_disk_used_ratio", "gauge", "Used part of the disk.", [({}, store.used_disk_percent() / 100)]
    )
    delayed = [({"level": str(level)}, float(count)) for level, count in stats["delayed"].items()]
    yield Metric("cystore_delayed_messages", "gauge", "Messages that wait to be delivered.", delayed)
    yield Metric(
        "cystore_delayed_overdue_seconds",
        "gauge",
        "Time for which the first due message has been waiting: nobody delivers.",
        [({}, stats["delayed_overdue_ms"] / 1000)],
    )


def _of_replication(store: MessageStore, stats: dict[str, Any]) -> Iterator[Metric]:
    """By the status that the process that replicates writes every second. A master has no samples of a replica's
    metrics, nor a replica those of a master's."""
    status = present_status(store.path)
    lags: dict[str, float] = {}
    for name, acknowledged, _ in status.slaves:  # a member's name, or an address with a port of the moment
        host = name.rpartition(":")[0] or name
        lags[host] = max(status.wrote - max(acknowledged, 0), lags.get(host, 0))
    replica = _copies(store, status)
    behind = max(status.masters_end - stats["wrote"], 0)
    yield Metric(
        "cystore_ha_slaves", "gauge", "Slaves that are connected.",
        [] if replica else [({}, len(status.slaves))],
    )  # fmt: skip
    yield Metric(
        "cystore_ha_slave_lag_bytes", "gauge", "Bytes of the log that a connected slave did not report.",
        [({"slave": name}, lag) for name, lag in lags.items()],
    )  # fmt: skip
    yield Metric(
        "cystore_ha_connected", "gauge", "1 if a replica is connected to its master.",
        [({}, float(status.connected))] if replica else [],
    )  # fmt: skip
    yield Metric(
        "cystore_ha_lag_bytes", "gauge", "Bytes of the master's log that a replica lacks.",
        [({}, behind)] if replica and status.masters_end >= 0 else [],
    )  # fmt: skip


def is_replica(store: MessageStore) -> bool:
    """Whether the store's messages come from a master. Raises StoreError."""
    return _copies(store, present_status(store.path))


def _copies(store: MessageStore, status: ReplicationStatus) -> bool:
    role = role_of(store._attached().manifest.snapshot())
    return role.is_slave or (role.is_elected and not status.listens)


def _of_topics(store: MessageStore) -> Iterator[Metric]:
    readable: Samples = []
    ever: Samples = []
    for topic, queues in store.topics().items():
        readable.append(({"topic": topic}, sum(one.max_offset - one.min_offset for one in queues.values())))
        ever.append(({"topic": topic}, sum(one.max_offset for one in queues.values())))
    put_bytes: Samples = [({"topic": topic}, size) for topic, size in store.put_bytes_by_topic().items()]
    yield Metric("cystore_topic_messages", "gauge", "Messages that can be read.", readable)
    text = "Messages ever put to the topic: the sum of its queues' next offsets."
    yield Metric("cystore_topic_put_messages_total", "counter", text, ever)
    text = "Bytes of records appended to the topic since the first process attached."
    yield Metric("cystore_topic_put_bytes_total", "counter", text, put_bytes)


def _most(numbers: list[int]) -> int:
    return max(numbers, default=0)


# Name, kind, help; the field of the reads of each queue of a group, their total, its factor to Prometheus's unit.
_OF_GROUPS: tuple[tuple[str, Kind, str, str, Callable[[list[int]], int], float], ...] = (
    ("cystore_group_get_total", "counter", "Reads that named the group.", "gets", sum, 1),
    ("cystore_group_get_messages_total", "counter", "Messages that these reads found.", "messages", sum, 1),
    ("cystore_group_get_bytes_total", "counter", "Bytes that these reads found.", "bytes", sum, 1),
    ("cystore_group_behind_bytes", "gauge", "Log behind the last read of the slowest queue.", "behind_bytes", _most, 1),
    ("cystore_group_behind_messages", "gauge", "Messages behind its last reads.", "behind_messages", sum, 1),
    ("cystore_group_behind_seconds", "gauge", "Age of the last read of the slowest queue.", "behind_ms", _most, 1e-3),
)  # fmt: skip


def _of_groups(store: MessageStore) -> Iterator[Metric]:
    groups = store.groups.lags()
    yield Metric(
        "cystore_group_lag_messages", "gauge", "Messages that a consumer group has not committed.",
        [({"group": group}, lag) for group, lag in groups.items()],
    )  # fmt: skip
    yield Metric(
        "cystore_internal_group_lag_messages", "gauge", "Messages that a group of the store itself has not noted.",
        [({"group": group}, lag) for group, lag in store.groups.lags(internal=True).items()],
    )  # fmt: skip
    reads = store.groups.all_reads()
    for name, kind, text, field, total, factor in _OF_GROUPS:
        samples: Samples = [
            ({"group": group}, factor * total([getattr(one, field) for one in reads.get(group, {}).values()]))
            for group in groups
        ]
        yield Metric(name, kind, text, samples)


def _of_transactions(store: MessageStore) -> Iterator[Metric]:
    """A store without half messages has none of these samples: nothing has to be read for them."""
    begun = store._attached().control.find_queue(HALF_TOPIC, 0) >= 0
    aside = len(store.set_aside_transactions()) if begun else 0
    yield Metric(
        "cystore_transactions_open", "gauge", "Transactions that are neither committed nor rolled back.",
        [({}, len(store.open_transactions()))] if begun else [],
    )  # fmt: skip
    yield Metric(
        "cystore_transactions_set_aside", "gauge", "Open transactions that nobody is asked about now.",
        [({}, aside)] if begun else [],
    )  # fmt: skip


def _of_dispatchers(store: MessageStore) -> Iterator[Metric]:
    damaged: dict[str, StoreError] = {}
    states = store.dispatchers.states(damaged)
    yield Metric(
        "cystore_dispatcher_lag_bytes", "gauge", "Bytes of the log that a named dispatcher has not received.",
        [({"dispatcher": one.name}, one.lag_bytes) for one in states],
    )  # fmt: skip
    yield Metric(
        "cystore_dispatcher_failures", "gauge", "Failures in a row of a named dispatcher's function.",
        [({"dispatcher": one.name}, one.failures) for one in states],
    )  # fmt: skip
    yield Metric(
        "cystore_dispatcher_damaged", "gauge", "1 for a named dispatcher whose cursor cannot be read.",
        [({"dispatcher": name}, 1) for name in sorted(damaged)],
    )  # fmt: skip


def _of_duties(store: MessageStore) -> Iterator[Metric]:
    """Duties that ran since the first process attached. A duty that nobody does has no samples."""
    ran = [(duty, run) for duty in DUTIES if (run := store.duties.last(duty)).runs]
    yield Metric(
        "cystore_duty_last_run_timestamp_seconds", "gauge", "When the last run of a duty began.",
        [({"duty": duty}, run.begun_ms / 1000) for duty, run in ran],
    )  # fmt: skip
    yield Metric(
        "cystore_duty_runs_total", "counter", "Runs of a duty since the first process attached.",
        [({"duty": duty}, run.runs) for duty, run in ran],
    )  # fmt: skip
    yield Metric(
        "cystore_duty_failed", "gauge", "1 if the last run of a duty ended in an error.",
        [({"duty": duty}, float(run.outcome is Outcome.FAILED)) for duty, run in ran],
    )  # fmt: skip
