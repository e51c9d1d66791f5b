"""Options of a read. They have the names and meanings of Spark's Kafka source, if it has such an option.

This module refuses every user error before it opens anything, with a StoreConfigError that names the option.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from cystore.columns.arrow import FOREVER, OnCorruption, own_topics, places_of
from cystore.columns.object_store import ObjectStore, in_parallel, is_url, local_path
from cystore.config import StoreConfig
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.system.links import real_path

EARLIEST, LATEST = -2, -1  # in offsets by topic and partition, as in Kafka
SETTING_PREFIX = "cystore."
STORAGE_PREFIX = "fs."
HIDDEN_PREFIX = "secret."  # after STORAGE_PREFIX: Spark then hides the value
STRATEGY = (
    "startingOffsetsByTimestampStrategy"  # for partitions without a message at or after a starting timestamp
)
StartingStrategy = Literal["error", "latest"]
PerQueue = dict[tuple[str, int], int]

NAMES = (
    *("path", "paths", "topic", "subscribe", "subscribePattern", "assign", "key"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp", STRATEGY),
    *("failOnDataLoss", "minPartitions", "maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    *("onCorruption", "checkChecksum", "includeTransactions", "includeArchive", "filterPushdown"),
    *("sealedSegments", "storeMoved", "columns", "tags", "cores", "taskAttempts"),
)
# Options of pyarrow's file systems that are no secret. Every other option may be a secret.
HARMLESS = frozenset(
    {"region", "endpoint_override", "scheme", "anonymous", "role_arn", "session_name", "background_writes"}
    | {"request_timeout", "connect_timeout", "load_frequency", "retry_strategy", "retry_time_limit"}
    | {"force_virtual_addressing", "check_directory_existence_before_creation", "allow_delayed_open"}
    | {"blob_storage_authority", "blob_storage_scheme", "dfs_storage_authority", "dfs_storage_scheme"}
    | {"account_name", "client_id", "tenant_id", "project_id", "target_service_account"}
    | {"tls_ca_file_path", "host", "port", "user", "username", "replication", "buffer_size"}
    | {"default_block_size", "default_bucket_location"}
)
NAME_OF_SECRET = "access_key"  # names a secret, and is none itself
# The names whose values Spark hides in plans and event logs, by its own default (spark.redaction.regex).
HIDDEN_BY_SPARK = re.compile("secret|password|token", re.IGNORECASE)
# Options that Spark adds for a table made by SQL; only the place matters for a read. (Spark also adds each option again
# as option.NAME.)
OF_SQL = frozenset(
    {"location", "provider", "owner", "comment", "external", "is_managed_location", "collation"}
)
MOVED_HINT = 'storeMoved must be like {"/old/place":"/new/place"}'
STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "storeMoved")
BATCH_ONLY = (
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "includeArchive", "taskAttempts"),
)


@dataclass(frozen=True)
class Bound:
    """The begin or end of a read: for all queues alike (`offset`: EARLIEST or LATEST), at a time, or by queue."""

    offset: int | None = None
    timestamp_ms: int | None = None
    offsets: PerQueue | None = None
    timestamps_ms: PerQueue | None = None

    @property
    def per_queue(self) -> PerQueue | None:
        return self.offsets if self.offsets is not None else self.timestamps_ms


@dataclass(frozen=True)
class ReadOptions:
    """Checked options. `starting` of a batch is EARLIEST by default, of a stream LATEST."""

    patterns: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # none: all
    cores: int | None = None  # None: those of the driver's host
    starting: Bound = Bound(EARLIEST)
    ending: Bound = Bound(LATEST)
    starting_strategy: StartingStrategy = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_offsets: int | None = None
    max_bytes: int | None = None
    on_corruption: OnCorruption = "fail"
    check_checksum: bool = True
    in_queue: bool = True
    include_archive: bool = False
    filter_pushdown: bool = False
    sealed: bool = False
    task_attempts: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)  # old paths of stores, with their present paths
    settings: Mapping[str, Any] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold credentials

    def check_places(self) -> None:
        """Raises StoreFormatError for a missing store."""
        self.paths()
        in_parallel(lambda place: place[0].check_folder(place[1]), self.urls())

    def urls(self) -> list[tuple[ObjectStore, str]]:
        """The stores whose sealed segments are read by URL. Raises StoreFormatError for a pattern without a match."""
        found = {}
        for pattern in self.patterns:
            if not self._by_url(pattern):
                continue
            if is_url(pattern):
                object_store, url = ObjectStore.of(pattern, dict(self.storage))
                matches = object_store.matching(url)
                if not matches:
                    raise StoreFormatError("no store matches", path=url)
            else:
                object_store = ObjectStore("file", "", tuple(sorted(self.storage.items())))
                matches = [f"file://{place}" for place in places_of(pattern)]
            found.update(dict.fromkeys(matches, object_store))
        return [(found[url], url) for url in sorted(found)]

    def _by_url(self, pattern: str) -> bool:
        return self.sealed or is_url(pattern)

    def paths(self) -> list[str]:
        """The stores that the patterns name now, absolute, except URLs. Raises StoreFormatError for a missing one."""
        found: list[str] = []
        for pattern in (pattern for pattern in self.patterns if not self._by_url(pattern)):
            found += places_of(pattern)
        for path in found:
            if not Path(path).is_dir():
                raise StoreFormatError("there is no store here", path=path)
        return sorted(set(found))

    def takes(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is read."""
        if self.assigned:
            return (topic, queue_id) in self.assigned
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics


