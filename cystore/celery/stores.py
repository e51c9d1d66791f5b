"""One open store for each path and process: `cystore://` URLs, and the stores that they open when first used."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import logging
import math
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from celery import Celery, signals
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import (
    NotDurableError,
    StoreConfig,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreMovedError,
    StorePermissionError,
)
from cystore.celery.redis_urls import OF_CLIENT, OF_TRANSPORT, PREFIX
from cystore.config import DEFAULTS as SETTINGS
from cystore.config import FOREVER, FOREVER_H, canonical, value_text
from cystore.config_sources import given_outside
from cystore.errors import did_you_mean, hidden
from cystore.layout import CONSTANTS
from cystore.system.links import real_path
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore import MessageStore

log = logging.getLogger("cystore")

SCHEME = "cystore"
RESULTS_TOPIC = "celery_results"
REMOTE = "remote"  # Celery uses the part before the plus as the backend's name, and passes on the rest
READER = "reader"
MANIFEST = "manifest"  # a file in each store that was opened once
EXAMPLE = "cystore:///var/lib/app/store"
MIB = 1 << 20
QUEUE_ENTRY_BYTES = CONSTANTS["QUEUE_ENTRY_BYTES"][0]

DAY_H = 24
ANY_HOUR = ";".join(f"{hour:02}" for hour in range(DAY_H))
RETENTION = "file_reserved_time_h"
ALIASES = {"flush": "flush_disk_type"}

# Results are small. These file sizes suit a laptop; RocketMQ's would reserve a gigabyte. They apply to new stores.
DEFAULTS: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": 64 * MIB,
    "mapped_file_size_consume_queue_bytes": 50_000 * QUEUE_ENTRY_BYTES,
    "allocate_ahead_bytes": 8 * MIB,
    "populate_ahead_bytes": 4 * MIB,
    # The slots of an index file are reserved with its first key, because a hash may lead to each of them: 8 MB here, 20
    # MB with RocketMQ's sizes.
    "max_hash_slot_num": 2_000_000,
    "max_index_num": 8_000_000,
    # RocketMQ's client tries again elsewhere. Here a finished task would fail because its host is busy.
    "os_page_cache_busy_timeout_ms": 30_000,
    # The limit of a result, encoded with its meta. Redis takes up to 512 MB, and apps that come from there may have
    # large results.
    "max_message_size_bytes": 64 * MIB,
    "delete_when": ANY_HOUR,  # RocketMQ waits for a quiet hour; a hundred thousand results go in some 20 ms
    # The lifecycle log has a light queue for each worker. These two go together: LIGHT_QUEUES.
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
LIGHT_QUEUES = ("enable_lmq", "enable_multi_dispatch")


# For a host with disk and memory for this: RocketMQ's sizes, and room ahead of many writers.
SERVER: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": 1024 * MIB,
    "mapped_file_size_consume_queue_bytes": 300_000 * QUEUE_ENTRY_BYTES,
    "allocate_ahead_bytes": 64 * MIB,
    "populate_ahead_bytes": 16 * MIB,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
    "min_free_bytes": 2048 * MIB,
    # an unmounted disk must not lead to a second store: `celery -A APP cystore create` makes the first
    "create": False,
}


@functools.lru_cache(16)
def names_results(compacted_topics: str) -> bool:
    """Whether a value of the setting compacted_topics names the topic of results."""
    names = StoreConfig(compacted_topics=compacted_topics).compacted_topic_names()
    return any(fnmatch.fnmatchcase(RESULTS_TOPIC, name) for name in names)


def compacts_results(store: MessageStore) -> bool:
    """Whether the store compacts results: their newest states outlive its retention."""
    return names_results(store.settings.compacted_topics)


@value_class(frozen=True)
class Location:
    """The place of a store and its options: a parsed ``cystore:///path?option=value``. With hosts before the path the
    store is a replica on this host, whose master is on one of them (`cystore.open`).

    Options are fields of `cystore.StoreConfig`, and ``flush=sync`` (a result is durable on disk before its task is
    acknowledged) for ``flush_disk_type=sync``. `result_backend_transport_options` may hold the same names.
    """

    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    # The retention of records, if results need a longer one than the settings give. If two apps differ, the store uses
    # the longest.
    file_reserved_time_h: int | None = field(default=None, compare=False)
    reader: str = field(
        default="", compare=False, repr=False
    )  # the Redis through which other homes are asked, and ask
    remote: bool = field(default=False, compare=False)  # a client without a store: cystore+remote://
    hosts: str = ""  # of the URL

    @classmethod
    def parse(cls, url: str | None, options: Mapping[str, Any] | None = None) -> Location:
        """Raises ImproperlyConfigured, which names the error in the URL or the options, or an option with two different
        values."""
        url, reader = _without_reader(url or "")
        try:
            parts = urlsplit(url)
        except ValueError:
            # Python's own text may contain the password.
            raise ImproperlyConfigured(f"result_backend {hidden(url)!r} is not a URL") from None
        if parts.scheme == REMOTE:
            return cls("", reader=_reader_in(parts) or reader, remote=True)
        if url == f"{SCHEME}://":
            return cls(
                "", reader=reader
            )  # no store on this host: results are sent to their home, see `homes`
        if parts.scheme != SCHEME or parts.fragment or not parts.path.strip("/"):
            raise ImproperlyConfigured(
                f"result_backend must look like {EXAMPLE} (three slashes), not {hidden(url)!r}"
            )
        if "@" in parts.netloc:
            raise ImproperlyConfigured(
                f"result_backend {hidden(url)!r}: a host of a replica's masters has no user and no password; "
                "the Redis of a client without a store stands in cystore+remote://"
            )
        if ";" in parts.path:
            raise ImproperlyConfigured(
                f"result_backend names more than one store, {hidden(url)!r}: results go to one store only, so name one "
                "(a broker may have others "
                "after a semicolon, a result backend may not; a semicolon in the path itself is written %3B)"
            )
        where = f"result_backend {hidden(url)!r}"
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            settings = _settings(pairs)
            where = "result_backend_transport_options"
            for name, value in _settings(_ours(options or {}).items()).items():
                if settings.setdefault(name, value) != value:
                    raise StoreConfigError(
                        f"{name} is {value!r} here and {settings[name]!r} in result_backend; give it once"
                    )
            where = "settings"
            outside = {name: value for name, (value, _) in given_outside().items()}
            if parts.netloc:
                from cystore.ha.link.address import masters_in  # a worker loads the rest of it after its fork

                where = f"result_backend {hidden(url)!r}"
                masters_in(parts.netloc)
        except ValueError as error:
            raise ImproperlyConfigured(f"{where}: {error}") from error
        settings = {**outside, **settings}
        return cls(str(real_path(unquote(parts.path))), settings, reader=reader, hosts=parts.netloc)

    @property
    def given(self) -> str:
        """The options, and the hosts if the URL names some."""
        return f"the options {self.settings}" + (f" and the hosts {self.hosts}" if self.hosts else "")

    def opened(self, config: StoreConfig, **more: Any) -> MessageStore:
        """`cystore.open` of this place."""
        return cystore.open(
            f"{SCHEME}://{self.hosts}{quote(self.path)}" if self.hosts else self.path, config=config, **more
        )

    def keeping(self, result_expires_s: float | None) -> Location:
        """The location for an app with this lifetime of results (None or 0: for ever). Its records are kept
        for that time or for `file_reserved_time_h`, whichever is longer, so cleaning never removes an unexpired result.
        If only a short `result_expires` (less than a day) is given, that is the retention."""
        if not result_expires_s:
            return dataclasses.replace(self, file_reserved_time_h=FOREVER_H)
        expires_h = min(math.ceil(result_expires_s / 3600), FOREVER_H)
        if "file_reserved_time_h" not in self.settings and expires_h < DAY_H:
            return dataclasses.replace(self, file_reserved_time_h=expires_h)
        reserved_h = StoreConfig.from_mapping({**DEFAULTS, **self.settings}).file_reserved_time_h
        return dataclasses.replace(self, file_reserved_time_h=max(reserved_h, expires_h))

    @property
    def compacts(self) -> bool:
        """Whether the options ask for compaction, so that retention need not be as long as the lifetime of results."""
        return names_results(StoreConfig.from_mapping(self.settings).compacted_topics)

    def config(self, **more: Any) -> StoreConfig:
        """Settings for `cystore.open`, with `more`. An existing store keeps the lengths of its files, and its retention
        (`keep_at_least`)."""
        given = {**self.settings, **more}
        suggested = dict(DEFAULTS)
        if any(name in given for name in LIGHT_QUEUES):
            suggested |= dict.fromkeys(LIGHT_QUEUES, False)
        if self.file_reserved_time_h is not None and not self.compacts:
            given.pop("file_reserved_time_h", None)
            suggested["file_reserved_time_h"] = self.file_reserved_time_h
            # A segment is removed as a whole: one that takes records for a day keeps the first of them for a day
            # longer.
            suggested["roll_interval_h"] = max(1, min(DAY_H, self.file_reserved_time_h // 4))
        return StoreConfig.from_mapping(given, suggested=suggested)

    def keep_at_least(self, store: MessageStore) -> None:
        """Makes the store keep records as long as the results need. A store that keeps them longer is left as it is:
        another app, or an operator (`cystore config`), wants that."""
        wanted_h, now_h = self.file_reserved_time_h, store.settings.file_reserved_time_h
        if compacts_results(store):
            return  # compaction keeps the results, and each record says for how long
        if wanted_h is None or store.config.read_only or wanted_h == now_h:
            return
        wanted, now = (value_text(RETENTION, hours) for hours in (wanted_h, now_h))
        if wanted_h > now_h:
            store.configure(file_reserved_time_h=wanted_h)
            log.info("%s: raised %s to %s from %s", store.path, RETENTION, wanted, now)
        else:
            log.info(
                "%s: %s is %s, longer than the %s that this app needs; `cystore config` can shorten that",
                store.path, RETENTION, now, wanted,
            )  # fmt: skip


def lifetime_s(name: str, value: Any) -> float | None:
    """The seconds in one of Celery's settings. None, 0, -1 and "never" are for ever, as None or 0. Raises
    ImproperlyConfigured."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value in FOREVER:
        return 0
    try:
        if 0 <= float(value) < math.inf:
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ImproperlyConfigured(f"{name} must be seconds, or 0, -1, None or 'never' for ever, not {value!r}")


