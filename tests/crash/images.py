"""Stores as images: their files as bytes, written to memory and changed in place, and what must be there once they
are recovered."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cystore
from cystore.verify.verifier import verify
from tests.crash.matrix import Case
from tests.support.aftermath import aftermath
from tests.support.small_stores import SETTINGS

PAGE_BYTES = 4096
HANG_S = 600  # a case that takes so long hangs: it ends with every thread's stack
MEMORY = Path("/dev/shm")
Files = dict[str, bytes]


@dataclass(frozen=True)
class Put:
    """The messages of a store, and the place that it returned for each."""

    topic: str
    queue_id: int
    queue_offset: int
    begin: int
    end: int
    keys: tuple[str, ...]
    body: bytes

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


@contextmanager
def scratch(case: Case) -> Iterator[Path]:
    """A folder in memory where there is one; after a failure it is kept in the case's folder. Recoveries by the
    thousand say nothing that is no error."""
    logger = logging.getLogger("cystore")
    level = logger.level
    logger.setLevel(logging.ERROR)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    folder = Path(
        tempfile.mkdtemp(prefix="cystore-image-", dir=MEMORY if os.access(MEMORY, os.W_OK) else case.folder)
    )
    try:
        yield folder
    except BaseException:
        shutil.copytree(folder, case.folder / "image", dirs_exist_ok=True)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        logger.setLevel(level)
        faulthandler.cancel_dump_traceback_later()


def settings(rng: random.Random, **more: Any) -> dict[str, Any]:
    """Small files of different shapes."""
    return {
        **SETTINGS,
        "mapped_file_size_consume_queue_bytes": rng.choice([100, 400]) * 20,
        "max_hash_slot_num": rng.choice([11, 101, 1500]),
        "max_index_num": rng.choice([150, 1000]),
        **more,
    }


QUEUES = (("A", 0), ("A", 1), ("B", 0))


def put(
    store: cystore.MessageStore,
    rng: random.Random,
    number: int,
    *,
    flush: str = "async",
    queues: Sequence[tuple[str, int]] = QUEUES,
) -> Put:
    """One more message: to one of the queues, some with a key that others have too."""
    topic, queue_id = rng.choice(queues)
    keys = (f"k{number}", f"shared{number % 5}")[: rng.choice([1, 1, 2])]
    body = rng.randbytes(rng.choice([0, 7, 60, 200, 600]))
    r = store.put(topic, body, queue_id=queue_id, keys=keys, tags=f"t{number % 3}", flush=flush)
    return Put(
        topic, queue_id, r.queue_offset, r.physical_offset, r.physical_offset + r.size_bytes, keys, body
    )


def read_files(store: Path) -> Files:
    """Every file of a store by its path in there, but for `control`, which is nothing after a crash."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "control"
    }


def write_files(store: Path, files: Files) -> None:
    for name, data in files.items():
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Patches:
    """Writes into the files of an image that lies on disk; each file is opened once."""

    def __init__(self, store: Path) -> None:
        self._store, self._descriptors = store, dict[str, int]()

    def write(self, name: str, at: int, data: bytes) -> None:
        if name not in self._descriptors:
            self._descriptors[name] = os.open(self._store / name, os.O_RDWR)
        assert os.pwrite(self._descriptors[name], data, at) == len(data)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


# ------------------------------------------------------------------------------------------------ what must be there


@dataclass(frozen=True)
class Whole:
    """A store without any damage: its files as a clean close left them, its settings, and what was put into it.
    `before` are the files as they were durable at some earlier time."""

    settings: dict[str, Any]
    files: Files
    puts: list[Put]
    before: Files

    @property
    def wrote(self) -> int:
        return self.puts[-1].end

    def at(self, position: int) -> Put | None:
        """The message that has the log's byte at `position`; None in a blank and behind the end."""
        number = bisect_right(self.puts, position, key=lambda p: p.begin) - 1
        return self.puts[number] if number >= 0 and position < self.puts[number].end else None