def parse(given: Mapping[str, str], *, stream: bool) -> ReadOptions:
    """Checks the options of a batch or stream read. Raises StoreConfigError."""
    options = {name.lower(): value for name, value in given.items()}
    settings = settings_of(options)
    storage = _storage_of(options)
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known and name not in OF_SQL and not name.startswith("option."):
            raise StoreConfigError(
                f"no option {name}; the options are {', '.join(NAMES)}, {SETTING_PREFIX}SETTING and "
                f"{STORAGE_PREFIX}NAME"
            )
    for name in BATCH_ONLY if stream else STREAM_ONLY:
        if name.lower() in options:
            raise StoreConfigError(f"option {name} is for {'batches' if stream else 'streams'} only")
    patterns, sealed = _patterns(options), _flag(options, "sealedSegments", False)
    _check_urls(patterns, sealed, options, stream=stream)
    return ReadOptions(
        patterns=patterns,
        **_selection(options),
        keys=_listed(options, "key"),
        tags=_listed(options, "tags"),
        columns=_listed(options, "columns"),
        cores=_count(options, "cores"),
        starting=_starting(options, stream=stream),
        ending=_ending(options),
        starting_strategy=_choice(options, STRATEGY, get_args(StartingStrategy)),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        min_partitions=_count(options, "minPartitions"),
        max_offsets=_count(options, "maxOffsetsPerTrigger"),
        max_bytes=_count(options, "maxBytesPerTrigger"),
        on_corruption=_choice(options, "onCorruption", get_args(OnCorruption)),
        check_checksum=_flag(options, "checkChecksum", True),
        in_queue=not _flag(options, "includeTransactions", False),
        include_archive=_flag(options, "includeArchive", False),
        filter_pushdown=_flag(options, "filterPushdown", False),
        sealed=sealed,
        task_attempts=_flag(options, "taskAttempts", False),
        moved=_moved(options),
        settings=settings,
        storage=storage,
    )


def parse_any(given: Mapping[str, str]) -> ReadOptions:
    """`parse` for a caller that does not know yet whether the read is a batch or a stream. Raises StoreConfigError."""
    names = {name.lower() for name in given}
    stream = any(name.lower() in names for name in STREAM_ONLY)
    try:
        return parse(given, stream=stream)
    except StoreConfigError:
        if stream or not names & {name.lower() for name in NAMES if name.startswith("starting")}:
            raise
        return parse(given, stream=True)  # a stream may begin at latest


