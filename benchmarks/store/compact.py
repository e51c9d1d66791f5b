"""`python -m benchmarks compact [--records N] [--rounds N]`: compaction beside a scan of the same log.

The log has N records, and a tenth as many keys. Meanwhile a writer appends to the same store, and a reader looks for
newest records, each in a process of its own. Measured in turn:

* `compact`: the first compaction of the whole log, with the write and fsync of the compacted file;
* `scan`: `store.scan()`, one message object a record, as a program reads a log;
* `bare`: a kernel that parses each record, compares its checksum, and keeps nothing: the fastest that a scan can be.

Other work of the machine, and its disk, cost wall time; the CPU time of this process does not count them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import cystore
from benchmarks.store import columns
from cystore import Message

TOPIC = "state"
BODY_BYTES = 100
BATCH = 1000
WRITES_PER_S = 2_000  # puts of the concurrent writer
SETTINGS = {"compacted_topics": TOPIC, "mapped_file_size_commit_log_bytes": 256 << 20}


def fill(path: Path, records: int) -> None:
    """Makes the store, its log durable and dispatched."""
    keys = max(records // 10, 1)
    body = bytes(BODY_BYTES)
    with cystore.open(path, **SETTINGS) as store:
        for begin in range(0, records, BATCH):
            numbers = range(begin, min(begin + BATCH, records))
            # 7919 and the number of keys have no common divisor, so neighbouring records have distant keys.
            store.put_many(
                [Message(topic=TOPIC, body=body, keys=(f"key-{n * 7919 % keys}",)) for n in numbers]
            )
        store.dispatch()
        store.flush()


def _write(path: Path, stop: Event) -> None:
    with cystore.open(path) as store:
        while not stop.is_set():
            begun = time.perf_counter()
            for number in range(WRITES_PER_S // 20):
                store.put(TOPIC, bytes(BODY_BYTES), keys=(f"key-{number}",))
            time.sleep(max(0.05 - (time.perf_counter() - begun), 0))


def _read(path: Path, stop: Event) -> None:
    with cystore.open(path) as store:
        number = 0
        while not stop.is_set():
            number += 1
            store.latest(TOPIC, f"key-{number % 1000}")
            time.sleep(0.001)


@contextmanager
def beside(path: Path):
    """A writer and a reader in processes of their own."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers = [context.Process(target=work, args=(path, stop)) for work in (_write, _read)]
    for worker in workers:
        worker.start()
    try:
        yield
        if not all(worker.is_alive() for worker in workers):
            raise RuntimeError("the writer or the reader ended early")
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def _compact(store: cystore.MessageStore, end: int) -> int:
    shutil.rmtree(store.path / "compacted", ignore_errors=True)
    return store.compact(end).looked_at


def _scan(store: cystore.MessageStore, end: int) -> int:
    return sum(1 for _ in store.scan(0, end))


def _bare(store: cystore.MessageStore, end: int) -> int:
    return columns.scan(list(store.snapshot().segments(0, end)))


CASES: dict[str, Callable[[cystore.MessageStore, int], int]] = {
    "compact": _compact, "scan": _scan, "bare": _bare
}  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compact", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args(arguments)
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    of_cpu: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "store"
        fill(path, args.records)
        with cystore.open(path) as store:
            end = store.wrote_position
            with beside(path):
                for _ in range(args.rounds):
                    for name, run in CASES.items():
                        begun, cpu = time.perf_counter(), time.process_time()
                        found = run(store, end)
                        if found != args.records:
                            raise RuntimeError(f"{name} met {found} records of {args.records}")
                        of_cpu[name].append(found / (time.process_time() - cpu))
                        rates[name].append(found / (time.perf_counter() - begun))
            size = max(entry.stat().st_size for entry in (store.path / "compacted").iterdir())
    print(
        f"{args.records} records of {end / args.records:.0f} bytes, {args.records // 10} keys; kept {size} bytes"
    )
    for what, measured in (("second", rates), ("second of CPU time", of_cpu)):
        medians = {name: statistics.median(found) for name, found in measured.items()}
        for name, found in measured.items():
            spread = f"{min(found):,.0f} to {max(found):,.0f}"
            ratio = (
                f"; compact / {name}: {medians['compact'] / medians[name]:.2f}" if name != "compact" else ""
            )
            print(f"{name:8} {medians[name]:>12,.0f} records in a {what} ({spread}){ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