def whole(
    path: Path,
    rng: random.Random,
    settings: dict[str, Any],
    enough: Callable[[list[Put]], bool],
    queues: Sequence[tuple[str, int]] = QUEUES,
) -> Whole:
    """Puts until that is enough, flushes and closes. `path` is gone afterwards."""
    puts: list[Put] = []
    before: Files = {}
    with cystore.open(path, **settings) as store:
        while not enough(puts):
            puts.append(put(store, rng, len(puts), queues=queues))
            if rng.random() < 0.02:
                store.flush()
                before = read_files(path)
    files = read_files(path)
    shutil.rmtree(path)
    return Whole(settings, files, puts, before)


def recover(
    path: Path,
    store: Whole,
    there: Sequence[Put],
    lost: Sequence[Put] | None = None,
    *,
    read_only: bool,
) -> None:
    """Opens a store that something was done to: `there` is there, nothing else; each of `lost` is reported, and with
    None, where the log is whole, no damage is. What was not opened for reading alone has no other fault when it is
    closed."""
    with cystore.open(path, read_only=read_only, **store.settings) as opened:
        report = opened.recovery
        assert report is not None
        reported = [*report.new_holes, *filter(None, (report.cut, report.lost))]
        for one in lost or ():
            assert any(b <= one.begin < e for b, e in reported), (one, str(report))
        assert lost is not None or not reported, str(report)
        check(opened, there)
    if read_only:
        return
    for found in verify(path, cystore.StoreConfig(**store.settings)):
        if found.reason.startswith("the shape of the file is unknown"):
            continue  # an index file cut behind its last entry holds all of them, and verify names it
        assert found.kind == "record" and (found.begin, found.end) in report.holes, found
    aftermath(path, store.settings, lambda opened: check(opened, there))


def without(puts: Iterable[Put], end: int, ranges: Sequence[tuple[int, int]]) -> list[Put]:
    """Those before the log's end that touch none of the ranges."""
    return [p for p in puts if p.end <= end and not any(p.begin < e and b < p.end for b, e in ranges)]


def check(store: cystore.MessageStore, there: Sequence[Put]) -> None:
    """These messages are there and no others, byte for byte: in the log, in their queues, under their keys."""
    found = [
        (m.physical_offset, m.physical_offset + m.size_bytes, m.topic, m.queue_id, m.queue_offset, m.keys)
        for m in store.scan()
    ]
    assert found == [(p.begin, p.end, p.topic, p.queue_id, p.queue_offset, p.keys) for p in there]
    queues: dict[tuple[str, int], list[Put]] = {}
    for one in there:
        queues.setdefault(one.queue, []).append(one)
    known = {(topic, number) for topic, numbers in store.topics().items() for number in numbers}
    for queue in known | set(queues):
        expected = [(p.queue_offset, p.begin, p.body) for p in queues.get(queue, [])]
        assert read_queue(store, *queue) == expected, queue
    check_keys(store, there)


def read_queue(store: cystore.MessageStore, topic: str, queue_id: int) -> list[tuple[int, int, bytes]]:
    """(queue offset, physical offset, body) of all messages of a queue; holes are stepped over."""
    found, at = [], 0
    minimum, maximum = store.topics().get(topic, {}).get(queue_id, (0, 0))
    at = minimum
    while at < maximum:
        got = store.get(topic, queue_id, at)
        assert got.next_offset > at, (topic, queue_id, at, got.status)
        found += [(m.queue_offset, m.physical_offset, bytes(m.body)) for m in got.messages]
        at = got.next_offset
    return found


def by_key(there: Iterable[Put]) -> dict[tuple[str, str], list[int]]:
    """Physical offsets of the messages with each (topic, key), newest first."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in there:
        for key in one.keys:
            found.setdefault((one.topic, key), []).insert(0, one.begin)
    return found


def check_keys(store: cystore.MessageStore, there: Iterable[Put]) -> None:
    """Each key is found, and nothing else under it."""
    for (topic, key), expected in by_key(there).items():
        found = [m.physical_offset for m in store.query(topic, key, len(expected) + 1)]
        assert found == expected, (topic, key)
