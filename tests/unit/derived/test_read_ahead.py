"""Goal: a second thread spares the dispatcher work, changes no byte, and never hides damage. Method: the thread's steps
are called by hand, in front of logs that end, go on in another file or are damaged; and whole dispatches run with the
thread."""

from __future__ import annotations

import _thread
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore import Message
from cystore.derived.dispatch import read_ahead
from cystore.layout import CONSTANTS
from cystore.results import GetStatus
from cystore.system.threads import os_threads

FILE_BYTES = 64 * 1024
COUNT = 2000
BODY = b"b" * 100
BODY_AT = 88  # in a record with IPv4 hosts
QUEUE_OFFSET_AT = 20
MAGIC_BLANK = CONSTANTS["RECORD_MAGIC_BLANK"][0] & 0xFFFFFFFF
AHEAD_BYTES, AHEAD_SKIP = 4 << 20, 256 << 10  # of ahead.pxd
SETTINGS: dict[str, Any] = {
    "services": (),
    "mapped_file_size_commit_log_bytes": FILE_BYTES,
    "mapped_file_size_consume_queue_bytes": 20 * 1000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}


def open_store(path: Path, file_bytes: int = FILE_BYTES) -> cystore.MessageStore:
    return cystore.open(path, mapped_file_size_commit_log_bytes=file_bytes, services=())


def filled(
    path: Path, count: int = COUNT, file_bytes: int = FILE_BYTES
) -> tuple[cystore.MessageStore, list[int]]:
    """A store with undispatched messages, and their physical offsets."""
    store = open_store(path, file_bytes)
    results = store.put_many([Message(topic="t", body=BODY, keys=f"k{n}") for n in range(count)])
    return store, [result.physical_offset for result in results]


def with_long_records(path: Path) -> cystore.MessageStore:
    """A store with 80 undispatched messages of 100 kB."""
    store = open_store(path, 16 << 20)
    store.put_many([Message(topic="t", body=b"b" * 100_000)] * 80)
    return store


def overwrite(path: Path, place: int, data: bytes, file_bytes: int = FILE_BYTES) -> None:
    """Writes `data` into the log, behind the store's back."""
    base = place - place % file_bytes
    with open(path / "commitlog" / f"{base:020d}", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, place - base)


def damage(path: Path, places: Iterable[int], file_bytes: int = FILE_BYTES) -> None:
    """Changes the body of each record at these places."""
    for place in places:
        overwrite(path, place + BODY_AT, b"B", file_bytes)


def damaged(store: cystore.MessageStore) -> list[int]:
    """The beginnings of the damaged ranges that the store knows."""
    return [begin for begin, _ in store._attached().commit_log.damaged_ranges.ranges()]


@dataclass
class Steps:
    """The thread's steps on one store, called by hand."""

    store: cystore.MessageStore

    def __post_init__(self) -> None:
        self.parts = self.store._attached()
        self.kernel = self.parts.dispatcher.kernel
        self.wrote = self.parts.control.wrote

    def read(self, begin: int, end: int | None = None, *, of: int | None = None) -> int:
        """Reads from `begin` in the segment that holds `of`, or `begin`; gives how far it came."""
        segment = self.parts.commit_log.segment_for(begin if of is None else of)
        return self.kernel.read_ahead(segment, begin, self.wrote if end is None else end)


@contextmanager
def begun(store: cystore.MessageStore, place: int = 0) -> Iterator[Steps]:
    """As a dispatch begins and ends the thread."""
    steps = Steps(store)
    assert steps.kernel.begin_ahead(place)
    yield steps
    steps.kernel.end_ahead()


def found(store: cystore.MessageStore) -> int:
    """Number of intact messages of the queue."""
    count = at = 0
    while (result := store.get("t", 0, at, 1024)).status in (
        GetStatus.FOUND,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_TOO_SMALL,
    ):
        count, at = count + len(result.messages), result.next_offset
    return count


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "LEAST_BYTES", 0)


