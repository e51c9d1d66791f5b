"""Settings of a store: RocketMQ's MessageStoreConfig, names in snake_case with the unit last, RocketMQ's defaults.

Where a default differs from RocketMQ's, its comment says why.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from cystore.errors import StoreConfigError, did_you_mean, shown
from cystore.layout import CONSTANTS
from cystore.system.links import real_path
from cystore.value_class import value_class

SERVICE_NAMES = ("flush", "allocate", "reput", "schedule", "clean", "compact", "ha")
BrokerRole = Literal["async_master", "sync_master", "slave", "elected"]
GIB = 1 << 30
DELAY_LEVELS_MAX = CONSTANTS["DELAY_LEVELS_MAX"][0]
DELAY_SECONDS_MAX = CONSTANTS["DELAY_SECONDS_MAX"][0]
QUEUE_ENTRY_BYTES = CONSTANTS["QUEUE_ENTRY_BYTES"][0]
EXT_UNIT_FIXED_BYTES = CONSTANTS["EXT_UNIT_FIXED_BYTES"][0]
BITMAP_BYTES_MAX = CONSTANTS["EXT_UNIT_BYTES_MAX"][0] - EXT_UNIT_FIXED_BYTES
MIB = 1 << 20
REPLICATION_HEADER_BYTES = 8 + 4  # RocketMQ's: position and size before each piece of the log
INT_MAX = (1 << 31) - 1
COMPACTED_TOPICS_MAX = 3000  # characters: the header of a compacted file has room for them
LOG_FOLDER = "commitlog"  # the store's own folder of the log
_COMPACTED_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}\*?")


FOREVER_H = 24 * 366 * 100  # a hundred years
FOREVER = (-1, "never")  # as it is written in files, on the command line and in URLs; the store has FOREVER_H
KEPT = {"file_reserved_time_h": "messages", "quarantine_reserved_time_h": "copies of damaged bytes"}
AGES = (*KEPT, "roll_interval_h")  # may be FOREVER
LOG_PATHS = ("store_path_commit_log", "read_only_commit_log_store_paths")


class _Given:
    """Holds the names that `from_mapping` was given or suggested, the sources of the given ones, and the names of which
    the store gets another value; the fields themselves are the settings."""

    __slots__ = ("_names", "_replaced", "_sources", "_suggested")


@value_class(frozen=True)
class StoreConfig(_Given):
    """All settings of a `MessageStore`; immutable. Unknown names, wrong types and values are a StoreConfigError."""

    mapped_file_size_commit_log_bytes: int = GIB
    mapped_file_size_consume_queue_bytes: int = 300_000 * QUEUE_ENTRY_BYTES
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext_bytes: int = 48 * MIB
    bit_map_length_consume_queue_ext: int = 112  # RocketMQ: 64, but its broker sets 112
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    enable_lmq: bool = False  # with enable_multi_dispatch: messages may name light queues
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000

    record_format: Literal["cystore", "rocketmq"] = "cystore"  # "rocketmq" has no checksum over the header
    max_message_size_bytes: int = 4 * MIB
    max_queues: int = 65_536
    store_host: str = "127.0.0.1:10911"
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval_ms: int = 10_000
    timer_max_delay_s: int = 366 * 86_400  # of a message with a due time of its own

    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 60_000
    transaction_check_max: int = 15

    flush_disk_type: Literal["async", "sync"] = "async"
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    flush_interval_consume_queue_ms: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 60_000
    sync_flush_timeout_ms: int = 5_000
    transient_store_pool_enable: bool = False  # the store's, as transient_store_pool_size
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log_ms: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval_ms: int = 200
    os_page_cache_busy_timeout_ms: int = 1_000
    allocate_ahead_bytes: int = 64 * MIB
    populate_ahead_bytes: int = 16 * MIB
    warm_mapped_file_enable: bool = False
    flush_least_pages_when_warm_mapped_file: int = 4096
    active_segment_memory: Literal["default", "advise", "lock"] = (
        "default"  # RocketMQ locks the files that it warms
    )

    mapped_bytes_max: int = (
        256 * GIB
    )  # address space for files that stay mapped; files in use are not counted

    read_through: Literal["mapping", "pread"] = "mapping"  # "pread": an unreadable sector is an error

    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    default_query_max_num: int = 32
    disk_fall_recorded: bool = True
    dedup_window_ms: int = 3_600_000  # a later put of a dedup_key within it puts nothing

    check_crc_on_recover: bool = True
    check_at_load_bytes: int = (
        GIB  # of log, with its queues and index, after a clean close; at least the last three files
    )
    damaged_range: Literal["keep", "truncate"] = "keep"  # RocketMQ truncates: acknowledged records are lost
    file_reserved_time_h: int = 72
    delete_when: str = "04"
    compacted_topics: str = ""  # names with commas; "name*" is every topic whose name begins with it
    roll_interval_h: int = 24  # RocketMQ has none: a small store would never fill a file, and so never expire
    max_clock_jump_s: int = 300  # RocketMQ believes every clock; see docs/clock.md
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = False  # RocketMQ: True; foreign files must not cost messages
    min_free_bytes: int = 0
    quarantine_reserved_time_h: int = 720  # copies of damaged bytes; RocketMQ keeps none
    quarantine_bytes_max: int = 4 * GIB

    broker_role: BrokerRole = "async_master"  # a role that is given stays the store's
    ha_listen_port: int = 0  # RocketMQ: 10912; 0: no slaves, so a store of one host opens no port
    ha_listen_host: str = "127.0.0.1"  # RocketMQ listens on every address
    ha_master_address: str = ""
    ha_send_heartbeat_interval_ms: int = 5_000
    ha_housekeeping_interval_ms: int = 20_000
    ha_transfer_batch_size_bytes: int = 32_768
    ha_slave_fallbehind_max_bytes: int = 256 * MIB
    ha_hold_bytes_max: int = GIB  # RocketMQ keeps nothing for a slave that is behind
    ha_secret_file: str = ""
    ha_tls_certificate_file: str = ""
    ha_tls_key_file: str = ""
    ha_tls_ca_file: str = ""
    ha_allow_plain: bool = False  # RocketMQ: True; needed without a secret, and without TLS beyond this host
    slave_timeout_ms: int = 3_000
    ha_group: str = ""  # stores that elect their master in etcd: broker_role="elected"
    ha_member: str = ""
    ha_advertised_address: str = ""
    ha_etcd_endpoints: str = ""
    ha_etcd_ca_file: str = ""
    ha_etcd_certificate_file: str = ""
    ha_etcd_key_file: str = ""
    ha_lease_ms: int = 5_000
    ha_in_sync_lag_ms: int = 3_000
    min_in_sync_replicas: int = 1
    ha_truncate_diverged: bool = False
    read_unconfirmed: bool = False  # reads show records that a failover may take back

    create: bool = True  # make a missing store; False: that is an error
    exclusive: bool = False
    read_only: bool = False
    allow_any_file_system: bool = False
    group: str = ""  # name or number: files 0660 and folders 2770 of that group; "" is the owner alone
    allow_any_owner: bool = False  # opens a store that another user could replace
    services: tuple[str, ...] | str = ("flush", "allocate")

    store_path_commit_log: str = ""  # folders with commas; "" is the store's own, as "commitlog"
    read_only_commit_log_store_paths: str = ""

    def __post_init__(self) -> None:
        for listed in ("compacted_topics", *LOG_PATHS):
            words: object = getattr(self, listed)
            if isinstance(words, (tuple, list)) and all(isinstance(word, str) for word in words):
                object.__setattr__(self, listed, ",".join(words))  # as TOML and programs list them
        for name, kind in _types().items():
            object.__setattr__(self, name, _checked(name, kind, getattr(self, name)))
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise StoreConfigError(
                    f"{name} must be {low} to {high}{_or_never(name)}, not {getattr(self, name)}"
                )
        if self.mapped_file_size_consume_queue_bytes % QUEUE_ENTRY_BYTES:
            object.__setattr__(
                self,
                "mapped_file_size_consume_queue_bytes",
                -(-self.mapped_file_size_consume_queue_bytes // QUEUE_ENTRY_BYTES)
                * QUEUE_ENTRY_BYTES,  # as RocketMQ rounds it
            )
        object.__setattr__(self, "services", _service_names(self.services))
        self.delay_levels_ms()
        self.compacted_topic_names()
        if self.store_path_commit_log or self.read_only_commit_log_store_paths:
            self.log_folders()
        for hour in self.delete_when.split(";"):
            if not hour.isdecimal() or not 0 <= int(hour) <= 23:
                raise StoreConfigError(
                    f"delete_when must be hours from 00 to 23 with semicolons, not {self.delete_when!r}"
                )

    def __setstate__(self, state: dict[str, Any] | list[Any]) -> None:
        """Loads a pickle, of an older version too: settings that it lacks have their defaults. Once its state was a
        list of values, in the order of the fields then, so a new field comes last."""
        if isinstance(state, list):
            state = dict(zip(DEFAULTS, state, strict=False))
        self.__dict__.update({**DEFAULTS, **state})

    def paths_of(self, name: str) -> tuple[str, ...]:
        """The folders in one of the settings LOG_PATHS, each once and sorted."""
        default = LOG_FOLDER if name == LOG_PATHS[0] else ""
        text = getattr(self, name) or default
        return tuple(sorted({_log_path(name, path.strip()) for path in text.split(",")})) if text else ()

    def log_folders(self) -> dict[str, bool]:
        """The folders of the log in the settings, and whether each gets new files (MultiPathMappedFileQueue)."""
        names, read_only = map(self.paths_of, LOG_PATHS)
        found = dict.fromkeys(names, True) | dict.fromkeys(read_only, False)
        if True not in found.values():
            raise StoreConfigError(
                "read_only_commit_log_store_paths: it has every folder of store_path_commit_log, so none is left for "
                "new files"
            )
        return found

    def compacted_topic_names(self) -> tuple[str, ...]:
        """`compacted_topics` as names, each once and sorted."""
        names = {name.strip() for name in self.compacted_topics.split(",")} - {""}
        for name in names:
            if not _COMPACTED_TOPIC.fullmatch(name):
                raise StoreConfigError(
                    f"compacted_topics: {name!r} must be a topic (1 to 127 of letters, digits, %, |, _ and -), or "
                    "the beginning of one followed by *"
                )
        if len(self.compacted_topics) > COMPACTED_TOPICS_MAX:
            raise StoreConfigError(
                f"compacted_topics: {len(self.compacted_topics)} characters, at most {COMPACTED_TOPICS_MAX}"
            )
        return tuple(sorted(names))

    def delay_levels_ms(self) -> tuple[int, ...]:
        """`message_delay_level` in milliseconds, level 1 first (ScheduleMessageService.parseDelayLevel)."""
        units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        levels = []
        for word in self.message_delay_level.split():
            number = word[:-1]
            if word[-1] not in units or not (number.isascii() and number.isdecimal()):
                raise StoreConfigError(
                    f"message_delay_level: {word!r} is not a number followed by s, m, h or d"
                )
            if len(number) > 10 or int(number) * units[word[-1]] > DELAY_SECONDS_MAX * 1000:
                raise StoreConfigError(f"message_delay_level: {word!r} is more than a hundred years")
            levels.append(int(number) * units[word[-1]])
        if not 0 < len(levels) <= DELAY_LEVELS_MAX:
            raise StoreConfigError(f"message_delay_level: {len(levels)} levels, not 1 to {DELAY_LEVELS_MAX}")
        return tuple(levels)

    @staticmethod
    def delay_level_text(levels_ms: tuple[int, ...]) -> str:
        """The value of `message_delay_level` for delays in milliseconds."""
        return " ".join(f"{delay_ms // 1000}s" for delay_ms in levels_ms)

    @classmethod
    def from_mapping(
        cls,
        settings: dict[str, Any],
        *,
        suggested: dict[str, Any] | None = None,
        sources: dict[str, str] | None = None,
    ) -> StoreConfig:
        """A configuration from name/value pairs; unknown names are refused with the nearest known ones. `suggested`
        values replace the defaults: a new store gets them, an existing one keeps its own. `sources` has the source of
        each name's value."""
        for name in settings:
            if name not in _types():
                raise StoreConfigError(f"there is no setting {name!r}{did_you_mean(name, _types())}")
        suggestions = {} if suggested is None else suggested
        config = cls(**{**suggestions, **settings})
        object.__setattr__(config, "_names", frozenset(settings))
        object.__setattr__(config, "_suggested", frozenset(suggestions) - frozenset(settings))
        object.__setattr__(config, "_sources", dict(sources or {}))
        return config

    def source(self, name: str) -> str:
        """The source of a setting's value: "argument", the name of an environment variable or of a file, or
        "default"."""
        if not self.gives(name):
            return "default"
        return str(getattr(self, "_sources", {}).get(name, "argument"))

    def gives(self, name: str) -> bool:
        """Whether a setting was given: by name (even with the default value), or as another value than the default."""
        if name in getattr(self, "_suggested", ()):
            return False
        return name in getattr(self, "_names", ()) or getattr(self, name) != DEFAULTS[name]

    def replacing(self, names: Iterable[str]) -> StoreConfig:
        """A copy for an open that is there to change these settings of the store: nothing is said of their old
        values."""
        copy = self.but()
        object.__setattr__(copy, "_replaced", frozenset(names))
        return copy

    def is_replaced(self, name: str) -> bool:
        """Whether the store gets another value of a setting at once."""
        return name in getattr(self, "_replaced", ())

    def but(self, **values: Any) -> StoreConfig:
        """A copy with other values. It knows which settings were given, and which suggested."""
        copy = dataclasses.replace(self, **values)
        for name in _Given.__slots__:
            if hasattr(self, name):
                object.__setattr__(copy, name, getattr(self, name))
        return copy

    def meaning(self, name: str) -> str:
        """A line for people about the messages that a setting lets go; "" where its value says so itself."""
        if name not in KEPT or 0 < getattr(self, name) < FOREVER_H:
            return ""
        if getattr(self, name):
            return f"{name}: {KEPT[name]} do not expire by age (never)"
        what = (
            "every whole segment, and all messages in it"
            if name == "file_reserved_time_h"
            else "all " + KEPT[name]
        )
        return f"{name}=0: each clean removes {what}, however new; -1 or never keeps them for ever"

    @classmethod
    def from_toml(cls, path: Path | str, **more: Any) -> StoreConfig:
        """A configuration from the top level (or the table ``[cystore]``) of a TOML file. Values in `more` win over the
        file."""
        return cls.from_mapping({**toml_settings(path), **more})

    @classmethod
    def parse_setting(cls, text: str) -> tuple[str, Any]:
        """``NAME=VALUE`` from a command line as (name, typed value)."""
        name, equals, value = text.partition("=")
        name = name.strip()
        if name not in _types():
            cls.from_mapping({name: value})
        if not equals:
            raise StoreConfigError(f"{text!r} has no value: write {name}=VALUE")
        kind = _types()[name]
        if kind is bool:
            words = {
                "true": True,
                "1": True,
                "yes": True,
                "on": True,
                "false": False,
                "0": False,
                "no": False,
                "off": False,
            }
            if value.lower() not in words:
                raise StoreConfigError(f"{name} must be true or false, not {value!r}")
            return name, words[value.lower()]
        if name in AGES and value in map(str, FOREVER):
            return name, FOREVER_H
        if kind is int:
            try:
                return name, int(value.replace("_", ""))
            except ValueError:
                raise StoreConfigError(
                    f"{name} must be a whole number{_or_never(name)}, not {value!r}"
                    f"{did_you_mean(value, FOREVER[1:]) if name in AGES else ''}"
                ) from None
        if name == "services":
            return name, value if value in ("all", "none") else tuple(value.split(","))
        return name, value