def _without_reader(url: str) -> tuple[str, str]:
    """(the URL without its option `reader`, the value of that). The value may hold a password: it goes nowhere else."""
    head, question, query = url.partition("?")
    pairs = query.split("&") if question else []
    readers = [unquote(pair.partition("=")[2]) for pair in pairs if pair.partition("=")[0] == READER]
    if len(set(readers)) > 1:
        raise ImproperlyConfigured(f"result_backend: {READER} is given {len(readers)} times")
    kept = "&".join(pair for pair in pairs if pair.partition("=")[0] != READER)
    return head + (f"?{kept}" if kept else ""), readers[0] if readers else ""


def shown(url: str) -> str:
    """A result backend's URL as it may be shown: without the passwords of a reader."""
    url, reader = _without_reader(url)
    text = hidden(f"{SCHEME}+{url}" if url.startswith(f"{REMOTE}:") else url)
    return text + (f"{'&' if '?' in text else '?'}{READER}={hidden(reader)}" if reader else "")


def _reader_in(parts: SplitResult) -> str:
    """The Redis that stands in cystore+remote://USER:PASSWORD@HOST:PORT/DATABASE, empty where none does."""
    if parts.query or parts.fragment:
        raise ImproperlyConfigured("result_backend cystore+remote://: its only option is reader=redis://...")
    if not parts.netloc and not parts.path.strip("/"):
        return ""
    if not parts.netloc:
        raise ImproperlyConfigured(
            "result_backend cystore+remote:// has no path: it is for clients without a store. Write "
            "cystore+remote://HOST:PORT/DATABASE, or cystore+remote:// where the broker is the Redis"
        )
    return f"redis://{parts.netloc}{parts.path}"


