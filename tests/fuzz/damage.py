"""Damage anywhere in a store: whatever one or many damages are in whatever files, it opens, serves every undamaged
record that was acknowledged, takes new puts, and can be cleaned, rebuilt, verified and opened again.

`python -m tests.fuzz.damage --first SEED --count N` runs episodes; one that fails prints its seed and what was damaged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cystore
from cystore.cli.program import main as command
from cystore.errors import CorruptRecordError, OffsetError
from tests.support.small_stores import LOG_BYTES, SETTINGS

MEMORY = Path("/dev/shm")
TOPICS = ("A", "B", "C")
KINDS = 6
Files = dict[str, bytes]


@dataclass(frozen=True)
class Stored:
    """An acknowledged message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    body: bytes


@dataclass(frozen=True)
class Template:
    """The files of a store, and what was acknowledged in it."""

    settings: dict[str, Any]
    files: Files
    stored: tuple[Stored, ...]


def _files(root: Path) -> Files:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def _write(root: Path, contents: Files) -> None:
    for name, data in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _flip_in_log(root: Path, stored: Stored) -> None:
    base = stored.physical_offset - stored.physical_offset % LOG_BYTES
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(stored.physical_offset % LOG_BYTES + 95)
        file.write(b"\xff" * 4)


@cache
def template(kind: int) -> Template:
    """A store of a few segments: with extended units (kinds 1, 4), known holes (2, 4), RocketMQ's records (3), a lost
    tail (5); of even kinds also messages of a queue that all expired. It has delayed messages, too."""
    settings: dict[str, Any] = {
        **SETTINGS,
        "enable_consume_queue_ext": kind in (1, 4),
        "record_format": "rocketmq" if kind == 3 else "cystore",
        "max_queues": 64,
    }
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        root = Path(folder) / "store"
        stored = []

        def put(store: cystore.MessageStore, topic: str, number: int, **more: Any) -> None:
            body = b"%d" % number * (1 + number % 50)
            done = store.put(
                topic, body, queue_id=number % 2, keys=(f"k{number % 9}",), tags="red", flush="sync", **more
            )
            if not more:
                stored.append(
                    Stored(topic, number % 2, done.queue_offset, done.physical_offset, done.size_bytes, body)
                )

        with cystore.open(root, **settings) as store:
            if kind % 2 == 0:
                for number in range(6):
                    put(store, "Gone", number)
            for number in range(240):
                put(store, TOPICS[number % 3], number)
                if number % 40 == 0:
                    put(store, "A", number, delay_level=18)
                if number % 100 == 0:
                    store.dispatch()
        if kind in (2, 4):
            for bad in stored[50:52]:
                _flip_in_log(root, bad)
        if kind == 5:
            for bad in stored[-2:]:
                _flip_in_log(root, bad)
        if kind % 2 == 0:
            (root / "commitlog" / f"{0:020d}").unlink()
        with cystore.open(root, **settings) as store:
            for number in range(240, 250):
                put(store, TOPICS[number % 3], number)
        return Template(settings, _files(root), tuple(stored))


def damage(contents: Files, rng: random.Random) -> list[str]:
    """Damages one to five places; says what it did."""
    done = []
    for _ in range(rng.randint(1, 5)):
        # Each folder alike: most files are commit log or consume queue files.
        folders = sorted({name.split("/")[0] for name in contents})
        if not folders:
            break
        folder = rng.choice(folders)
        name = rng.choice(sorted(n for n in contents if n.split("/")[0] == folder))
        data = bytearray(contents[name])
        what = rng.choice(("flip", "flip", "zero", "zero", "noise", "cut", "delete"))
        if what == "delete" or not data:
            del contents[name]
            done.append(f"{name}: deleted")
            continue
        used = len(data.rstrip(b"\0")) or len(data)
        at = rng.randrange(used if rng.random() < 0.9 else len(data))
        length = rng.choice((1, 1, 2, 8, 20, 64, 512, 4096))
        if what == "cut":
            contents[name] = bytes(data[:at])
            done.append(f"{name}: cut to {at} bytes")
            continue
        if what == "flip":
            data[at] ^= 1 << rng.randrange(8)
        else:
            part = bytes(length) if what == "zero" else rng.randbytes(length)
            end = min(at + length, len(data))
            data[at:end] = part[: end - at]
        contents[name] = bytes(data)
        done.append(f"{name}: {what} {length if what != 'flip' else ''} at {at} of {len(data)}")
    return done


def _undamaged(before: Files, after: Files, stored: Stored) -> bool:
    base = stored.physical_offset - stored.physical_offset % LOG_BYTES
    name, at = f"commitlog/{base:020d}", stored.physical_offset - base
    if name not in before:
        return False
    record = before[name][at : at + stored.size_bytes]
    whole = int.from_bytes(record[16:20], "big") == stored.queue_id and stored.body in record
    return whole and after.get(name, b"")[at : at + stored.size_bytes] == record


