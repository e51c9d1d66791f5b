"""`python -m benchmarks memory`: private memory of a process that is attached to a large store.

A store of 10 GiB is made; another process attaches and reads all over it. The figure is its anonymous memory (RssAnon),
which no other process shares, without that of a bare interpreter. Pages of the mapped files belong to the page cache.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import cystore

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "Large"
BODY_BYTES = 128 << 10
READS = 20_000
GOAL_MB = 20.0
BARE = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('RssAnon')][0])"


def private_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e6


def fill(root: Path, size_bytes: int) -> None:
    body = bytes(range(256)) * (BODY_BYTES // 256)
    count = -(-size_bytes // (BODY_BYTES + 200))
    with cystore.open(root) as store:
        for start in range(0, count, 64):
            store.put_many(
                [
                    cystore.Message(topic=TOPIC, body=body, keys=(f"k{number}",))
                    for number in range(start, min(start + 64, count))
                ]
            )
        store.dispatch()


def attached(root: Path) -> None:
    """Prints this process's memory after the import, after the attach, and after reads all over the store."""
    shown = [private_mb()]
    with cystore.open(root) as store:
        shown.append(private_mb())
        count, draw = store.topics()[TOPIC][0].max_offset, random.Random(1)
        for _ in range(READS):
            number = draw.randrange(count)
            if store.get(TOPIC, 0, number, 1).messages[0].physical_offset is None:
                raise RuntimeError(f"not found: {number}")
        for _ in range(READS // 10):
            if not store.query(TOPIC, f"k{draw.randrange(count)}"):
                raise RuntimeError("a key was not found")
        shown.append(private_mb())
    print(*shown)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--gib", type=float, default=10, help="size of the store (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    bare = subprocess.run([sys.executable, "-c", BARE], text=True, capture_output=True, check=True)
    floor = int(bare.stdout) * 1024 / 1e6
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        root = Path(scratch) / "store"
        fill(root, int(options.gib * (1 << 30)))
        command = [sys.executable, "-m", "benchmarks.store.memory", str(root)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    imported, after, read = (float(text) for text in done.stdout.split())
    print(
        f"private memory of a process attached to {options.gib:g} GiB, MB above the interpreter's {floor:.1f}:"
    )
    print(f"  cystore imported {imported - floor:5.1f}")
    print(f"  attached         {after - floor:5.1f}")
    reached = read - floor <= GOAL_MB
    print(
        f"  after {READS:,} reads {read - floor:5.1f}; goal <= {GOAL_MB:g}: {'pass' if reached else 'MISS'}"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    attached(Path(sys.argv[1]))
