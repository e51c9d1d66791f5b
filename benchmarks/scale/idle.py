"""A hundred idle processes that are attached to one store: how often each wakes up, and which ones sync when another
process puts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import cystore
from cystore.derived.dispatch.flush import DerivedFlusher
from cystore.engine.files.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
PUTS_A_SECOND = 10


def switches(pid: int) -> int:
    """The number of times that the threads of a process went to sleep by themselves, which is the number of their
    wake-ups."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return total


def stay(root: Path) -> None:
    """Stays attached with all services until the parent closes the input. Then reports how often this process flushed
    and synced."""
    counts = {"queues": 0, "checkpoint": 0}
    flush, sync = DerivedFlusher._flush_dispatched, Checkpoint.sync

    def counted_flush(self: DerivedFlusher) -> None:
        counts["queues"] += 1
        flush(self)

    def counted_sync(self: Checkpoint) -> None:
        counts["checkpoint"] += 1
        sync(self)

    with cystore.open(root):
        DerivedFlusher._flush_dispatched, Checkpoint.sync = counted_flush, counted_sync  # type: ignore[method-assign]
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        sys.stdin.read(1)
        sys.stdout.write(json.dumps(counts))
        sys.stdout.flush()
        sys.stdin.read()


def idle(root: Path, processes: int, seconds: float) -> dict[str, float]:
    """Wake-ups a second, of the mean and the busiest process; then, while this process puts now and then, flushes of
    queues and syncs of the checkpoint a second, by all processes together."""
    command = [sys.executable, "-m", "benchmarks.scale.command", "--part", "stay", str(root)]
    attached: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            attached.append(process)
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError("a process did not attach")
        time.sleep(1)
        before = [switches(process.pid) for process in attached]
        time.sleep(seconds)
        woken = [switches(p.pid) - b for p, b in zip(attached, before, strict=True)]
        with cystore.open(root, services="none") as store:
            for _ in range(int(seconds * PUTS_A_SECOND)):
                store.put("T", b"x")
                time.sleep(1 / PUTS_A_SECOND)
        found = [json.loads(process.communicate(b"!")[0]) for process in attached]
    finally:
        for process in attached:
            if process.poll() is None:
                process.communicate()
    return {
        "mean": sum(woken) / seconds / processes,
        "most": max(woken) / seconds,
        "queues": sum(one["queues"] for one in found) / seconds,
        "checkpoint": sum(one["checkpoint"] for one in found) / seconds,
    }
