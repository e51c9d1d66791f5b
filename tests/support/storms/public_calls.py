"""Every public call of the library, with arguments that fit: for storms, and for tests that change one argument.

`found` looks for the calls by itself: the public names of `MessageStore`, of the objects that its properties and calls
give, and of the package. `ROWS` has a row for each of them. `check_rows` fails for a call without a row, for a row
without a call, and for an argument that a row leaves out.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cystore
from cystore.arrivals.queue_watch import Watched
from cystore.services.duty_table import DutyRun, Outcome
from tests.support.interrupts import descriptors
from tests.support.small_stores import SETTINGS as SMALL

SETTINGS: dict[str, Any] = {
    "services": (),
    "max_queues": 1000,
    "compacted_topics": "C",
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext_bytes": 64 * 1024,
    "transaction_timeout_ms": 1,
    "transaction_check_interval_ms": 1,
    "os_page_cache_busy_timeout_ms": 10_000,
}
WAIT_S = 0.002  # the longest wait of a call for something that does not come
MANY = "*"  # the arguments of a row for `*names`

LOCKED = (cystore.StoreLockedError, cystore.StoreTimeoutError, cystore.PageCacheBusyError)
# Calls that another owner may refuse, whatever this thread is doing.
MAY_BE_LOCKED: dict[str, tuple[type[Exception], ...]] = {
    "Dispatchers.remove": (cystore.StoreLockedError,),  # a process runs it
    "Dispatchers.reset": (cystore.StoreLockedError,),
    # A with block that the program has; a signal handler does not get into one of its own thread.
    "Duties.step": (cystore.StoreTimeoutError,),
    # In a handler that interrupts a dispatch, or such a call, of its own thread.
    "MessageStore.check_transactions": (cystore.StoreLockedError,),
    "MessageStore.commit": (cystore.StoreLockedError,),
    "MessageStore.compact": (cystore.StoreLockedError,),
    "MessageStore.rollback": (cystore.StoreLockedError,),
    "MessageStore.close": (cystore.StoreLockedError,),  # it opens a handle of its own first
    "cystore.open": (cystore.StoreLockedError,),
    # The lock of a key, in the handler of a call with the same key.
    "MessageStore.put": (cystore.StoreLockedError,),
    "MessageStore.put_once": (cystore.StoreLockedError,),
}

Given = dict[str, Any]
Row = Callable[["World"], Given]


def _nothing(*_: Any, **__: Any) -> None:
    """A function that a program gives."""


@dataclass
class World:
    """An open store, and an object of each kind that it makes. Use it as a context manager."""

    path: Path
    rng: random.Random
    store: cystore.MessageStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.open()
        for queue_id in range(4):
            self.store.put("T", b"first", queue_id=queue_id, keys=("k",))
        self.store.put("C", b"newest", keys=("k",))
        self.half = self.store.begin("T", b"half")
        mark, folder = self.store.archive_mark, str(self.path.parent / "archive")
        self.archived = mark.read() or mark.begin("archive", folder)  # an earlier world's store may have one
        self.consumer = self.store.consumer("g", "T", invisible_ms=1 << 40)
        self.dispatcher = self.store.dispatchers.add("d", _nothing)
        self.listener = self.store.listen("T", _nothing)
        # The thread of asyncio's waits ends when nobody waits: then the number of threads changes by itself.
        self.store._watch("aio").add(Watched("never", None, _nothing, _nothing))

    def open(self) -> cystore.MessageStore:
        return cystore.open(self.path, **{**SMALL, **SETTINGS})

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    # ------------------------------------------------------------------------------------------ what rows give

    def message(self) -> cystore.Message:
        """A message that the store has."""
        return self.store.get("T", 0, 0, 1).messages[0]

    def a_half(self) -> Any:
        """A transaction that was open a moment ago."""
        self.half = self.store.begin("T", b"half")
        return self.half

    def ranges(self) -> list[Any]:
        """The segments of the log."""
        return list(self.store.snapshot().segments(0, self.store.wrote_position))

    def descriptors(self) -> list[str]:
        """The store's open files, sorted, without the spare ones of its locks of names."""
        return [one for one in descriptors() if str(self.path) in one and not one.endswith(".lock")]

    def left_open(self, before: list[str]) -> list[str]:
        """The store's files that are open now and were not before."""
        return sorted((Counter(self.descriptors()) - Counter(before)).elements())

    def stop_dispatchers(self) -> None:
        """Stops those that calls added and lost by an exception: the store keeps a dispatcher that nobody stops."""
        for one in list(self.store._attached().dispatchers.values()):
            if one is not self.dispatcher:
                one.close()

    def some(self, count: int) -> int:
        return self.rng.randrange(count)

    # ------------------------------------------------------------------------------------------------ calls

    def target(self, name: str) -> Any:
        """The object that has the call."""
        of = name.rpartition(".")[0]
        return FRESH[name](self) if name in FRESH else TARGETS[of](self)

    def call(self, name: str, given: Given) -> Any:
        """Makes a call, and takes what it gives: a coroutine runs, an iterator is read, and an object that can be
        closed is closed. Closes what a target was made for."""
        target = self.target(name)
        many = given.pop(MANY, ())
        if name.startswith("AsyncStore.") and asyncio._get_running_loop() is not None:
            return None  # a handler inside of a loop cannot wait for another one
        result = getattr(target, name.rpartition(".")[2])(*many, **given)
        return self._taken(result)

    def _taken(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            return _run(result)
        if isinstance(result, AsyncIterator):
            return _run(_first_of(result))
        if isinstance(result, Iterator):
            return list(itertools.islice(result, 20))
        if result is not self.store and not isinstance(result, type) and hasattr(result, "close"):
            result.close()
        elif hasattr(result, "__enter__") and type(result).__name__ == "Held":
            with contextlib.suppress(cystore.FencedError), result:
                pass
        return result

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Each public call, with fitting arguments that are new each time."""
        return {name: partial(self.tried, name) for name in ROWS}

    def calls_without_loops(self) -> dict[str, Callable[[], Any]]:
        """The calls that are no coroutines. A handler must not make these, because it cannot wait for a thread that may
        need what its own thread has; and asyncio's loop does not bear an exception of a handler."""
        return {name: call for name, call in self.calls().items() if not name.startswith("AsyncStore.")}

    def tried(self, name: str) -> Any:
        """Makes a call that may be refused because an earlier one changed the store, but not because of a lock."""
        try:
            return self.call(name, ROWS[name](self))
        except LOCKED as error:
            if name in MAY_BE_LOCKED and type(error) in MAY_BE_LOCKED[name]:
                return None
            raise
        except cystore.StoreError:
            return None


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in a loop of its own: an exception of a handler breaks the loop that it comes in."""
    with contextlib.closing(work), asyncio.Runner() as runner:
        return runner.run(work)


async def _first_of(messages: AsyncIterator[Any]) -> Any:
    """The first thing that an endless iterator gives, if it comes soon."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await anext(messages)
    except TimeoutError:
        return None
    finally:
        await messages.aclose()  # type: ignore[attr-defined]


# Where the calls are looked up.
TARGETS: dict[str, Callable[[World], Any]] = {
    "cystore": lambda w: cystore,
    "ArchiveMark": lambda w: w.store.archive_mark,
    "ArrivingListener": lambda w: w.listener,
    "AsyncStore": lambda w: w.store.aio,
    "Consumer": lambda w: w.consumer,
    "Dispatcher": lambda w: w.dispatcher,
    "Dispatchers": lambda w: w.store.dispatchers,
    "Duties": lambda w: w.store.duties,
    "Filters": lambda w: w.store.filters,
    "Groups": lambda w: w.store.groups,
    "LogSnapshot": lambda w: w.store.snapshot(),
    "Message": lambda w: w.message(),
    "MessageId": lambda w: cystore.MessageId,
    "MessageStore": lambda w: w.store,
    "Contains": lambda w: cystore.Contains("x"),
    "SqlFilter": lambda w: cystore.SqlFilter("p = 'q'"),
    "WholeLog": lambda w: w.store.whole,
}
# Calls that end their object get one of their own.
FRESH: dict[str, Callable[[World], Any]] = {
    "ArrivingListener.close": lambda w: w.store.listen("T", _nothing),
    "Consumer.close": lambda w: w.store.consumer("other", "T"),
    "Dispatcher.close": lambda w: w.store.dispatchers.add("ends", _nothing),
    "Dispatcher.stop": lambda w: w.store.dispatchers.add("stops", _nothing),
    "MessageStore.close": lambda w: w.open(),
}
# Names of the package that a program does not call.
NO_CALLS = {
    "GetResult": "made by reads",
    "HalfMessage": "made by begin",
    "MessageStore": "made by open",
    "PutResult": "made by puts",
    "QueueRange": "made by topics",
    "Consumer": "made by consumer",
    "Dispatcher": "made by dispatchers.add",
    "MessageId": "a pair; its own calls have rows",
    "StoreConfig": "its fields are checked one by one: tests/unit/attachment/test_config.py",
}
# Classes of what calls give or take, whose own calls only show what is in them.
NO_ROWS = {"StoreConfig", "LogRange", "RecoveryReport", "FilterProgram", "Hold"}


def _commits(half: Any, message: cystore.Message) -> str:
    return "commit"


def _message(w: World) -> Given:
    return {
        "topic": w.rng.choice(("T", "U")),
        "body": b"b" * w.some(400),
        "queue_id": w.some(4),
        "keys": ("k",),
        "tags": "a",
        "properties": {"p": "q"},
        "flag": w.some(9),
    }


def _soon(w: World) -> Given:
    return {"deliver_at_ms": None, "delay_ms": w.rng.choice((None, 1 + w.some(20)))}


def _put(w: World) -> Given:
    """A put of one of the kinds."""
    kinds: list[Given] = [{}, {}, {"unique_key": "u"}, {"delay_level": 1}, {"dedup_key": f"d{w.some(50)}"}]
    kinds += [_soon(w), {"every_ms": 1000, **dict.fromkeys(("busy_timeout_ms", "expires_at_ms"))}]
    return {
        **_message(w),
        "flush": w.rng.choice(("async", "async", "sync")),
        "busy_timeout_ms": 10_000,
        "expires_at_ms": 1 << 45,
        "unique_key": None,
        "delay_level": 0,
        **dict.fromkeys(("deliver_at_ms", "delay_ms", "dedup_key", "every_ms", "until_ms")),
        "missed": "once",
        **w.rng.choice(kinds),
    }


def _read(w: World) -> Given:
    return {"topic": "T", "queue_id": w.some(4), "queue_offset": 0, "max_count": 8}


def _filtered(w: World) -> Given:
    """A read that chooses messages."""
    return {**_read(w), "tags": "a || b", "filter": "p = 'q'", "group": "g", "raw": False}


def _entry(w: World) -> Given:
    """A queue and an offset in it."""
    return {"topic": "T", "queue_id": w.some(4), "queue_offset": 0}


def _never(w: World) -> Given:
    """A wait for a message that does not come."""
    return {"topic": "T", "queue_id": w.some(4), "queue_offset": 1 << 40, "timeout_s": WAIT_S}


def _nothing_given(w: World) -> Given:
    return {}


def _archive(w: World) -> Given:
    return {"archive_id": "archive", "folder": "/archive", "format": "parquet", "table": ""}


def _of_flush(w: World) -> Given:
    return {"duty": "flush"}


ROWS: dict[str, Row] = {
    # ------------------------------------------------------------------------------------------- the package
    "cystore.Message": lambda w: {
        **_message(w),
        **dict.fromkeys(("sys_flag", "reconsume_times", "prepared_transaction_offset", "delay_level"), 0),
        "born_timestamp_ms": 1,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:1",
        "unique_key": "u",
        **_soon(w),
        "expires_at_ms": 1 << 45,
    },
    "cystore.Contains": lambda w: {"texts": ("x", b"y")},
    "cystore.SqlFilter": lambda w: {"expression": "p = 'q' AND n > 3"},
    "cystore.open": lambda w: {"path": w.path, "config": None, "progress": _nothing, **SMALL, **SETTINGS},
    "Message.text": lambda w: {"encoding": "utf-8", "errors": "strict"},
    "MessageId.of": lambda w: {"message": w.message()},
    "MessageId.parse": lambda w: {"text": str(cystore.MessageId.of(w.message()))},
    "SqlFilter.matches": lambda w: {"properties": {"p": "q"}},
    # ------------------------------------------------------------------------------------------------- puts
    "MessageStore.put": _put,
    "MessageStore.put_many": lambda w: {
        "messages": [cystore.Message(**_message(w)) for _ in range(w.some(8) + 1)],
        "flush": w.rng.choice(("async", "sync")),
        "batch": False,
    },
    "MessageStore.put_once": lambda w: {
        **_message(w),
        "dedup_key": f"o{w.some(50)}",
        "window_ms": 1000,
        "flush": "async",
        "busy_timeout_ms": 10_000,
        "expires_at_ms": 1 << 45,
        **_soon(w),
    },
    "MessageStore.check_room": lambda w: {"refused": True},
    "MessageStore.check_reserved_space": _nothing_given,
    "MessageStore.check_takes_puts": _nothing_given,
    "MessageStore.check_usable": _nothing_given,
    "MessageStore.set_writable": lambda w: {"writable": True},
    "MessageStore.wait_replicated": _nothing_given,
    # ------------------------------------------------------------------------------------------------ reads
    "MessageStore.get": _filtered,
    "MessageStore.query": lambda w: {
        "topic": "T",
        "key": "k",
        "max_count": 5,
        "begin_ms": 0,
        "end_ms": 1 << 50,
    },
    "MessageStore.query_many": lambda w: {"topic": "T", "keys": ["k", "none"], "max_count": 5},
    "MessageStore.read": lambda w: {"physical_offset": w.message().physical_offset},
    "MessageStore.read_by_id": lambda w: {"message_id": cystore.MessageId.of(w.message())},
    "MessageStore.scan": lambda w: {"begin": None, "end": None, "filter": "p = 'q'"},
    "MessageStore.offset_by_time": lambda w: {
        "topic": "T",
        "queue_id": w.some(4),
        "timestamp_ms": 1,
        "boundary": w.rng.choice(("nearest", "lower", "upper")),
    },
    "MessageStore.earliest_time_ms": lambda w: {"topic": "T", "queue_id": w.some(4)},
    "MessageStore.message_ids": lambda w: {"topic": "T", "queue_id": w.some(4), "begin": 0, "end": 3},
    "MessageStore.is_in_disk": _entry,
    "MessageStore.latest": lambda w: {"topic": "C", "key": "k", "certain": False},
    "MessageStore.compacted": lambda w: {"topic": "C"},
    "MessageStore.snapshot": _nothing_given,
    "MessageStore.topics": _nothing_given,
    "MessageStore.stats": _nothing_given,
    "MessageStore.put_bytes_by_topic": _nothing_given,
    "WholeLog.query": lambda w: {"topic": "T", "key": "k", "max_count": 5},
    "WholeLog.scan_undispatched": _nothing_given,
    # ------------------------------------------------------------------------------------------------ waits
    "MessageStore.wait": _never,
    "MessageStore.wait_log": lambda w: {"physical_offset": 1 << 45, "timeout_s": WAIT_S},
    "MessageStore.wait_key": lambda w: {"key": "k", "seen": w.store.key_seen("k"), "timeout_s": WAIT_S},
    "MessageStore.wake_key": lambda w: {"key": "k"},
    "MessageStore.key_seen": lambda w: {"key": "k"},
    "MessageStore.ring_at_append": lambda w: {"ring": _nothing},
    "MessageStore.next_queue_offset": lambda w: {"topic": "T", "queue_id": w.some(4)},
    "MessageStore.catch_up": _nothing_given,
    "MessageStore.listen": lambda w: {"topic": "T", "function": _nothing, "queue_id": w.some(4)},
    "ArrivingListener.close": _nothing_given,
    "AsyncStore.get": lambda w: {**_filtered(w), "timeout_s": WAIT_S},
    "AsyncStore.tail": lambda w: {
        "topic": "T",
        "queue_id": w.some(4),
        "begin": 0,
        "tags": "a",
        "filter": "p = 'q'",
    },
    "AsyncStore.wait": _never,
    # ----------------------------------------------------------------------------------------------- upkeep
    "MessageStore.close": _nothing_given,
    "MessageStore.flush": _nothing_given,
    "MessageStore.flush_log": _nothing_given,
    "MessageStore.checkpoint": _nothing_given,
    "MessageStore.dispatch": lambda w: {"max_bytes": w.rng.choice((None, 4096)), "timeout_s": 1.0},
    "MessageStore.cancel": lambda w: {"topic": "T", "key": "k", "physical_offset": None},
    "MessageStore.reschedule": lambda w: {
        "topic": "T",
        "key": "k",
        "deliver_at_ms": 1 + w.some(2) * (1 << 40),
        "physical_offset": None,
    },
    "MessageStore.pending": lambda w: {"topic": "T", "begin_ms": 0, "end_ms": 1 << 45},
    "MessageStore.deliver": lambda w: {"max_messages": 10, "timeout_s": 1.0},
    "MessageStore.clean": lambda w: {"max_segments": w.rng.choice((None, 1)), "forcibly": False},
    "MessageStore.clean_due": _nothing_given,
    "MessageStore.compact": lambda w: {"up_to": w.store.wrote_position, "progress": _nothing},
    "MessageStore.compact_due": _nothing_given,
    "MessageStore.let_pages_go": _nothing_given,
    "MessageStore.follow_path": lambda w: {"followed": _nothing},
    "MessageStore.delete_topic": lambda w: {"topic": "U"},
    "MessageStore.remove_unused_queues": _nothing_given,
    "MessageStore.configure": lambda w: {"file_reserved_time_h": w.some(9) + 1},
    "MessageStore.hold": lambda w: {"name": "h", "physical_offset": 0, "max_age_ms": 1000},
    "MessageStore.release": lambda w: {"name": "h"},
    "MessageStore.holds": _nothing_given,
    "MessageStore.archived": _nothing_given,
    "MessageStore.resume_cleaning": _nothing_given,
    "MessageStore.scrub": lambda w: {"max_bytes": 16 * 1024, "pause_ms": 0},
    **{f"MessageStore.{n}": _nothing_given for n in ("used_disk_percent", "asked_to_leave", "believe_clock")},
    "ArchiveMark.begin": _archive,
    "ArchiveMark.end": _nothing_given,
    "ArchiveMark.read": _nothing_given,
    "ArchiveMark.move": lambda w: {"before": w.archived, "after": w.archived},
    "ArchiveMark.restore": lambda w: {"archived": w.archived},
    "Duties.acquire": lambda w: {"duty": "flush", "ttl_ms": 0},
    "Duties.release": lambda w: {"duty": "flush", "token": w.some(9)},
    "Duties.step": lambda w: {"duty": "flush", "token": 1 << 40, "ttl_ms": 0, "wait_ms": 1000},
    **{f"Duties.{n}": _of_flush for n in ("highest_token", "last", "lease", "lease_left_ms")},
    "Duties.ran": lambda w: {"duty": "flush", "run": DutyRun(1, 2, 3, Outcome.DONE)},
    # ---------------------------------------------------------------------------------------------- snapshot
    "LogSnapshot.base_of": lambda w: {"position": 1},
    "LogSnapshot.boundary": lambda w: {"position": 1},
    "LogSnapshot.part": lambda w: {"begin": 0, "end": 100},
    "LogSnapshot.segments": lambda w: {"begin": 0, "end": w.store.wrote_position},
    "LogSnapshot.pieces": lambda w: {
        "begin": 0,
        "end": w.store.wrote_position,
        "piece_bytes": 4096,
        "at_most": False,
    },
    "LogSnapshot.place": _entry,
    "LogSnapshot.queue_offset_at": lambda w: {"topic": "T", "queue_id": w.some(4), "position": 1},
    "LogSnapshot.last_message": lambda w: {
        "topic": "T",
        "queue_id": w.some(4),
        "end": w.store.wrote_position,
    },
    "LogSnapshot.record": lambda w: {"position": w.message().physical_offset},
    "LogSnapshot.begins_after": lambda w: {"ranges": w.ranges(), "end_ms": 1 << 50},
    "LogSnapshot.ends_before": lambda w: {"ranges": w.ranges(), "begin_ms": 1},
    # ---------------------------------------------------------------------------------------------- groups
    "Groups.names": lambda w: {"internal": False},
    "Groups.offsets": lambda w: {"group": "g"},
    "Groups.offset": lambda w: {"group": "g", "topic": "T", "queue_id": w.some(4)},
    "Groups.lag": lambda w: {"group": "g"},
    "Groups.lags": lambda w: {"internal": False},
    "Groups.reads": lambda w: {"group": "g"},
    "Groups.all_reads": _nothing_given,
    "Groups.commit": lambda w: {"group": f"g{w.some(300)}", "topic": "T", "queue_id": w.some(4), "offset": 1},
    "Groups.move": lambda w: {"group": f"g{w.some(300)}", "topic": "T", "queue_id": w.some(4), "offset": 1},
    "Groups.reset": lambda w: {
        "group": f"g{w.some(300)}",
        "topic": "T",
        "to": w.rng.choice(("first", "last", 1)),
        "queue_id": w.some(4),
        "force": True,
    },
    "Groups.remove": lambda w: {"group": f"g{w.some(300)}"},
    "Groups.save": _nothing_given,
    "Groups.pull": lambda w: {
        **{name: value for name, value in _filtered(w).items() if name not in ("queue_offset", "raw")},
        "timeout_s": WAIT_S,
    },
    "Groups.count_get": lambda w: {
        "group": "g",
        "topic": "T",
        "queue_id": 0,
        "result": w.store.get("T", 0, 0),
    },
    "Filters.add": lambda w: {"group": "f", "topic": "T", "expression": "p = 'q'"},
    "Filters.remove": lambda w: {"group": "f", "topic": "T"},
    "Filters.list": _nothing_given,
    "MessageStore.consumer": lambda w: {
        "group": f"h{w.some(3)}",
        "topics": ("T", "U"),
        "tags": "a",
        "filter": "p = 'q'",
        "begin": w.rng.choice(("first", "last", 1)),
        "invisible_ms": 1000,
        "max_reconsume_times": 3,
        "max_in_flight": 9,
    },
    "Consumer.poll": lambda w: {"max_count": 3, "timeout_s": WAIT_S},
    "Consumer.ack": lambda w: {MANY: w.consumer.poll(2) or [w.message()]},
    "Consumer.retry": lambda w: {
        "message": (w.consumer.poll(1) or [w.message()])[0],
        "delay_level": 0,
        "delay_ms": 5,
    },
    "Consumer.close": _nothing_given,
    # ----------------------------------------------------------------------------------------- dispatchers
    "Dispatchers.add": lambda w: {
        "name": "added",
        "function": _nothing,
        "begin": "last",
        "max_count": 3,
        "durable_only": False,
        "hold": w.rng.choice((False, True)),
        "hold_max_age_ms": 1000,
    },
    "Dispatchers.remove": lambda w: {"name": "added"},
    "Dispatchers.reset": lambda w: {"name": "added", "to": "first"},
    "Dispatchers.states": lambda w: {"damaged": {}},
    "Dispatcher.wait": lambda w: {"timeout_s": WAIT_S},
    "Dispatcher.close": lambda w: {"timeout_s": 10.0},
    "Dispatcher.stop": _nothing_given,
    # ---------------------------------------------------------------------------------------- transactions
    "MessageStore.begin": lambda w: {**_message(w), "producer_group": "p", "flush": "async", **_soon(w)},
    "MessageStore.commit": lambda w: {"half": w.a_half(), "flush": "async"},
    "MessageStore.rollback": lambda w: {"half": w.a_half(), "flush": "async"},
    "MessageStore.open_transactions": lambda w: {"older_than_ms": 0},
    "MessageStore.set_aside_transactions": _nothing_given,
    "MessageStore.check_transactions": lambda w: {"check": _commits},
}


# ------------------------------------------------------------------------------------------------ the finder


def signature(name: str) -> inspect.Signature | None:
    """The arguments of a call; None for a class of the kernels, which does not tell them."""
    of, _, method = name.rpartition(".")
    function = getattr(cystore if of == "cystore" else CLASSES[of], method)
    try:
        found = inspect.signature(function)
    except ValueError:
        return None
    return found.replace(parameters=[one for one in found.parameters.values() if one.name != "self"])


CLASSES: dict[str, type] = {}


def found(world: World) -> set[str]:
    """The names of all public calls: of the package, of `MessageStore`, and of every object of the library's own that
    its properties and calls give."""
    names = [*cystore.__all__]
    calls = {
        f"cystore.{name}" for name in names if name not in NO_CALLS and not _is_plain(getattr(cystore, name))
    }
    waiting: list[Any] = [world.store, cystore.SqlFilter("p = 'q'"), cystore.MessageId("127.0.0.1:1", 0)]
    waiting += [TARGETS[name](world) for name in TARGETS if name != "cystore"]
    waiting += [call() for call in world.calls().values()]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, (list, tuple)) and one:
            waiting.append(one[0])
        if isinstance(one, dict) and one:
            waiting += next(iter(one.items()))
        cls = one if isinstance(one, type) else type(one)
        if not cls.__module__.startswith("cystore") or cls.__name__ in CLASSES or cls.__name__ in NO_ROWS:
            continue
        CLASSES[cls.__name__] = cls
        for name in _public(cls):
            member = inspect.getattr_static(cls, name)
            if callable(getattr(cls, name)) and not isinstance(member, property):
                calls.add(f"{cls.__name__}.{name}")
            elif not isinstance(one, type):
                with contextlib.suppress(cystore.StoreError):  # of a closed object
                    waiting.append(getattr(one, name))
    return calls


def _is_plain(value: object) -> bool:
    """A class of errors or of constants."""
    return isinstance(value, type) and issubclass(value, (Exception, enum.Enum))


def _public(cls: type) -> list[str]:
    """The public names of a class, without those of Python's own classes below it."""
    foreign = {
        name for base in cls.__mro__ if not base.__module__.startswith("cystore") for name in vars(base)
    }
    return [name for name in dir(cls) if not name.startswith("_") and name not in foreign]