def _log_path(name: str, path: str) -> str:
    if path == LOG_FOLDER:
        return path
    if not os.path.isabs(path) or ".." in Path(path).parts or "\0" in path or "\n" in path:
        raise StoreConfigError(
            f"{name}: {path!r} must be an absolute path without '..', or {LOG_FOLDER!r} for the store's own folder; "
            "commas part the folders"
        )
    if Path(path) == Path("/"):
        raise StoreConfigError(f"{name}: / cannot be a folder of the log")
    return os.path.normpath("/" + path.lstrip("/"))


def toml_settings(path: Path | str) -> dict[str, Any]:
    """The settings in a TOML file, unchecked. Raises StoreConfigError for a file that cannot be read, and
    StorePermissionError for a link of another user."""
    import tomllib

    try:
        path = real_path(path)  # no other user may choose the settings
    except ValueError as error:
        raise StoreConfigError(f"cannot read settings: {error}", path=path) from error
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except (OSError, ValueError) as error:  # TOMLDecodeError, or bytes that are no UTF-8
        raise StoreConfigError(f"cannot read settings: {error}", path=path) from error
    table = data.get("cystore", data)
    if not isinstance(table, dict):
        raise StoreConfigError("cystore must be a table of settings", path=path)
    return table


_BOUNDS = {
    # A length of a file is a Java int in RocketMQ; that of a queue file is a multiple of an entry's too.
    "mapped_file_size_commit_log_bytes": (4096, INT_MAX),
    "mapped_file_size_consume_queue_bytes": (
        QUEUE_ENTRY_BYTES,
        INT_MAX // QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES,
    ),
    "mapped_file_size_consume_queue_ext_bytes": (64, INT_MAX),
    "bit_map_length_consume_queue_ext": (8, 8 * BITMAP_BYTES_MAX),
    "max_hash_slot_num": (1, 1 << 29),
    "max_index_num": (2, 1 << 30),
    "max_lmq_consume_queue_num": (1, 1 << 20),
    "max_message_size_bytes": (1, (1 << 31) - 1024 * 256),
    "max_queues": (1, 1 << 20),
    "flush_interval_commit_log_ms": (1, 86_400_000),
    "flush_commit_log_least_pages": (0, 1 << 20),
    "flush_commit_log_thorough_interval_ms": (0, 86_400_000),
    "flush_interval_consume_queue_ms": (1, 86_400_000),
    "flush_consume_queue_least_pages": (0, 1 << 20),
    "flush_consume_queue_thorough_interval_ms": (0, 86_400_000),
    "flush_delay_offset_interval_ms": (0, 86_400_000),
    "timer_max_delay_s": (1, 36_525 * 86_400),
    "sync_flush_timeout_ms": (1, 86_400_000),
    "transient_store_pool_size": (1, 1024),
    "commit_interval_commit_log_ms": (1, 86_400_000),
    "commit_commit_log_least_pages": (0, 1 << 20),
    "commit_commit_log_thorough_interval_ms": (0, 86_400_000),
    "transaction_timeout_ms": (0, 86_400_000),
    "transaction_check_interval_ms": (0, 86_400_000),
    "transaction_check_max": (1, 1_000_000),
    "os_page_cache_busy_timeout_ms": (1, 86_400_000),
    "allocate_ahead_bytes": (4096, 1 << 40),
    "populate_ahead_bytes": (0, 1 << 40),
    "flush_least_pages_when_warm_mapped_file": (1, 1 << 28),
    "mapped_bytes_max": (4096, 1 << 50),
    "check_at_load_bytes": (0, 1 << 50),
    "file_reserved_time_h": (0, FOREVER_H),
    "roll_interval_h": (1, FOREVER_H),
    "max_clock_jump_s": (1, 86_400 * 366),
    "disk_max_used_space_ratio": (0, 100),
    "disk_space_clean_forcibly_ratio": (0, 100),
    "disk_space_warning_level_ratio": (0, 100),
    "min_free_bytes": (0, 1 << 60),
    "quarantine_reserved_time_h": (0, FOREVER_H),
    "quarantine_bytes_max": (0, 1 << 60),
    "ha_listen_port": (0, 65_535),
    "ha_send_heartbeat_interval_ms": (10, 86_400_000),
    "ha_housekeeping_interval_ms": (20, 86_400_000),
    "ha_transfer_batch_size_bytes": (
        1,
        4 * MIB - REPLICATION_HEADER_BYTES,
    ),  # a slave of RocketMQ reads into 4 MiB
    "ha_slave_fallbehind_max_bytes": (1, 1 << 60),
    "ha_hold_bytes_max": (0, 1 << 60),
    "slave_timeout_ms": (1, 86_400_000),
    "ha_lease_ms": (2_000, 600_000),  # etcd makes shorter leases longer
    "ha_in_sync_lag_ms": (100, 86_400_000),
    "min_in_sync_replicas": (1, 64),
    "access_message_in_memory_max_ratio": (0, 100),
    "max_transfer_bytes_on_message_in_memory": (1, 1 << 50),
    "max_transfer_count_on_message_in_memory": (1, 1 << 20),
    "max_transfer_bytes_on_message_in_disk": (1, 1 << 50),
    "default_query_max_num": (1, 1 << 20),
    "dedup_window_ms": (1, 1 << 50),
    "max_transfer_count_on_message_in_disk": (1, 1 << 20),
}

