"""Bit flips: one bit of a stored file is another one, under an open store and before it is opened."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import cystore
from cystore._native.derived import index as index_kernel
from cystore._native.scan import log_walk
from cystore.engine.files.checkpoint import parse_checkpoint
from cystore.errors import CorruptRecordError, OffsetError
from tests.crash import images
from tests.crash.images import Patches, Put, Whole
from tests.crash.matrix import Case, Fault, Run

FLIPS = 1 << 16  # of a case
LOG_TAIL_BYTES = 64 * 1024
LOG_CASES = 8 * LOG_TAIL_BYTES // FLIPS  # together every bit of the tail
OPENED = (
    48  # of the flips of a case the store is opened with so many; with the others it is read while it is open
)
ON_DISK_EVERY = 6  # of those, one in so many is recovered on the disk
READ_EVERY = 16  # flips of the log for one that is read by offset and key too
SLOTS, CAPACITY = 1500, 2980  # an index file of a little more than FLIPS bytes
QUEUE_ENTRIES = FLIPS // 20 + 1
SLICE_STEP = (
    8  # in a slice one byte in so many of a queue: each flip is healed from the log, which takes its time
)
PART = FLIPS  # one case or two; the seed chooses their kind
# So large that recovery walks over all of the log after a clean close too: it begins with the last three files at the
# latest.
LOG_SETTINGS = {"mapped_file_size_commit_log_bytes": 1 << 20}
CHECKPOINT_BYTES = 4096
OFFSETS = "config/queueOffset.json"


def first_name(store: Whole, folder: str) -> str:
    return next(name for name in store.files if name.startswith(folder))


def flip(store: Whole, name: str, at: int, bit: int) -> bytes:
    return bytes([store.files[name][at] ^ 1 << bit])


def open_some(store: Whole, folder: Path, rng: random.Random, flips: list[tuple[str, int, int]]) -> None:
    """Opens the store with each of these flips (file, byte, bit), after a clean close or a crash: what the log has is
    there."""
    path, copy = folder / "image", folder / "copy"
    images.write_files(path, store.files)
    patches = Patches(path)
    for number, (name, at, bit) in enumerate(flips):
        patches.write(name, at, flip(store, name, at, bit))
        if rng.random() < 0.5:
            (path / "abort").touch()
        else:
            (path / "abort").unlink(missing_ok=True)
        there, lost = store.puts, None
        if name.startswith("commitlog/"):
            hit = store.at(int(name.removeprefix("commitlog/")) + at)
            assert hit is not None
            lost = [hit]
            there = [p for p in store.puts if p is not hit]
        on_disk = number % ON_DISK_EVERY == 0
        if on_disk:
            shutil.copytree(path, copy)
        images.recover(copy if on_disk else path, store, there, lost, read_only=not on_disk)
        shutil.rmtree(copy, ignore_errors=True)
        patches.write(name, at, store.files[name][at : at + 1])
    patches.close()
    shutil.rmtree(path)


# ------------------------------------------------------------------------------------------------------------ the log


def log(run: Run, case: Case, folder: Path, part: int) -> None:
    """Every bit of a part of the last 64 KiB: the record is none for the scan, nor for a read."""
    rng = random.Random(f"{run.row.seed} log {case.number // len(ROUND)}")  # the same log for all parts
    settings = images.settings(rng, mapped_file_size_commit_log_bytes=LOG_TAIL_BYTES)
    store = images.whole(
        folder / "live", rng, settings, lambda puts: bool(puts) and puts[-1].end > 2 * LOG_TAIL_BYTES
    )
    begin = store.wrote - LOG_TAIL_BYTES + part * (FLIPS // 8)
    refused = 0
    path = folder / "open"
    images.write_files(path, store.files)
    patches = Patches(path)
    scanner = log_walk.LogWalker(follow_queues=False)
    following = {a.begin: b.begin for a, b in zip(store.puts, store.puts[1:], strict=False)}
    with cystore.open(path, **settings) as opened:
        for position in range(begin, begin + FLIPS // 8):
            hit = store.at(position)
            base = position - position % LOG_TAIL_BYTES
            name = f"commitlog/{base:020d}"
            data = bytearray(store.files[name])
            for bit in range(8):
                data[position - base] ^= 1 << bit
                if hit is not None:
                    refuse(scanner, data, base, hit, following)
                    patches.write(name, position - base, data[position - base : position - base + 1])
                    refuse_reads(opened, hit, by_key=(position * 8 + bit) % READ_EVERY == 0)
                    refused += 1
                data[position - base] ^= 1 << bit
            patches.write(name, position - base, data[position - base : position - base + 1])
    patches.close()
    hits = [p for p in range(begin, begin + FLIPS // 8) if store.at(p) is not None]
    places = [(p - p % LOG_TAIL_BYTES, p % LOG_TAIL_BYTES) for p in case.rng.sample(hits, OPENED)]
    flips = [(f"commitlog/{base:020d}", at, case.rng.randrange(8)) for base, at in places]
    open_some(store, folder, case.rng, flips)
    run.tally(records_refused=refused, opened=OPENED)


def refuse(
    scanner: log_walk.LogWalker, data: bytearray, base: int, hit: Put, following: dict[int, int]
) -> None:
    """The walk stops at the record, and continues at the next one of the file."""
    end = base + len(data)
    scanner.limit = hit.end
    scanner.move(hit.begin, end)
    status = scanner.run(data, len(data), base)
    assert status == log_walk.INVALID and scanner.position == hit.begin, (hit, status)
    after = following.get(hit.begin, end)
    scanner.move(hit.begin + 1, end)
    until = min(after + 4096, end) - base
    assert scanner.find(data, until, base) == (after if after < end else -1), hit


def refuse_reads(store: cystore.MessageStore, hit: Put, *, by_key: bool) -> None:
    try:
        message = store.read(hit.begin)
    except (CorruptRecordError, OffsetError):
        pass
    else:
        raise AssertionError(f"a damaged record was read: {message!r}")
    if by_key:
        for found in (
            lambda: store.query(hit.topic, hit.keys[0]),
            lambda: store.get(hit.topic, hit.queue_id, hit.queue_offset, 1).messages,
        ):
            with contextlib.suppress(CorruptRecordError):
                assert hit.begin not in [m.physical_offset for m in found()], hit


# ----------------------------------------------------------------------------------------------------- derived files


def queue(run: Run, case: Case, folder: Path) -> None:
    """One bit of each byte of a consume queue: it gives its messages, or an error, and never another message."""
    settings = images.settings(
        case.rng,
        mapped_file_size_consume_queue_bytes=QUEUE_ENTRIES * 20,
        max_index_num=20_000,
        **LOG_SETTINGS,
    )
    store = images.whole(
        folder / "live", case.rng, settings, lambda puts: len(puts) == QUEUE_ENTRIES, [("A", 0)]
    )
    name = first_name(store, "consumequeue/A/0/")
    path = folder / "open"
    images.write_files(path, store.files)
    patches = Patches(path)
    served = refused = 0
    step = SLICE_STEP if run.row.wanted <= PART else 1
    case.faults = FLIPS // step
    with cystore.open(path, **settings) as opened:
        for at in range(case.rng.randrange(step), FLIPS, step):
            patches.write(name, at, flip(store, name, at, case.rng.randrange(8)))
            try:
                found = opened.get("A", 0, at // 20, 1).messages
            except (CorruptRecordError, OffsetError):
                found, refused = [], refused + 1
            for message in found:
                one = store.puts[message.queue_offset]
                assert (message.physical_offset, message.keys) == (one.begin, one.keys), at
                assert bytes(message.body) == one.body, at
                served += 1
            patches.write(name, at, store.files[name][at : at + 1])
    patches.close()
    open_some(
        store,
        folder,
        case.rng,
        [(name, case.rng.randrange(FLIPS), case.rng.randrange(8)) for _ in range(OPENED)],
    )
    run.tally(entries_served=served, entries_refused=refused, opened=OPENED)


def index(run: Run, case: Case, folder: Path) -> None:
    """One bit of each byte of an index file: a key gives messages that have it, and no others."""
    settings = images.settings(case.rng, max_hash_slot_num=SLOTS, max_index_num=CAPACITY, **LOG_SETTINGS)
    store = images.whole(
        folder / "live", case.rng, settings, lambda puts: sum(len(p.keys) for p in puts) >= CAPACITY - 2
    )
    name = first_name(store, "index/")
    expected = images.by_key(store.puts)
    entries = [(p.topic, key) for p in store.puts for key in p.keys]
    slots: dict[int, tuple[str, str]] = {
        index_kernel.key_hash(topic.encode(), key.encode()) % SLOTS: (topic, key) for topic, key in entries
    }
    path = folder / "open"
    images.write_files(path, store.files)
    patches = Patches(path)
    whole = part = 0
    with cystore.open(path, **settings) as opened:
        for at in range(FLIPS):
            number = (at - 40 - 4 * SLOTS) // 20 - 1
            wanted = entries[number] if 0 <= number < len(entries) else case.rng.choice(entries)
            if 40 <= at < 40 + 4 * SLOTS:
                wanted = slots.get((at - 40) // 4, wanted)
            patches.write(name, at, flip(store, name, at, case.rng.randrange(8)))
            right = expected[wanted]
            found = [m.physical_offset for m in opened.query(*wanted, len(right) + 1)]
            assert sorted(set(found), reverse=True) == found and set(found) <= set(right), (at, wanted)
            whole, part = whole + (found == right), part + (found != right)
            patches.write(name, at, store.files[name][at : at + 1])
    patches.close()
    open_some(
        store,
        folder,
        case.rng,
        [(name, case.rng.randrange(FLIPS), case.rng.randrange(8)) for _ in range(OPENED)],
    )
    run.tally(keys_found=whole, keys_found_in_part=part, opened=OPENED)


def checkpoint(run: Run, case: Case, folder: Path) -> None:
    """Every bit of checkpoints: those that say something else are opened, half of them each time. Some of offset
    tables too."""
    for number in range(FLIPS // (8 * CHECKPOINT_BYTES)):
        store = images.whole(
            folder / "live", case.rng, images.settings(case.rng), lambda puts: len(puts) == 40
        )
        page = bytearray(store.files["checkpoint"])
        before, flips = parse_checkpoint(page), []
        for at in range(CHECKPOINT_BYTES):
            for bit in range(8):
                page[at] ^= 1 << bit
                if parse_checkpoint(page) != before and bit % 2 == number % 2:
                    flips.append(("checkpoint", at, bit))
                page[at] ^= 1 << bit
        table = store.files[OFFSETS]
        flips += [(OFFSETS, case.rng.randrange(len(table)), case.rng.randrange(8)) for _ in range(OPENED)]
        open_some(store, folder, case.rng, flips)
        run.tally(opened=len(flips))


KINDS: dict[str, Callable[[Run, Case, Path], None]] = {
    "queue": queue,
    "index": index,
    "checkpoint": checkpoint,
}
# All cases of a round together are every bit of a log's last 64 KiB and 28 x 64 KiB of queues and of index files.
ROUND = ["log", *KINDS] + ["log"] * (LOG_CASES - 1) + ["checkpoint"] * 3 + ["queue", "index"] * 27


def run(run: Run) -> None:
    for case in run.cases(worth=FLIPS):
        with run.case(case), images.scratch(case) as folder:
            number = (run.row.seed + case.number) % len(ROUND)
            if ROUND[number] == "log":
                log(run, case, folder, ROUND[:number].count("log"))
            else:
                KINDS[ROUND[number]](run, case, folder)


FAULT = Fault(
    "bit-flips",
    "every bit of a log's last 64 KiB, one a byte over consume queues and index files, every bit of checkpoints",
    len(ROUND) * FLIPS,
    PART,
    run,
)
