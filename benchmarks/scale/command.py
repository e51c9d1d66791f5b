"""`python -m benchmarks scale`: the costs of a store with many queues, much work at once, or many processes.

Each row is a ratio, a difference or a count beside its goal; every measurement runs in processes of its own. Take a
folder on a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cystore
from benchmarks.scale.idle import idle, stay
from benchmarks.scale.puts import WORK, beside
from benchmarks.scale.segments import build_log, read_log
from benchmarks.scale.standing_still import LIMIT_MS, stand_still

ROOT = Path(__file__).resolve().parents[2]
TOPICS = 16
QUEUE_FILE_BYTES = 6_000_000


class Row(NamedTuple):
    """One figure: its subject, the measured value, the goal."""

    what: str
    measured: str
    goal: str
    reached: bool


class Sizes(NamedTuple):
    """The sizes of all measurements."""

    queues: int
    round_robin: int
    segments: int
    segment_bytes: int
    seconds: float
    processes: int
    backlog_bytes: int


FULL = Sizes(65_536, 10_000, 10_000, 256 << 10, 20.0, 100, 1 << 30)
QUICK = Sizes(4_096, 1_000, 200, 16 << 10, 3.0, 10, 32 << 20)


def settings(messages: int) -> dict[str, Any]:
    """Room for the queues; the messages' keys fill two index files."""
    rest = {"services": "none", "max_hash_slot_num": 50_000, "max_index_num": 2 * messages // 3}
    return {"max_queues": 100_000, **rest}


def message(number: int) -> cystore.Message:
    return cystore.Message(
        topic=f"T{number % TOPICS}", queue_id=number // TOPICS, body=b"x" * 50, keys=(f"k{number}",)
    )


def build(root: Path, queues: int, messages: int) -> None:
    """Makes a store of many queues, and its process dies. It writes the queue files itself, because dispatch would take
    long to make each."""
    store = cystore.open(root, **settings(messages))
    for first in range(0, messages, 10_000):
        upto = min(first + 10_000, messages)
        store.put_many([message(number % queues) for number in range(first, upto)])
    store.flush_log()
    entries: dict[tuple[str, int], list[bytes]] = {}
    for found in store.scan():
        entry = struct.pack(">qiq", found.physical_offset, found.size_bytes, 0)
        entries.setdefault((found.topic, found.queue_id), []).append(entry)
    for (topic, queue_id), rows in entries.items():
        folder = root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True, mode=0o700)
        with (folder / f"{0:020d}").open("wb") as file:
            file.truncate(QUEUE_FILE_BYTES)
            file.write(b"".join(rows))
    os._exit(0)  # closing it would dispatch


# ------------------------------------------------------------------------------------- in processes of their own


def attach_once(root: Path, messages: int) -> dict[str, float]:
    """The time of an open, and the peak memory of the process."""
    begun, used = time.perf_counter(), time.process_time()
    store = cystore.open(root, **settings(messages))
    took, cpu = time.perf_counter() - begun, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    store.close()
    return {"s": took, "cpu_s": cpu, "peak_mib": peak}


def rounds(root: Path, queues: int, messages: int) -> dict[str, float]:
    """Put and dispatch, once around and again over queues that have their files."""
    with cystore.open(root, **settings(messages)) as store:
        spent = used = 0.0
        for turn in range(2):
            begun, before = time.perf_counter(), time.process_time()
            for number in range(messages if turn else queues):
                store.put("T", b"x" * 50, queue_id=number % queues)
            store.dispatch()
            spent, used = time.perf_counter() - begun, time.process_time() - before
        begun, before = time.perf_counter(), time.process_time()
        store.flush()
        flush = {"flush_s": time.perf_counter() - begun, "flush_cpu_s": time.process_time() - before}
        return {"ns": spent / messages * 1e9, "cpu_ns": used / messages * 1e9, **flush}


PARTS: dict[str, Callable[..., Any]] = {
    "build": lambda root, *n: build(root, *n),
    "attach": lambda root, *n: attach_once(root, *n),
    "rounds": lambda root, *n: rounds(root, *n),
    "build-log": lambda root, *n: build_log(root, *n),
    "read-log": lambda root, *n: read_log(root, *n),
    "beside": lambda root, *n: beside(root, *n),
    "stay": lambda root: stay(root),
    "still": lambda root, *n: stand_still(root, *n),
}


