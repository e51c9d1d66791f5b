"""A hundred processes that are attached to one store and do nothing: how often each wakes up, and who syncs when
somebody puts."""

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
    """How often the threads of a process went to sleep of themselves: each time something woke them."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return total


def stay(root: Path) -> None:
    """Attached, with all services, until somebody closes the input; then says how often this process flushed and
    synced."""
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
    """Wake-ups a second, of the mean process and of the busiest one; then, while this process puts now and then, how
    often queues were flushed and checkpoints synced a second, by all of them together."""
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