def settings_of(options: dict[str, str]) -> dict[str, Any]:
    """Removes the settings of the store from `options`, and returns them."""
    found = {}
    for name in [name for name in options if name.startswith(SETTING_PREFIX)]:
        setting, value = StoreConfig.parse_setting(f"{name.removeprefix(SETTING_PREFIX)}={options.pop(name)}")
        found[setting] = value
    return found


def may_be_secret(name: str) -> bool:
    """Whether the value of a file system's option may be a secret, or the name of a secret."""
    return name not in HARMLESS


def _storage_of(options: dict[str, str]) -> dict[str, str]:
    """Removes the options of the URLs' file system from `options`, and returns them. Raises StoreConfigError for an
    option that may be a secret and that Spark would show in its plans."""
    found = {}
    for option in [option for option in options if option.startswith(STORAGE_PREFIX)]:
        name = option.removeprefix(STORAGE_PREFIX)
        if may_be_secret(name) and name != NAME_OF_SECRET and not HIDDEN_BY_SPARK.search(name):
            raise StoreConfigError(
                f"option {option} may be a secret, and Spark would show it in plans and in its event log: name it "
                f"{STORAGE_PREFIX}{HIDDEN_PREFIX}{name}, which Spark hides, or put it into the environment"
            )
        plain = name.removeprefix(HIDDEN_PREFIX)
        if plain in found or not plain:
            raise StoreConfigError(
                f"option {option} names {plain} a second time" if plain else f"option {option} has no name"
            )
        found[plain] = options.pop(option)
    return found


def _check_urls(patterns: tuple[str, ...], sealed: bool, options: dict[str, str], *, stream: bool) -> None:
    urls = [pattern for pattern in patterns if sealed or is_url(pattern)]
    for pattern in urls:
        if is_url(pattern):
            ObjectStore.of(pattern, {})
        for wrong, why in (
            (stream, "a stream needs the path of a store; read a URL in batches"),
            (_flag(options, "includeArchive", False), "includeArchive needs the path of a store"),
            (
                options.get(STRATEGY.lower(), "latest").strip().lower() == "error",
                f"the time of a partition's last message is unknown there; {STRATEGY} must be latest",
            ),
        ):
            if wrong:
                raise StoreConfigError(f"{pattern} is read by URL, from its sealed segments only: {why}")


def _patterns(options: dict[str, str]) -> tuple[str, ...]:
    several = options.get("paths")
    patterns = [] if several is None else _json("paths", several)
    if not isinstance(patterns, list) or any(not isinstance(pattern, str) for pattern in patterns):
        raise StoreConfigError(f"paths must be a JSON list of text, not {several}")
    path = options.get("path") or options.get("location")  # SQL's option for a table's path
    if path:
        patterns = [*patterns, path]
    if not patterns or not all(patterns):
        raise StoreConfigError('no path: name the store\'s directory, as in .load("/var/lib/app/store")')
    return tuple(local_path(pattern) for pattern in patterns)


def _moved(options: dict[str, str]) -> dict[str, str]:
    text = options.get("storemoved")
    found = {} if text is None else _json("storeMoved", text, MOVED_HINT)
    if not isinstance(found, dict) or not all(
        isinstance(new, str) and new and old for old, new in found.items()
    ):
        raise StoreConfigError(f"{MOVED_HINT}, not {text}")
    moved = {os.path.realpath(local_path(old)): str(real_path(local_path(new))) for old, new in found.items()}
    both = sorted(old for old in moved if old in moved.values() and moved[old] != old)
    if both:
        raise StoreConfigError(
            f"storeMoved names {both[0]} as an old place and as a new one: name one move of a store, from the "
            "place that the query knows "
            "to the present one"
        )
    return moved


