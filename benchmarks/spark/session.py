"""Shared by the benchmarks on Spark: a local session, and the CPU time of all its processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Took = tuple[float, float]  # wall time, CPU time
ROOT = Path(__file__).resolve().parents[2]


def session(cores: int, folder: Path, memory: str = "2g") -> Any:
    """A session on local[cores] whose workers find this repository. Spark writes into `folder`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cpu_now() -> dict[int, float]:
    """CPU seconds by process id, of this process and of all below it. They include ended children that were waited
    for."""
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: _ticks(pid) / tick for pid in (os.getpid(), *_descendants(os.getpid()))}


def cpu_since(before: dict[int, float]) -> float:
    """The CPU time since `cpu_now`. Ended processes that no parent waited for are missing."""
    return sum(max(used - before.get(pid, 0.0), 0.0) for pid, used in cpu_now().items())


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(_stat(int(entry.name))[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process ended meanwhile
    found, level = [], [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def _ticks(pid: int) -> int:
    try:
        return sum(map(int, _stat(pid)[11:15]))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def timed(run: Callable[[], Any]) -> Took:
    """The times of one run."""
    cpu, wall = cpu_now(), time.perf_counter()
    run()
    return time.perf_counter() - wall, cpu_since(cpu)


def best(rounds: int, run: Callable[[], Any]) -> Took:
    """The times of the round with the least wall time."""
    return min(timed(run) for _ in range(rounds))