def run(part: str, root: Path, *numbers: float) -> Any:
    """Runs a part in a process of its own; returns its result."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale.command",
        "--part",
        part,
        str(root),
        *map(str, numbers),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout or b"null")


# ------------------------------------------------------------------------------------------------- the rows


def _seconds(found: dict[str, float], name: str = "") -> str:
    """Elapsed time and processor time: other work on the machine adds to the first."""
    return f"{found[f'{name}s']:.1f} s (processor: {found[f'{name}cpu_s']:.1f} s)"


def attach_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """Opening a store of many queues beside one of ten with as many messages."""
    found: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
    for queues in (10, sizes.queues):
        root = folder / f"queues-{queues}"
        messages = 3 * sizes.queues
        run("build", root, queues, messages)
        run("attach", root, messages)  # recovers it and closes it
        clean = run("attach", root, messages)
        (root / "abort").touch()
        found[queues] = clean, run("attach", root, messages)
        shutil.rmtree(root)
    (few_clean, few), (clean, killed) = found[10], found[sizes.queues]
    beyond = killed["s"] - few["s"]
    more = max(clean["peak_mib"], killed["peak_mib"]) - max(few_clean["peak_mib"], few["peak_mib"])
    name = f"{sizes.queues:,} queues, 3 messages each"
    return [
        Row(f"{name}: attach after a clean close", _seconds(clean), "≤ 5 s", clean["s"] <= 5),
        Row(
            f"{name}: attach after a kill, beyond that of 10 queues",
            _seconds({"s": beyond, "cpu_s": killed["cpu_s"] - few["cpu_s"]}),
            "≤ 10 s",
            beyond <= 10,
        ),
        Row(f"{name}: peak memory over that of 10 queues", f"{more:.0f} MiB", "≤ 200 MB", more <= 190),
    ]


def round_robin_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """Put and dispatch over many queues beside ten."""
    messages = 3 * sizes.round_robin
    few = run("rounds", folder / "few", 10, messages)
    many = run("rounds", folder / "many", sizes.round_robin, messages)
    name, ratio = f"{sizes.round_robin:,} queues", many["cpu_ns"] / few["cpu_ns"]
    measured = f"{ratio:.1f} × ({many['cpu_ns'] / 1000:.2f} µs; time: {many['ns'] / few['ns']:.1f} ×)"
    what = f"round robin over {name}: put + dispatch beside 10 queues, processor time"
    return [
        Row(what, measured, "≤ 3 ×", ratio <= 3),
        Row(f"flush of {name}", _seconds(many, "flush_"), "≤ 5 s", many["flush_s"] <= 5),
    ]


def segment_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """A log of many segments beside one of ten that holds as much."""
    total, found = sizes.segments * sizes.segment_bytes, {}
    for count in (10, sizes.segments):
        root = folder / f"segments-{count}"
        run("build-log", root, total, total // count)
        found[count] = run("read-log", root, total // count)
        shutil.rmtree(root)
    few, many = found[10], found[sizes.segments]
    name = f"{sizes.segments:,} segments of {sizes.segment_bytes >> 10} KiB"
    rows = [
        Row(f"{name}: open", _seconds(many, "open_"), "≤ 2 s", many["open_s"] <= 2),
        Row(f"{name}: descriptors", f"{many['descriptors']:.0f}", "≤ 64", many["descriptors"] <= 64),
    ]
    for what in ("scan", "verify", "get"):
        ratio, wall = many[what] / few[what], many[f"{what}_wall"] / few[f"{what}_wall"]
        measured = f"{ratio:.2f} × ({many[what]:.0f} ns; time: {wall:.2f} ×)"
        rows.append(Row(f"{name}: {what} beside 10, processor time", measured, "≤ 1.2 ×", ratio <= 1.2))
    return rows


def beside_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """The slowest put beside other work, over the slowest turn of a loop that only copies: in memory, and into a mapped
    file of the same disk that another process syncs as often as the log is flushed. On a busy machine all processes
    wait for a processor, so one row subtracts that wait. If the disk syncs more slowly than the puts come, bytes get
    old whatever the store does. So the last row subtracts the disk's time.
    """
    rows = []
    for work in WORK:
        root = folder / work.replace(" ", "-")
        one = run(
            "beside", root, list(WORK).index(work), sizes.round_robin, sizes.seconds, sizes.backlog_bytes
        )
        shutil.rmtree(root)
        put, what = one["put_ms"], f"worst put beside {work}, {sizes.round_robin:,} queues"
        for copied, name in (("copy_ms", "in memory"), ("mapped_ms", "into a mapped file that is synced")):
            over = put - one[copied]
            measured = f"{over:.1f} ms ({put:.1f}, memcpy {one[copied]:.1f})"
            rows.append(Row(f"{what}, over that of a memcpy loop {name}", measured, "≤ 20 ms", over <= 20))
        own = one["put_own_ms"]
        rows.append(Row(f"{what}, less its waits for a processor", f"{own:.1f} ms", "≤ 20 ms", own <= 20))
        what, interval = f"oldest unflushed byte beside {work}", one["interval_ms"]
        for age, less in (
            ("unflushed_ms", ""),
            ("unflushed_own_ms", ", less the time that the disk took to sync"),
        ):
            measured = f"{one[age] / interval:.1f} × the interval ({one['mib_s']:.0f} MiB/s"
            measured += f", the disk syncs {one['disk_mib_s']:.0f})" if less else ")"
            rows.append(Row(f"{what}{less}", measured, "≤ 2 ×", one[age] <= 2 * interval))
    return rows


def still_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """The wait of the process's other threads during one call."""
    found = run("still", folder / "still", 1 if sizes.queues == FULL.queues else 50)
    return [
        Row(
            f"other threads stand still beside: {what}",
            f"{ms:.1f} ms",
            f"≤ {LIMIT_MS:.0f} ms",
            ms <= LIMIT_MS,
        )
        for what, ms in found.items()
    ]


