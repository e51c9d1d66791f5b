"""Lives of a store in RocketMQ's format whose records are damaged meanwhile: random bytes of records, numbers that no
checksum covers, queue files that are deleted, processes that are killed.

`python -m tests.support.damage.sessions FIRST COUNT` runs sessions by their seeds and prints those that fail."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import cystore
from cystore._native.record import record
from cystore.cli.program import main as command
from cystore.recovery.walk.log_reader import queue_places
from tests.support.damage.wrong_records import damage, flip, open_rocketmq, read_record, served, write_record

A, B = "%LMQ%a", "%LMQ%b"
DISPATCH_AT_ONCE = 0.1
Place = tuple[tuple[str, int], int]


class Stored(NamedTuple):
    """An acknowledged message, and the bytes of its record."""

    put: cystore.PutResult
    topic: str
    queue_id: int
    data: bytes
    body: bytes

    @property
    def places(self) -> list[Place]:
        return places_of(self.data)


class Wrong(AssertionError):
    """The store did something that it must not do."""


def places_of(data: bytes) -> list[Place]:
    """The places in queues that a record claims; none if it cannot be read."""
    status, fields = record.parse(data)
    return queue_places(fields) if status == "ok" else []


class Session:
    """One store and what was acknowledged in it."""

    def __init__(self, seed: int, folder: Path, faults: int) -> None:
        self._random, self._folder, self._faults = random.Random(seed), folder, faults
        self.root = folder / "0"
        self.stored: list[Stored] = []
        self.done: list[str] = []

    def run(self) -> None:
        """Some lives, then what an operator does."""
        for life in range(self._random.randint(1, 3)):
            self._live(life)
            if self._faults and self._random.random() < 0.5:
                self._strike("at rest")
            if self._random.random() < 0.15:
                self._delete_queue()
        for _ in range(2):
            with open_rocketmq(self.root) as store:
                self._check(store, "opened")
        with open_rocketmq(self.root, read_only=True) as store:
            self._check(store, "opened for reading", dispatch=False)
        with open_rocketmq(self.root) as store:
            store.clean()
        self._command("rebuild")
        with open_rocketmq(self.root) as store:
            self._check(store, "rebuilt")
            for topic in "TU":
                for queue_id in (0, 1):
                    self._put(store, topic, queue_id, ())
            self._check(store, "put")
        self._command("verify")
        self._check_verdicts()
        with open_rocketmq(self.root) as store:
            self._check(store, "opened again")

    # ------------------------------------------------------------------------------------------ the lives

    def _put(self, store: cystore.MessageStore, topic: str, queue_id: int, names: tuple[str, ...]) -> None:
        body = b"%d " % len(self.stored) * self._random.choice((1, 3, 40))
        more = {"INNER_MULTI_DISPATCH": ",".join(names)} if names else None
        put = store.put(topic, body, queue_id=queue_id, properties=more, flush="sync")
        data = bytes(read_record(self.root, put))
        clash = {place for one in self._intact() for place in one.places} & set(places_of(data))
        if clash:
            raise Wrong(f"queue offsets given twice: {clash}")
        self.stored.append(Stored(put, topic, queue_id, data, body))

    def _live(self, life: int) -> None:
        rng = self._random
        with open_rocketmq(self.root) as store:
            for _ in range(rng.randint(1, 40)):
                self._put(store, rng.choice("TTU"), rng.choice((0, 0, 1)), rng.choice(((), (), (A,), (A, B))))
                if rng.random() < DISPATCH_AT_ONCE:
                    store.dispatch()
                if self._faults and rng.random() < 0.05:
                    self._strike("under a live process")
            if rng.random() < 0.5:
                killed = self._folder / f"{life + 1}"
                shutil.copytree(self.root, killed)
                self.root = killed
                self.done.append("killed")

    def _strike(self, when: str) -> None:
        """Damages a record."""
        rng, self._faults = self._random, self._faults - 1
        left = [one for one in self.stored if read_record(self.root, one.put) == one.data]
        if not left:
            return
        one = rng.choice(left)
        what = rng.choice(("queue_offset", "queue_offset", "queue_id", "byte", "byte", "light"))
        if what == "queue_offset":
            bit = rng.choice((0, 0, 1, 2, 3, 5, 20, 40, 62))
            flip(self.root, one.put, "queue_offset", bit)
            what += f" bit {bit}"
        elif what == "queue_id":
            flip(self.root, one.put, "queue_id", 0)
        else:
            data = read_record(self.root, one.put)
            at = rng.randrange(len(data))
            if what == "light" and data.find(b"INNER_MULTI_QUEUE") >= 0:
                at = len(data) - 1
            data[at] ^= 1 << rng.randrange(8)
            write_record(self.root, one.put, data)
            what += f" {at} of {len(data)}"
        number = self.stored.index(one)
        self.done.append(f"{what} of record {number} {one.places} at {one.put.physical_offset} {when}")

    def _delete_queue(self) -> None:
        files = sorted(path for path in (self.root / "consumequeue").rglob("0*") if path.is_file())
        if files:
            gone = self._random.choice(files)
            gone.unlink()
            self.done.append(f"deleted {gone.relative_to(self.root)}")

    # ------------------------------------------------------------------------------------------ the checks

    def _intact(self) -> list[Stored]:
        """The undamaged records of which no damaged one claims a place: which of the two is right, nothing tells."""
        now = [bytes(read_record(self.root, one.put)) for one in self.stored]
        claims = Counter(
            place
            for one, data in zip(self.stored, now, strict=True)
            if data != one.data
            for place in places_of(data)
        )
        return [
            one
            for one, data in zip(self.stored, now, strict=True)
            if data == one.data and not any(place in claims for place in one.places)
        ]

    def _check(self, store: cystore.MessageStore, when: str, *, dispatch: bool = True) -> None:
        if dispatch:
            store.dispatch()
        queues: dict[tuple[str, int], dict[int, bytes]] = {}
        holes = store.stats()["holes"]
        for one in self._intact():
            at = one.put.physical_offset
            if any(begin <= at < end for begin, end in holes):
                raise Wrong(f"{when}: called damaged: {one.places} at {at}; holes {holes}")
            for key, number in one.places:
                if key not in queues:
                    queues[key] = served(store, *key)
                if queues[key].get(number) != one.body:
                    raise Wrong(f"{when}: not served: {key} {number} at {at}; holes {holes}")

    def _check_verdicts(self) -> None:
        intact = {one.put.physical_offset for one in self._intact()}
        for found in damage(self.root):
            if found.kind == "record" and any(found.begin <= at < found.end for at in intact):
                raise Wrong(f"verify names an intact record: {found}")

    def _command(self, name: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = command([name, str(self.root)])
        if code not in (0, 1):
            raise Wrong(f"cystore {name} ended with {code}: {out.getvalue()[-500:]}")


def run(seed: int, faults: int) -> None:
    """One session. Raises Wrong, or whatever the store raised."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        session = Session(seed, Path(folder), faults)
        try:
            session.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, {faults} faults: {'; '.join(session.done)}")
            raise


def main() -> int:
    first, count, faults = (int(word) for word in sys.argv[1:4])
    logging.getLogger("cystore").setLevel(logging.CRITICAL + 1)
    failed = 0
    for seed in range(first, first + count):
        try:
            run(seed, faults)
        except Exception:  # noqa: BLE001 - whatever a store raises is a finding
            failed += 1
            traceback.print_exc(limit=-1)
    sys.stdout.write(f"{failed} of {count} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