def _ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of a Redis result backend: an app that had one keeps its settings."""
    theirs = sorted(name for name in options if name in (PREFIX, *OF_TRANSPORT, *OF_CLIENT))
    if theirs and tuple(theirs) not in _reported:
        _reported.add(tuple(theirs))
        log.warning(
            "result_backend_transport_options: %s: ignored, because they are options of Redis",
            ", ".join(theirs),
        )
    return {name: value for name, value in options.items() if name not in theirs}


def _settings(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The settings, typed and checked. A text may stand for a value of any type, as in a URL."""
    settings: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise StoreConfigError(f"there is no setting {name!r}")
        known = ALIASES.get(name, name)
        if known not in SETTINGS:
            raise StoreConfigError(
                f"there is no setting {name!r}{did_you_mean(name, (*ALIASES, READER, *SETTINGS))} (options are "
                f"{', '.join(ALIASES)}, {READER}, and the fields of cystore.StoreConfig)"
            )
        try:
            if isinstance(value, str):
                known, value = StoreConfig.parse_setting(f"{known}={value}")
            value = canonical(known, value)
            StoreConfig.from_mapping({known: value})
        except StoreConfigError as error:
            if known == name:
                raise
            raise StoreConfigError(f"{name}: {error}") from error
        if settings.setdefault(known, value) != value:
            raise StoreConfigError(f"{name} has two values, {settings[known]!r} and {value!r}")
    StoreConfig.from_mapping({**DEFAULTS, **settings})
    return settings