def test_it_stops_at_the_end_of_a_file_of_the_log_and_at_damage(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s")
    with store, begun(store) as steps:
        damage(tmp_path / "s", places[-2:-1])
        assert steps.read(0) == FILE_BYTES == steps.kernel.read_until
        assert steps.read(0, places[3]) == places[3] == steps.kernel.read_until
        assert steps.read(places[-3], of=places[-2]) == places[-2] == steps.kernel.read_until
        assert steps.read(places[-2]) == places[-2]
        with pytest.raises(ValueError, match="is not in"):
            steps.read(places[-2], of=0)


def test_the_dispatcher_compares_the_checksums_that_it_did_not(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s")
    with store:
        with begun(store, places[2]) as steps:
            assert steps.read(places[2], places[20]) == places[20]
            # Damage behind its back shows which records the dispatcher itself verifies.
            damage(tmp_path / "s", [places[n] for n in (1, 2, 19, 20)])
            store.dispatch(max_bytes=1 << 30)
        assert damaged(store) == [places[1], places[20]]


def mixed(number: int) -> Message:
    """Messages with and without tags, with 0 to 8 keys, in several queues, delayed, and in light queues."""
    return Message(
        topic=f"t{number % 3}",
        queue_id=number % 2,
        body=BODY,
        keys=[f"k{number}-{n}" for n in range(number % 9)],
        tags="red" if number % 4 else None,
        delay_level=2 if number % 7 == 0 else 0,
        properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"} if number % 11 == 1 and number % 7 else None,
    )


def derived(path: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of each file of a queue, and the bytes of the index files, whose names are times."""
    queues = sorted((path / "consumequeue").glob("*/*/*"))
    return [(str(file.relative_to(path)), file.read_bytes()) for file in queues] + [
        ("index", file.read_bytes()) for file in sorted((path / "index").iterdir())
    ]


def test_what_it_read_gives_the_entries_that_a_dispatcher_alone_makes(tmp_path: Path) -> None:
    with cystore.open(tmp_path / "s", **SETTINGS) as store:
        store.put_many([mixed(n) for n in range(COUNT)])
        with begun(store) as steps:
            at = 0
            while at < steps.wrote:
                at = steps.read(at)
            store.dispatch(max_bytes=1 << 30)
        for log_file in (tmp_path / "s" / "commitlog").iterdir():
            (tmp_path / "alone" / "commitlog").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log_file, tmp_path / "alone" / "commitlog" / log_file.name)
    with cystore.open(tmp_path / "alone", **SETTINGS):
        pass
    assert derived(tmp_path / "s") == derived(tmp_path / "alone")


def test_it_leaves_the_next_records_to_a_dispatcher_that_has_taken_all(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s", file_bytes=1 << 20)
    with store:
        with begun(store) as steps:
            steps.read(0, places[20])
            store.dispatch(max_bytes=places[40])  # it reads the last ones itself
            behind = next(n for n in range(COUNT) if places[n] >= places[40] + AHEAD_SKIP)
            assert steps.read(places[20]) == steps.wrote
            damage(tmp_path / "s", [places[behind - 40], places[behind + 1]], 1 << 20)
            store.dispatch(max_bytes=1 << 30)
        assert damaged(store) == [places[behind - 40]]


def test_it_goes_on_behind_a_dispatcher_that_went_past_it(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s")
    with store, begun(store) as steps:
        steps.read(0, places[5])
        store.dispatch()
        damage(tmp_path / "s", places[100:101])  # it reads no record that is dispatched
        assert steps.read(places[5]) == FILE_BYTES


@pytest.mark.usefixtures("always_ahead")
def test_a_dispatch_with_it_meets_all_damage(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s")
    with store:
        lost = (0, 777, 778, COUNT - 1)
        damage(tmp_path / "s", [places[n] for n in lost])
        store.dispatch()
        assert store.stats()["dispatch_behind_bytes"] == 0
        assert found(store) == COUNT - len(lost)
        with begun(store):  # the thread has ended
            pass


@pytest.mark.usefixtures("always_ahead")
def test_a_blank_in_a_file_that_is_not_full_hides_no_damage_behind_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", 4 << 20) as store:
        results = store.put_many([Message(topic="t", body=BODY)] * COUNT)
        blank, wrong = (results[n].physical_offset for n in (100, 1500))
        overwrite(tmp_path / "s", blank, struct.pack(">iI", (4 << 20) - blank, MAGIC_BLANK), 4 << 20)
        overwrite(tmp_path / "s", wrong + QUEUE_OFFSET_AT, struct.pack(">q", 5000), 4 << 20)
        store.dispatch()
        assert damaged(store) == [blank, wrong]


def test_checksums_of_records_that_were_not_dispatched_are_compared_again(tmp_path: Path) -> None:
    store, places = filled(tmp_path / "s")
    with store:
        with begun(store) as steps:
            steps.read(0, places[20])
        damage(tmp_path / "s", places[10:11])
        store.dispatch()
        assert damaged(store) == [places[10]]


def test_it_waits_for_a_dispatcher_that_is_far_behind_and_can_be_ended(tmp_path: Path) -> None:
    with with_long_records(tmp_path / "s") as store, begun(store) as steps:
        kernel, reached = steps.kernel, []
        assert not kernel.begin_ahead(0)  # there is one such thread
        thread = threading.Thread(target=lambda: reached.append(steps.read(0)))
        thread.start()
        while kernel.read_until <= AHEAD_BYTES:
            assert thread.is_alive()
        kernel.stop_ahead()
        thread.join()
        assert AHEAD_BYTES < reached[0] < AHEAD_BYTES + 300_000 < steps.wrote
        assert kernel.read_until == reached[0]


@pytest.mark.usefixtures("always_ahead")
def test_a_process_with_too_many_threads_dispatches_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    store, _ = filled(tmp_path / "s", 10)
    with store:
        with monkeypatch.context() as patch:
            patch.setattr(os_threads, "start", refuse)
            store.dispatch()
        assert found(store) == 10
        assert store._attached().dispatcher.kernel.begin_ahead(0)


@pytest.mark.usefixtures("always_ahead")
def test_beside_greenlets_it_is_a_thread_of_the_operating_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greenlet(*_: object) -> int:
        raise AssertionError("it would wait in the dispatcher's thread for the dispatcher")

    run, native = read_ahead.ReadAhead._run, []

    def seen(ahead: read_ahead.ReadAhead) -> None:
        native.append(os_threads.is_native())
        run(ahead)

    store, _ = filled(tmp_path / "s", 10)
    with store:
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", greenlet)  # as gevent and eventlet do
            patch.setattr(threading, "_start_new_thread", greenlet)
            patch.setattr(os_threads, "before_native", [])
            patch.setattr(read_ahead.ReadAhead, "_run", seen)
            store.dispatch()
        assert found(store) == 10
        assert native == [True]


@pytest.mark.usefixtures("always_ahead")
def test_a_signal_while_it_begins_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[os_threads.Thread] = []

    def interrupted(*arguments: Any) -> None:
        made.append(thread(*arguments))
        raise KeyboardInterrupt

    thread = os_threads.Thread
    with with_long_records(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            patch.setattr(os_threads, "Thread", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.dispatch()
        assert made[0].join(60)
        with begun(store):
            pass
        store.dispatch()
        assert found(store) == 80


@pytest.mark.usefixtures("always_ahead")
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_after_an_error_before_it_begins_a_later_dispatch_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    targets: list[Callable[[], None]] = []

    def interrupted(target: Callable[[], None], *_: Any) -> None:
        targets.append(target)
        raise error

    store, _ = filled(tmp_path / "s", 10)
    with store:
        with monkeypatch.context() as patch:
            patch.setattr(os_threads, "Thread", interrupted)
            with pytest.raises(error):
                store.dispatch()
        with begun(store) as steps:
            targets[0]()  # a thread that begins late takes nothing from the next one
            assert not steps.kernel.begin_ahead(0)
        store.dispatch()
        assert found(store) == 10


@pytest.mark.unsanitized  # the sanitizer needs its own memory
def test_without_memory_for_its_entries_there_is_none(tmp_path: Path) -> None:
    code = (
        "import os, resource, sys\n"
        "import cystore\n"
        "with cystore.open(sys.argv[1], services=()) as store:\n"
        "    kernel = store._attached().dispatcher.kernel\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')\n"
        "    before, held = resource.getrlimit(resource.RLIMIT_AS), []\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 22), before[1]))\n"
        "    try:\n"
        "        while True:\n"
        "            held.append(bytearray(1 << 20))\n"
        "    except MemoryError:\n"
        "        has_begun = kernel.begin_ahead(0)\n"
        "    resource.setrlimit(resource.RLIMIT_AS, before)\n"
        "    print(has_begun, kernel.begin_ahead(0))\n"
        "    kernel.end_ahead()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False True\n", done.stderr