def _selection(options: dict[str, str]) -> dict[str, Any]:
    names = ("topic", "subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if name.lower() in options]
    if len(chosen) > 1:
        raise StoreConfigError(f"only one of {', '.join(names)} may be given, not {' and '.join(chosen)}")
    if not chosen:
        return {}
    (name,) = chosen
    value = options[name.lower()]
    if name == "assign":
        assigned = _json(name, value)
        if not isinstance(assigned, dict) or not all(isinstance(ids, list) for ids in assigned.values()):
            raise StoreConfigError(f'assign must be like {{"orders":[0,1]}}, not {value}')
        own_topics(list(assigned))
        queues = [(topic, number) for topic, ids in assigned.items() for number in ids]
        if not queues or any(isinstance(n, bool) or not isinstance(n, int) for _, n in queues):
            raise StoreConfigError(f'assign must be like {{"orders":[0,1]}}, not {value}')
        return {"assigned": tuple(sorted(set(queues)))}
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise StoreConfigError(
                f"subscribePattern {value!r} is not a regular expression: {error}"
            ) from None
        return {"topic_pattern": value}
    return {"topics": own_topics(_listed(options, name))}


def _listed(options: dict[str, str], name: str) -> tuple[str, ...]:
    if name.lower() not in options:
        return ()
    found = tuple(part.strip() for part in options[name.lower()].split(","))
    if not all(found):
        raise StoreConfigError(
            f"{name} must be one or several names with commas, not {options[name.lower()]!r}"
        )
    return found


def _starting(options: dict[str, str], *, stream: bool) -> Bound:
    bound = _bound(options, "starting", LATEST if stream else EARLIEST)
    if not stream and (bound.offset == LATEST or LATEST in (bound.offsets or {}).values()):
        raise StoreConfigError(
            "startingOffsets cannot be latest (-1) in a batch: there would be nothing to read"
        )
    return bound


def _ending(options: dict[str, str]) -> Bound:
    bound = _bound(options, "ending", LATEST)
    if bound.offset == EARLIEST or EARLIEST in (bound.offsets or {}).values():
        raise StoreConfigError("endingOffsets cannot be earliest (-2): there would be nothing to read")
    return bound


def _bound(options: dict[str, str], which: str, default: int) -> Bound:
    """The bound by the options. As in Kafka, a timestamp overrides timestamps by partition, and these override
    offsets."""
    at = options.get(f"{which}timestamp")
    by_time = options.get(f"{which}offsetsbytimestamp")
    offsets = options.get(f"{which}offsets")
    if at is not None:
        return Bound(timestamp_ms=whole_number(f"{which}Timestamp", at, 0))
    if by_time is not None:
        return Bound(timestamps_ms=_per_queue(f"{which}OffsetsByTimestamp", by_time, 0))
    if offsets is None:
        return Bound(default)
    word = offsets.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(EARLIEST if word == "earliest" else LATEST)
    return Bound(offsets=_per_queue(f"{which}Offsets", offsets, EARLIEST))


def _per_queue(name: str, text: str, least: int) -> PerQueue:
    example = f'{name} must be {"earliest, latest or " if name.endswith("Offsets") else ""}like {{"orders":{{"0":23}}}}'
    content = _json(name, text, example)
    if not isinstance(content, dict) or not all(isinstance(queues, dict) for queues in content.values()):
        raise StoreConfigError(f"{example}, not {text}")
    found = {}
    for topic, queues in content.items():
        for queue_id, value in queues.items():
            if not queue_id.isascii() or not queue_id.isdecimal():
                raise StoreConfigError(f"{name}: {queue_id!r} is not a partition of {topic}")
            found[topic, int(queue_id)] = whole_number(f"{name} of {topic}/{queue_id}", value, least)
    return found


def _json(name: str, text: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreConfigError(f"{hint or f'{name} must be JSON'}, not {text!r} ({error})") from None


def whole_number(name: str, value: Any, least: int) -> int:
    try:
        number = int(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not least <= number <= FOREVER:
        raise StoreConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
    return number


def _count(options: dict[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    return None if value is None else whole_number(name, value, 1)


def _flag(options: dict[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise StoreConfigError(f"{name} must be true or false, not {options[name.lower()]!r}")
    return value == "true"


def _choice(options: dict[str, str], name: str, choices: tuple[Any, ...]) -> Any:
    value = options.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise StoreConfigError(f"{name} must be one of {', '.join(choices)}, not {options[name.lower()]!r}")
    return value
