"""Damage under live processes: bytes of a store's files are flipped or zeroed, and files deleted, while several write
and read.

Survivors go on: puts are accepted, no wrong byte is served, and what was acknowledged and not hit is served.
Afterwards recovery reports what was hit, and serves the rest.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cystore
from cystore.engine.files.log_folders import FILE as LIST
from cystore.system.small_files import SPARE
from tests.crash.images import read_queue
from tests.crash.matrix import Case, Fault, Run
from tests.crash.shapes import Shape
from tests.support.aftermath import aftermath
from tests.support.processes import worker
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.worker import PUTS, right
from tests.support.small_stores import LOG_BYTES, SETTINGS

WRITERS = 3
HARMS_A_CASE = 3
ZEROED_MAX = 512
LIST_COPY = f"{LIST}.bak"  # of the folders of a log: with the list alone, an operator puts it in its place
LOG = "commitlog"
EXT = "consumequeue_ext"
SETTINGS_HERE: dict[str, Any] = {
    **SETTINGS,
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext_bytes": 16 * 1024,
}
CALLS = (*PUTS, *PUTS, "get", "query", "scan", "dispatch", "flush", "checkpoint", "wait", "stats")
# What a reader may be told. Everything else that raises is a finding.
READS = {"get", "query", "scan"}
DAMAGE = {"CorruptRecordError", "OffsetError"}

SERVED = """
def served(acknowledged):
    "Physical offsets of those that are not served, and why."
    lost = []
    for topic, queue_id, queue_offset, key, physical_offset, by_get in acknowledged:
        try:
            found = [w.store.read(physical_offset)]
            if by_get:
                found += w.store.get(topic, queue_id, queue_offset, 1).messages
        except cystore.StoreError as error:
            lost.append([physical_offset, str(error)])
            continue
        assert all(tests.support.processes.worker.right(m) for m in found), (topic, queue_id, queue_offset)
        if len(found) < 1 + by_get or any(m.keys != (key,) for m in found):
            lost.append([physical_offset, "not at its place"])
    return lost