def idle_rows(folder: Path, sizes: Sizes) -> list[Row]:
    """Attached processes that do nothing."""
    found = idle(folder / "idle", sizes.processes, sizes.seconds)
    who = f"{sizes.processes} attached processes"
    woken = f"{found['mean']:.1f} (at most {found['most']:.1f})"
    rows = [Row(f"{who}, idle: wake-ups a second, each", woken, "≤ 2", found["mean"] <= 2)]
    for what, name in (("flushes of queues", "queues"), ("syncs of the checkpoint", "checkpoint")):
        often = found[name]
        rows.append(
            Row(
                f"{who} beside one that puts: {what} a second, by all together",
                f"{often:.1f}",
                "≤ 2",
                often <= 2,
            )
        )
    return rows


GROUPS: dict[str, Callable[[Path, Sizes], list[Row]]] = {
    "attach": attach_rows,
    "round-robin": round_robin_rows,
    "segments": segment_rows,
    "beside": beside_rows,
    "still": still_rows,
    "idle": idle_rows,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these of {', '.join(GROUPS)}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes: tests that everything runs; the figures mean nothing",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="the folder in which stores are made"
    )
    parser.add_argument(
        "--segment-bytes", type=int, help="length of a segment in the groups with many segments"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    reached, sizes = True, QUICK if options.quick else FULL
    if options.segment_bytes:
        sizes = sizes._replace(segment_bytes=options.segment_bytes)
    print("| | measured | must be | |\n|---|---:|---:|---|", flush=True)
    for name, rows in GROUPS.items():
        if options.groups and name not in options.groups:
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for row in rows(Path(folder), sizes):
                verdict = "reached" if row.reached else "**missed**"
                print(f"| {row.what} | {row.measured} | {row.goal} | {verdict} |", flush=True)
                reached = reached and row.reached
    return 0 if reached or options.quick else 1


def _part(arguments: list[str]) -> None:
    name, root, *numbers = arguments
    found = PARTS[name](Path(root), *(int(n) if n.isdecimal() else float(n) for n in numbers))
    if name != "stay":
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        _part(sys.argv[2:])
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