_type_cache: dict[str, Any] = {}


def _types() -> dict[str, Any]:
    if not _type_cache:
        hints = typing.get_type_hints(StoreConfig)
        _type_cache.update({f.name: hints[f.name] for f in dataclasses.fields(StoreConfig)})
    return _type_cache


def canonical(name: str, value: Any) -> Any:
    """A value as the store has it: FOREVER_H for each spelling of for ever."""
    # only a value whose == is Python's own is compared
    return FOREVER_H if name in AGES and type(value) in (int, str) and value in FOREVER else value


def value_text(name: str, value: Any) -> str:
    """A value for people: never, where that is what it means."""
    return str(FOREVER[1] if name in AGES and value == FOREVER_H else value)


def _or_never(name: str) -> str:
    return ", or -1 or never for ever" if name in AGES else ""


def _checked(name: str, kind: Any, value: Any) -> Any:
    value = canonical(name, value)
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise StoreConfigError(f"{name} must be a whole number{_or_never(name)}, not {shown(value)}")
        value = int.__int__(value)  # a subclass too becomes an int, so that the checked value is the used one
    elif kind is bool:
        if not isinstance(value, bool):
            raise StoreConfigError(f"{name} must be True or False, not {shown(value)}")
    elif kind is str:
        if not isinstance(value, str):
            raise StoreConfigError(f"{name} must be text, not {shown(value)}")
        value = str.__str__(value)
    elif typing.get_origin(kind) is Literal:
        known = str.__str__(value) if isinstance(value, str) else None
        if known not in typing.get_args(kind):
            allowed = typing.get_args(kind)
            raise StoreConfigError(
                f"{name} must be one of {', '.join(allowed)}, not {shown(value)}{did_you_mean(known, allowed)}"
            )
        value = known
    elif isinstance(kind, types.UnionType) and not isinstance(value, (str, tuple, list, set, frozenset)):
        raise StoreConfigError(f"{name} must be names of services, not {shown(value)}")
    return value


def _service_names(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    names = tuple(str.__str__(name) if isinstance(name, str) else shown(name) for name in names)
    if names == ("all",):
        return SERVICE_NAMES
    if names == ("none",):
        return ()
    for name in names:
        if name not in SERVICE_NAMES:
            raise StoreConfigError(
                f"services: no service has the name {name!r}{did_you_mean(name, SERVICE_NAMES)}; choose from "
                f"{', '.join(SERVICE_NAMES)}, or 'all' or 'none'"
            )
    return names


DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(StoreConfig)}