_reported: set[tuple[str, ...]] = set()
_open: dict[str, tuple[Location, weakref.ref[MessageStore]]] = {}
_refused: dict[str, tuple[Location, str]] = {}  # stores that this user may only read: how, and why
_kept: weakref.WeakKeyDictionary[Celery, dict[str, MessageStore]] = weakref.WeakKeyDictionary()
_kept_h: dict[str, int] = {}  # the least retention of each
_uses: Counter[str] = Counter()  # running uses of stores that are closed after the last one
_later: weakref.WeakSet[Celery] = (
    weakref.WeakSet()
)  # apps of workers that fork their pools before they open their store
_workers: weakref.WeakSet[Celery] = weakref.WeakSet()
# Such stores that were there when the worker started, with their directories' device and inode. Pool processes inherit
# them: a process that opens the store for the first time opens this directory, or none.
_found: dict[str, tuple[int, int]] = {}
_main_pid = os.getpid()  # the process that filled `_found`
_lock = threading.Lock()


def open_shared(location: Location, app: Celery | None = None) -> MessageStore:
    """This process's store at a location, opened by the first call. It stays open while an app keeps it: `app` does so
    until it is collected or closed, or until `release`. Raises StoreError if the store cannot be opened."""
    if location.path in _refused:
        raise StorePermissionError(_refused[location.path][1])
    return _open_now(location, app)


def _open_now(location: Location, app: Celery | None) -> MessageStore:
    held = _open.get(location.path)
    store = None if held is None else held[1]()
    if held is None or store is None or store.closed:
        with _lock:
            held = _open.get(location.path)
            store = None if held is None else held[1]()
            if held is None or store is None or store.closed:
                store = _opened(location)
                _kept_h.pop(location.path, None)
                if _found.pop(location.path, None) and os.getpid() != _main_pid:
                    _kept_h[location.path] = FOREVER_H  # the worker's main process sets the store's retention
                held = _open[location.path] = (location, weakref.ref(store))
    if held[0] is not location and held[0] != location:
        raise StoreConfigError(
            f"this process has the store open with {held[0].given}, not {location.given}",
            path=location.path,
        )
    if app is not None and _kept.get(app, {}).get(location.path) is not store:
        with _lock:
            _kept.setdefault(app, {})[location.path] = store
    if location.file_reserved_time_h is not None and location.file_reserved_time_h > _kept_h.get(
        location.path, -1
    ):
        _kept_h[location.path] = location.file_reserved_time_h
        location.keep_at_least(store)
    return store


def worker_begins(app: Celery) -> None:
    """A backend of this app checks from now on, when it is made, whether the worker can use its store."""
    _workers.add(app)


def is_of_worker(app: Celery) -> bool:
    """Whether this process is a worker of the app. Beat is none: it sends tasks, as any client."""
    return app in _workers


def open_later(app: Celery) -> None:
    """Lets a starting worker open its store after it forked its pool, if `put_off` finds the store."""
    _later.add(app)


def put_off(location: Location, app: Celery) -> bool:
    """Whether the worker of an app opens its store after it forked its pool: if it is there, and this user seems to be
    allowed to write to it. A store that RocketMQ made, and no process of ours opened, is opened at once."""
    global _main_pid
    root = Path(location.path)
    _found.pop(location.path, None)
    if app not in _later or not location.path or opened_at(location.path) is not None:
        return False
    try:
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK) or not (root / MANIFEST).is_file():
            return False
        _found[location.path], _main_pid = _directory(location.path), os.getpid()
    except (OSError, StoreError):  # the open reports it
        return False
    return True


def is_put_off(location: Location) -> bool:
    """Whether `put_off` found the store, and this process did not open it yet."""
    return location.path in _found


def moved(path: str) -> StoreMovedError | None:
    """The reason why this process does not open the store that its worker found; None if it may, or if it has opened
    it."""
    known = _found.get(path)
    try:
        if known is None or known == _directory(path):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:  # the open reports it
        return None
    return StoreMovedError(
        "the store's directory was moved, deleted or replaced since this worker started", path=path
    )