import cystore
"""


class Harm:
    """The damage to the files; `ranges` are the changed bytes of the log."""

    def __init__(self, path: Path, rng: random.Random, shape: Shape) -> None:
        self.path, self.rng, self._shape = path, rng, shape
        self.ranges: list[tuple[int, int]] = []
        self.queues: set[tuple[str, str]] = set()  # topic and queue id of those whose files were harmed
        self.done: list[str] = []

    def strike(self, kind: str, wrote: int, flushed: int) -> None:
        """Does something to one file of a kind. `wrote`: nobody writes to the log below it any more. `flushed`: it is
        durable up to there; what is not can never be in a segment that has no name any more, and the store says
        so."""
        found = [p for p in sorted((self.path / kind).rglob("*")) if p.is_file() and p.stat().st_size]
        if kind == LOG:
            found = [p for p in self._shape.log_files(self.path) if int(p.name) < wrote]
        if kind == "config":  # a file that is just being written has no name to lose
            found = [p for p in found if p.suffix != SPARE and p.name != LIST_COPY]
        if not found:
            return
        file = self.rng.choice(found)
        # Without its first file a log looks as it does after a clean.
        can_go = kind != LOG or (file != found[0] and int(file.name) + LOG_BYTES <= flushed)
        harms = [self._flip, self._zero, *([self._delete] if can_go else [])]
        if kind == "config":  # nobody has these mapped
            harms.append(self._truncate)
        harm = self.rng.choice(harms)
        end = min(file.stat().st_size, wrote - int(file.name)) if kind == LOG else file.stat().st_size
        begin, end = harm(file, end)
        self.done.append(f"{harm.__name__} {os.path.relpath(file, self.path)} {begin}..{end}")
        if kind.startswith("consumequeue"):
            self.queues.add((file.parts[-3], file.parts[-2]))
        if kind == LOG:
            self.ranges.append((int(file.name) + begin, int(file.name) + end))

    def _flip(self, file: Path, end: int) -> tuple[int, int]:
        at = self.rng.randrange(end)
        fd = os.open(file, os.O_RDWR)
        try:
            byte = os.pread(fd, 1, at)[0] ^ 1 << self.rng.randrange(8)
            os.pwrite(fd, bytes([byte]), at)
        finally:
            os.close(fd)
        return at, at + 1

    def _zero(self, file: Path, end: int) -> tuple[int, int]:
        at = self.rng.randrange(end)
        until = min(end, at + self.rng.randrange(1, ZEROED_MAX))
        fd = os.open(file, os.O_RDWR)
        try:
            os.pwrite(fd, bytes(until - at), at)
        finally:
            os.close(fd)
        return at, until

    def _delete(self, file: Path, end: int) -> tuple[int, int]:
        file.unlink()
        return 0, end

    def _truncate(self, file: Path, end: int) -> tuple[int, int]:
        at = self.rng.randrange(end)
        os.truncate(file, at)
        return at, end

    def hit(self, one: Sequence[Any]) -> bool:
        """Whether bytes of an acknowledged message were hit."""
        begin, end = one[4], one[4] + one[5]
        return any(b < end and begin < e for b, e in self.ranges)


def run(run: Run, *, planted: str = "", kinds: Sequence[str] = ()) -> None:
    with Nursery() as nursery:
        nursery.do(worker.IMPORT)
        for case in run.cases(worth=HARMS_A_CASE):
            with run.case(case), case.in_memory() as folder:
                case.begin(folder / "store", SETTINGS_HERE)
                harm = Harm(folder / "store", case.rng, case.shape)
                try:
                    live(case, nursery, harm, run, planted, kinds or KINDS)
                except Exception as error:
                    error.add_note(f"done: {harm.done}")
                    raise


KINDS = (LOG, LOG, "consumequeue", EXT, "index", "config")


def live(case: Case, nursery: Nursery, harm: Harm, run: Run, planted: str, kinds: Sequence[str]) -> None:
    rng, path = case.rng, harm.path
    with ExitStack() as stack:
        workers = []
        for _ in range(WRITERS):
            settings = {**SETTINGS_HERE, "services": rng.choice(("none", "none", "all"))}
            workers.append(stack.enter_context(worker.born(nursery, path, settings, rng.randrange(1 << 40))))
        for one in workers:
            one.do(f"{SERVED}\nw.work(50, names)", names=CALLS)
        acknowledged: list[Any] = []
        for _ in range(HARMS_A_CASE):
            flushed, wrote = workers[0].do("[w.store.stats()[name] for name in ('flushed', 'wrote')]")
            for one in workers:
                one.send("w.work(25, names)", names=CALLS)
            harm.strike(rng.choice(kinds), wrote, flushed)
            for one in workers:
                one.answer()
            if planted:
                workers[0].do(planted)
            acknowledged = []
            for one in workers:
                mine, raised, _ = one.do("w.told()")
                wrong = [each for each in raised if each[0] not in READS or each[1] not in DAMAGE]
                assert not wrong, wrong[:3]
                acknowledged += mine
            for one in workers:
                one.do("w.committed()")
            survive(workers, harm, acknowledged)
        for one in workers:
            one.do("w.store.close()")
            one.end()
    if case.shape.folders:
        shutil.copy(path / "config" / LIST_COPY, path / "config" / LIST)
    recovered(path, harm, acknowledged)
    aftermath(path, SETTINGS_HERE, lambda store: whole(store, harm, acknowledged))
    run.tally(acknowledged=len(acknowledged), hit=sum(map(harm.hit, acknowledged)))


def survive(workers: Sequence[Child], harm: Harm, acknowledged: Sequence[Any]) -> None:
    """Each process serves what was not hit: by its place in the log and by its queue offset. A queue whose files were
    harmed is asked by offset as long as the log is whole."""
    rest = [
        (*one[:5], not harm.ranges or (one[0], str(one[1])) not in harm.queues)
        for one in acknowledged
        if not harm.hit(one)
    ]
    for one in workers:
        lost = one.do("served(acknowledged)", acknowledged=rest)
        assert not lost, (len(lost), lost[:3])


def recovered(path: Path, harm: Harm, acknowledged: Sequence[Any]) -> None:
    """The next to open finds what was not hit, and reports what was."""
    with cystore.open(path, **SETTINGS_HERE) as store:
        report = store.recovery
        assert report is not None
        told = [*report.holes, *filter(None, (report.cut, report.lost))]
        for one in filter(harm.hit, acknowledged):
            assert any(begin <= one[4] < end for begin, end in told) or is_right(store, one), (
                one,
                str(report),
            )
        whole(store, harm, acknowledged)


def is_right(store: cystore.MessageStore, one: Sequence[Any]) -> bool:
    """Whether the message is as it was put: the bytes that hit it were those that it had."""
    try:
        message = store.read(one[4])
    except cystore.StoreError:
        return False
    return message.keys == (one[3],) and right(message)


def whole(store: cystore.MessageStore, harm: Harm, acknowledged: Sequence[Any]) -> None:
    """Each acknowledged message that was not hit is served at its place and under its key, and no wrong one
    anywhere."""
    queues = {}
    for topic, numbers in store.topics().items():
        for queue_id in numbers:
            found = read_queue(store, topic, queue_id)
            offsets = [queue_offset for queue_offset, *_ in found]
            assert offsets == sorted(set(offsets)), (topic, queue_id)
            queues[topic, queue_id] = {queue_offset: rest for queue_offset, *rest in found}
    for one in acknowledged:
        topic, queue_id, queue_offset, key, physical_offset, *_ = one
        if harm.hit(one):
            continue
        place, body = queues[topic, queue_id][queue_offset]
        assert place == physical_offset and body == worker.body_of(key, len(body)), one
        assert [m.physical_offset for m in store.query(topic, key)] == [physical_offset], one


FAULT = Fault(
    "live-damage",
    "bytes of log, queue, ext, index and config files are flipped or zeroed, files deleted, under three "
    "processes that write",
    6_000,
    6 * HARMS_A_CASE,
    run,
)