def expected(one: Template, after: Files) -> list[Stored]:
    """The acknowledged records that must be served. What says how far the log was durable stands in two places; where
    the damage hit both, and the log too, the log may end at the damage."""
    left = [stored for stored in one.stored if _undamaged(one.files, after, stored)]
    witnesses = ("checkpoint", "config/queueOffset.json")
    damaged_log = any(
        name.startswith("commitlog/0") and after.get(name) != data for name, data in one.files.items()
    )
    if damaged_log and all(after.get(name) != one.files[name] for name in witnesses):
        first = min(
            (s.physical_offset for s in one.stored if s not in left and _undamaged(one.files, one.files, s)),
            default=1 << 62,
        )
        left = [stored for stored in left if stored.physical_offset < first]
    return left


def served(store: cystore.MessageStore, topic: str, queue_id: int) -> dict[int, bytes]:
    """Every message of a queue that can be read, by its queue offset."""
    found: dict[int, bytes] = {}
    queue = store.topics().get(topic, {}).get(queue_id)
    if queue is None:
        return found
    at = queue.min_offset
    while at < queue.max_offset:
        try:
            got = store.get(topic, queue_id, at)
        except CorruptRecordError:
            at += 1
            continue
        found.update((message.queue_offset, bytes(message.body)) for message in got.messages)
        at = max(got.next_offset, at + 1)
    return found


class Wrong(AssertionError):
    """The store did something that it must not do."""


def _check_served(store: cystore.MessageStore, wanted: list[Stored], when: str) -> None:
    queues = {(s.topic, s.queue_id): served(store, s.topic, s.queue_id) for s in wanted}
    for stored in wanted:
        if queues[stored.topic, stored.queue_id].get(stored.queue_offset) != stored.body:
            raise Wrong(f"{when}: not served: {stored}")


def _put_each(store: cystore.MessageStore, wanted: list[Stored], when: str) -> list[Stored]:
    added = []
    for topic in TOPICS:
        for queue_id in (0, 1):
            body = f"{when} {topic}".encode()
            done = store.put(topic, body, queue_id=queue_id, keys=(when,), flush="sync")
            used = [
                s
                for s in wanted
                if (s.topic, s.queue_id, s.queue_offset) == (topic, queue_id, done.queue_offset)
            ]
            if used:
                raise Wrong(
                    f"{when}: queue offset {done.queue_offset} of {topic}/{queue_id} is handed out twice"
                )
            added.append(
                Stored(topic, queue_id, done.queue_offset, done.physical_offset, done.size_bytes, body)
            )
    return added


def _command(*arguments: str) -> int:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = command(list(arguments))
    if code not in (0, 1):
        raise Wrong(f"cystore {' '.join(arguments[:1])} ended with {code}: {out.getvalue()[-500:]}")
    return code


def episode(seed: int, folder: Path) -> list[str]:
    """One store, damaged and used; gives what was damaged. Raises Wrong, or whatever the store raised."""
    rng = random.Random(seed)
    one = template(rng.randrange(KINDS))
    contents = dict(one.files)
    if rng.random() < 0.5:
        contents["abort"] = b""
    done = damage(contents, rng)
    root = folder / f"damaged-{seed}"
    _write(root, contents)
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    try:
        _use(root, one, expected(one, contents), rng)
    except BaseException as error:
        error.add_note(f"seed {seed}, damaged: {'; '.join(done)}")
        raise
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return done


def _use(root: Path, one: Template, wanted: list[Stored], rng: random.Random) -> None:
    if rng.random() < 0.3:
        with cystore.open(root, read_only=True, **one.settings) as store:
            _check_served(store, wanted, "opened for reading")
    with cystore.open(root, **one.settings) as store:
        store.dispatch()
        _check_served(store, wanted, "opened")
        wanted = wanted + _put_each(store, wanted, "put")
        store.dispatch()
        _check_served(store, wanted, "put")
        for number in range(9):
            with contextlib.suppress(CorruptRecordError, OffsetError):
                store.query("A", f"k{number}")
        store.clean()
    _command("rebuild", str(root))
    with cystore.open(root, **one.settings) as store:
        _check_served(store, wanted, "rebuilt")
    _command("verify", str(root))
    with cystore.open(root, **one.settings) as store:
        wanted = wanted + _put_each(store, wanted, "again")
        store.dispatch()
        _check_served(store, wanted, "opened again")


def run(first: int, count: int, *, stop: bool = True) -> int:
    """Runs episodes; the number of those that failed."""
    failed = 0
    logging.getLogger("cystore").setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        for seed in range(first, first + count):
            try:
                episode(seed, Path(folder))
            except Exception:
                if stop:
                    raise
                failed += 1
                traceback.print_exc(limit=-3)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    failed = run(options.first, options.count, stop=False)
    sys.stdout.write(f"{failed} of {options.count} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