def _directory(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def is_missing(path: object) -> bool:
    """Whether there is no store at a path, and nothing else: an empty folder may wait for its disk."""
    try:
        return set(os.listdir(str(path))) <= {"lost+found"}
    except FileNotFoundError:
        return True
    except OSError:  # the open reports it
        return False


MAKES_IT = (
    "`celery -A APP cystore create` makes it, once; if there was one, its directory was moved or deleted, or its disk "
    "is not mounted"
)


def _opened(location: Location) -> MessageStore:
    """Opens the store. Refuses a pool of buffers: the steps of a chord, for example, have to be readable as soon as
    they are acknowledged."""
    reason = moved(location.path)
    if reason is not None:
        raise reason
    config = location.config(create=False) if location.path in _found else location.config()
    if not config.transient_store_pool_enable:
        try:
            store = location.opened(config)
        except StoreFormatError as error:
            if config.create or not is_missing(location.path):
                raise
            raise StoreFormatError(f"there is no store: {MAKES_IT}", path=location.path) from error
        if not store.settings.transient_store_pool_enable:
            store.follow_path(functools.partial(_followed, location, weakref.ref(store)))
            return store
        store.close()
    raise StoreConfigError(
        "transient_store_pool_enable: not for the store of a Celery app, whose processes have to see each record as "
        "soon as it is put",
        path=location.path,
    )


def _followed(location: Location, reference: weakref.ref[MessageStore]) -> None:
    """The store of this process continued in another directory at its path, for example a restored backup: that one
    keeps its records as long as this process needs them, too."""
    store, wanted_h = reference(), _kept_h.get(location.path)
    if store is None or wanted_h is None or (wanted_h == FOREVER_H and os.getpid() != _main_pid):
        return
    try:
        dataclasses.replace(location, file_reserved_time_h=wanted_h).keep_at_least(store)
    except StoreError as error:
        wanted = value_text(RETENTION, wanted_h)
        log.warning("%s: %s is not raised to %s: %s", location.path, RETENTION, wanted, error)


def open_to_read(location: Location, app: Celery | None = None) -> MessageStore:
    """`open_shared` for a reader: if this user may not write (root, for another user's store), the store is opened for
    reading. Later writes then raise StorePermissionError."""
    if location.path not in _refused:
        try:
            return open_shared(location, app)
        except StorePermissionError as error:
            if location.settings.get("read_only"):
                raise
            refused = str(error)
        reader = dataclasses.replace(location, settings={**location.settings, "read_only": True})
        with _lock:
            _refused[location.path] = (reader, refused)
        log.info("%s: opened for reading only: %s", location.path, refused)
    return _open_now(_refused[location.path][0], app)


def opened_at(path: str) -> MessageStore | None:
    """This process's store at a path; None if it is not open."""
    held = _open.get(path)
    store = None if held is None else held[1]()
    return None if store is None or store.closed else store


def release(location: Location, app: Celery) -> None:
    """The app stops using the store. The process closes it if no other app and no `for_a_while` uses it. A later use
    opens it again; one that another thread just began raises StoreClosedError. Raises NotDurableError."""
    with _lock:
        _kept.get(app, {}).pop(location.path, None)
        is_used = _uses[location.path] > 0 or any(location.path in kept for kept in _kept.values())
        store = None if is_used else opened_at(location.path)
    if store is not None:
        store.close()


@contextmanager
def for_a_while(location: Location, app: Celery) -> Iterator[None]:
    """Wraps uses of a store that this process must not keep open: `release` after the last one."""
    with _lock:
        _uses[location.path] += 1
    try:
        yield
    finally:
        with _lock:
            _uses[location.path] -= 1
        with suppress(NotDurableError):  # the store has logged it
            release(location, app)


def close_shared(**_signal: object) -> None:
    """Closes what `open_shared` opened; a later use opens it again."""
    with _lock:
        while _open:
            store = _open.popitem()[1][1]()
            if store is not None:
                with suppress(NotDurableError):  # the store has logged it
                    store.close()
        _kept.clear()
        _refused.clear()


def _forked() -> None:
    """A store attaches again by itself; the lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()
    _uses.clear()


os.register_at_fork(after_in_child=_forked)
# Pool processes end without Python's own exit handlers.
signals.worker_process_shutdown.connect(close_shared, weak=False)
