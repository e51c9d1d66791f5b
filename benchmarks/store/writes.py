"""`python -m benchmarks writes`: the cost of puts over a long time, with default settings, beside waiters, and from
several processes; and how soon a put wakes a process that waits for it.

Each row is a ratio beside its goal; every measurement runs in a process of its own. Take a folder on a disk. LMDB has
the settings with which it is fastest: WRITEMAP, MAPASYNC, NOSYNC, one transaction for each message. RocketMQ has those
of benchmarks/peers/rocketmq, and its flush and dispatch run beside its puts. The memcpy loop writes records of the same
length into a mapped file with all its pages in memory. The file is synced as often as the log is flushed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import cystore
from benchmarks import native
from benchmarks.peers import cystore_peer, cystore_read_peer, futex_peer, rocketmq_peer
from benchmarks.suite import workload
from benchmarks.suite.failures import MeasureError, reason
from benchmarks.suite.workload import TAG, TOPIC, Job

ROOT = Path(__file__).resolve().parents[2]
BODY_BYTES = 100
RECORD_BYTES = 230  # the length of a record with such a body
FLUSH_S = 0.5
COPY_BYTES, MIB = 64 << 20, 1 << 20
AHEAD_BYTES = 64 * MIB
MEMORY_TIMES = 2  # log, and queues, index and what else a run needs
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python does not name it
WAITERS = 100
WAKES = 2_000
WAYS = (
    "the store's lock",
    "the same, no pause at first",
    "the store's lock and the lines that a put writes to",
    "a lock of one word",
    "a lock of tickets",
    "no lock",
)  # of copy_together (baseline.c)


class Row(NamedTuple):
    """One figure: its subject, the measured value, the goal; a floor has none."""

    what: str
    measured: str
    goal: str = ""
    reached: bool | None = None


def _put_loop(put: Callable[..., Any], count: int) -> float:
    """ns a put."""
    body, turn = workload.body(BODY_BYTES), workload.in_turn(workload.key_ring(1), count)
    begun = time.perf_counter_ns()
    for keys in turn:
        put(TOPIC, body, keys=keys, tags=TAG)
    return (time.perf_counter_ns() - begun) / count


def _worst(step: Callable[[], Any], seconds: float) -> dict[str, float]:
    """The 99.99th percentile and the slowest of many steps, in µs."""
    clock, until, taken = time.perf_counter_ns, time.perf_counter_ns() + int(seconds * 1e9), []
    before = clock()
    while before < until:
        step()
        after = clock()
        taken.append(after - before)
        before = clock()
    taken.sort()
    return {"p9999": taken[len(taken) * 9999 // 10_000] / 1e3, "worst": taken[-1] / 1e3}


# ------------------------------------------------------------------------------------- in processes of their own


def sustained(folder: Path, count: int) -> float:
    """Default settings and services."""
    with cystore.open(folder) as store:
        return _put_loop(store.put, count)


def processor_time(folder: Path, count: int) -> float:
    """The same: ns of all threads together, a put, on all processors."""
    begun = time.process_time_ns()
    sustained(folder, count)
    return (time.process_time_ns() - begun) / count


def put_then_dispatch(folder: Path, count: int) -> list[float]:
    """ns of a put that nobody dispatches or flushes, then of the dispatch of one message."""
    with cystore.open(folder, services="none") as store:
        put = _put_loop(store.put, count)
        return [put, workload.timed(count, store.dispatch).ns_per_operation]


def touch_memory(folder: Path, size: int) -> list[float]:
    """ns of the first write to a page, and again. A virtual machine gives the memory back to its host that has been
    free for a while, and the first write to such a page takes several times as long. So each long run comes after this,
    and finds as much free memory as it needs that the machine still has."""
    size, found = min(size, os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE) // MIB * MIB, []
    for _ in range(2):
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
            begun = time.perf_counter_ns()
            for at in range(0, size, MIB):
                mapped.madvise(MADV_POPULATE_WRITE, at, MIB)
            found.append((time.perf_counter_ns() - begun) / (size // mmap.PAGESIZE))
    return found


def copy_into_new_pages(folder: Path, count: int, seconds: float = FLUSH_S, ahead: int = 0) -> float:
    """A loop in C that copies records into a mapped file that grows in memory, ns a record. It has its place on the
    disk, and is synced as often as the log is flushed; never, if `seconds` is 0. With `ahead` another thread makes the
    pages, as many as `ahead` bytes ahead, by writes of zeros, and one system call maps a MiB of them."""
    offsets = (ctypes.c_int64 * (workload.RING + 1))(
        *range(0, (workload.RING + 1) * RECORD_BYTES, RECORD_BYTES)
    )
    source, ended = ctypes.create_string_buffer((workload.RING + 1) * RECORD_BYTES), threading.Event()
    pieces, made = -(-count * RECORD_BYTES // MIB), threading.Semaphore(0)
    free = threading.Semaphore(ahead // MIB)
    with (folder / "copies").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, pieces * MIB)
        mapped = mmap.mmap(file.fileno(), pieces * MIB)
        to = ctypes.addressof(ctypes.c_char.from_buffer(mapped))

        def sync() -> None:
            while not ended.wait(seconds):
                os.fdatasync(file.fileno())

        def make_pages() -> None:
            for piece in range(pieces):
                free.acquire()
                os.pwrite(file.fileno(), bytes(MIB), piece * MIB)
                made.release()

        threads = [threading.Thread(target=sync)] * bool(seconds) + [
            threading.Thread(target=make_pages)
        ] * bool(ahead)
        for thread in threads:
            thread.start()
        copy, each, begun = native.library().copy_records, MIB // RECORD_BYTES, time.perf_counter_ns()
        for piece in range(pieces):
            if ahead:
                made.acquire()
                mapped.madvise(MADV_POPULATE_WRITE, piece * MIB, MIB)
                free.release()
            copy(to + piece * MIB, MIB, source, offsets, workload.RING, each)
        taken = time.perf_counter_ns() - begun
        ended.set()
        for thread in threads:
            thread.join()
    return taken / (pieces * each)


def call_nothing(folder: Path, count: int) -> float:
    """The loop of `sustained` around a function in C that does nothing."""
    return _put_loop(native.nothing(), count)


def prepared(folder: Path, count: int) -> float:
    return cystore_peer.put(Job("put", count, str(folder), body_bytes=BODY_BYTES)).ns_per_operation


def lmdb_at_its_best(folder: Path, count: int) -> float:
    import lmdb

    env = lmdb.open(
        str(folder),
        map_size=max(2 << 30, 4 * count * RECORD_BYTES),
        writemap=True,
        map_async=True,
        sync=False,
        metasync=False,
        subdir=True,
    )
    job = Job("put", count, str(folder), body_bytes=BODY_BYTES)
    values = workload.flat_ring(job)
    begun = time.perf_counter_ns()
    for number in range(count):
        with env.begin(write=True) as transaction:
            transaction.put(number.to_bytes(8, "big"), values[number % len(values)], append=True)
    found = (time.perf_counter_ns() - begun) / count
    env.close()
    return found


def rocketmq_sustained(folder: Path, count: int) -> list[float]:
    """RocketMQ's flush and dispatch run beside its puts: ns of a put of a message that is there, and of one that is
    built on the way, as ours are."""
    job = Job("put", count // 2, str(folder), body_bytes=BODY_BYTES, options={"dispatch": True})
    done = rocketmq_peer.put(job)  # half of the messages of each kind, in turn
    return [done.ns_per_operation, done.facts["built_ns_per_op"]]


def put_latency(folder: Path, seconds: float) -> dict[str, float]:
    with cystore.open(folder) as store:
        body, put = workload.body(BODY_BYTES), store.put
        return _worst(lambda: put(TOPIC, body), seconds)


def copy_latency(folder: Path, seconds: float) -> dict[str, float]:
    with (folder / "copies").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, COPY_BYTES)
        mapped = mmap.mmap(file.fileno(), COPY_BYTES)
        mapped[:] = bytes(COPY_BYTES)
        source = ctypes.create_string_buffer(RECORD_BYTES)
        begin, at, ended = ctypes.addressof(ctypes.c_char.from_buffer(mapped)), 0, threading.Event()

        def step() -> None:
            nonlocal at
            ctypes.memmove(begin + at, source, RECORD_BYTES)
            at = (at + RECORD_BYTES) % (COPY_BYTES - RECORD_BYTES)

        def sync() -> None:
            while not ended.wait(FLUSH_S):
                os.fdatasync(file.fileno())

        syncs = threading.Thread(target=sync)
        syncs.start()
        found = _worst(step, seconds)
        ended.set()
        syncs.join()
        return found


def waited_for(folder: Path, count: int, waiters: int) -> float:
    """A put beside waiters on other topics, which are threads of another process."""
    job = Job("put", count, str(folder), body_bytes=BODY_BYTES)
    with cystore_peer.open_store(job, services="none") as store:
        cystore_peer.prepare(store, job)
        for number in range(waiters):
            store.put(f"Other{number}", b"x")
        command = [
            sys.executable,
            "-m",
            "benchmarks.store.writes",
            "--part",
            "wait",
            str(folder / "store"),
            str(waiters),
        ]
        other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        turn = islice(workload.in_turn(workload.key_ring(1), count), count)
        body, begun = workload.body(BODY_BYTES), time.perf_counter_ns()
        for keys in turn:
            store.put(TOPIC, body, keys=keys, tags=TAG)
        taken = (time.perf_counter_ns() - begun) / count
        other.kill()
        other.wait()
        return taken


def wait(root: Path, waiters: int) -> None:
    """Waits for messages that never come, until it is killed."""
    store = cystore.open(root, services="none")
    for number in range(waiters):
        threading.Thread(target=store.wait, args=(f"Other{number}", 0, 1, 600.0), daemon=True).start()
    time.sleep(1.0)
    print("ready", flush=True)
    sys.stdin.read()


def several(folder: Path, count: int, processes: int, services: bool = True) -> float:
    """With default services each process dispatches and flushes beside its puts, on the same processors."""
    job = Job("put_processes", count - count % processes, str(folder), processes=processes)
    more = {} if services else {"services": "none"}
    return cystore_peer.put_processes(job, **more).ns_per_operation


def _pin(process: int) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[process % len(processors)]})


def several_copies(
    folder: Path, count: int, processes: int, way: int = 0, steps: int = 0, pinned: int = 0
) -> float:
    """The floor of `several` on this machine: loops that only copy a record behind the last one, by one of WAYS. With
    `steps` they calculate between two records."""
    library, each = native.library(), count // processes
    shared = mmap.mmap(-1, library.shared_log_bytes())
    log = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    if library.shared_log_make(log):
        raise RuntimeError("the lock could not be made")
    with (folder / "copies").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, COPY_BYTES)
        mapped = mmap.mmap(file.fileno(), COPY_BYTES)

    def start(process: int) -> Callable[[], Any]:
        if pinned:
            _pin(process)
        to = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        ctypes.memset(to, process, COPY_BYTES)
        source = ctypes.create_string_buffer(RECORD_BYTES)

        def work() -> None:
            if library.copy_together(log, to, COPY_BYTES, source, RECORD_BYTES, each, way, steps) < 0:
                raise RuntimeError("the lock could not be taken")

        return work

    job = Job("copies", each * processes, str(folder), processes=processes)
    return workload.in_processes(job, start).ns_per_operation


def line_moves(folder: Path, count: int) -> float:
    """ns that a cache line takes from one processor to another: two processes change a word in turn."""
    library = native.library()
    shared = mmap.mmap(-1, library.shared_log_bytes())

    def start(process: int) -> Callable[[], Any]:
        _pin(process)
        return lambda: library.pass_line(
            ctypes.addressof(ctypes.c_char.from_buffer(shared)), process, count // 2
        )

    return workload.in_processes(Job("line", count, str(folder), processes=2), start).ns_per_operation


def woken(folder: Path, count: int) -> dict[str, float]:
    """Put in one process until `wait` returns in another."""
    return cystore_read_peer.wake(Job("wake", count, str(folder))).facts


def woken_by_futex(folder: Path, count: int) -> dict[str, float]:
    return futex_peer.wake(Job("wake", count, str(folder))).facts


def woken_by_redis(folder: Path, count: int) -> dict[str, float]:
    from benchmarks.peers import redis_peer

    return redis_peer.wake(Job("wake", count, str(folder))).facts


PARTS: dict[str, Callable[..., Any]] = {
    part.__name__: part
    for part in (
        sustained,
        processor_time,
        put_then_dispatch,
        touch_memory,
        copy_into_new_pages,
        call_nothing,
        prepared,
        lmdb_at_its_best,
        rocketmq_sustained,
        put_latency,
        copy_latency,
        waited_for,
        wait,
        several,
        several_copies,
        line_moves,
        woken,
        woken_by_futex,
        woken_by_redis,
    )
}


# ------------------------------------------------------------------------------------------------- the rows


def run(part: Callable[..., Any], folder: Path, *numbers: float) -> Any:
    """Runs a part in a process of its own; returns its result. Raises MeasureError."""
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        given = [part.__name__, parent, *map(str, numbers)]
        command = [sys.executable, "-m", "benchmarks.store.writes", "--part", *given]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode:
            raise MeasureError(f"{part.__name__}: {reason(done.stderr, done.returncode)}")
        return json.loads(done.stdout)


def _long_run(part: Callable[..., Any], folder: Path, count: int, *numbers: float) -> Any:
    """`run` with free memory that the machine has."""
    run(touch_memory, folder, count * RECORD_BYTES * MEMORY_TIMES)
    return run(part, folder, count, *numbers)


def rate_rows(folder: Path, count: int, seconds: float) -> Iterator[Row]:
    """A long run of puts with default settings, beside puts into prepared segments, and what no store that maps its log
    could do without, in the same minute. The rows of a peer come after those that do without it."""
    ours, best = _long_run(sustained, folder, count), _long_run(prepared, folder, min(count, 2_000_000))
    new, ahead = (_long_run(copy_into_new_pages, folder, count, FLUSH_S, size) for size in (0, AHEAD_BYTES))
    called = ahead + run(call_nothing, folder, min(count, 2_000_000))
    floors, what = (
        (new, ahead, called),
        f"put, default settings and services, {count * RECORD_BYTES >> 20:,} MiB",
    )

    def most(name: str, ns: float) -> Row:
        return Row(
            f"the most over {name}, by each of these floors", ", ".join(f"{ns / f:.1f} ×" for f in floors)
        )

    yield Row(
        f"{what}: speed beside prepared segments",
        f"{best / ours:.2f} × ({ours:.0f} ns, {best:.0f})",
        "≥ 0.75 ×",
        best / ours >= 0.75,
    )
    yield Row("memcpy loop in C into new pages of a file that is synced as often", f"{new:.0f} ns a record")
    yield Row("the same loop, another thread makes the pages by writes of zeros", f"{ahead:.0f} ns a record")
    yield Row("that loop, and a call from Python of a function in C that does nothing", f"{called:.0f} ns")
    peer = _long_run(lmdb_at_its_best, folder, count)
    yield Row(
        f"{what}: beside LMDB at its best", f"{peer / ours:.1f} × ({peer:.0f} ns)", "≥ 8 ×", peer / ours >= 8
    )
    yield most("LMDB", peer)
    there, built = _long_run(rocketmq_sustained, folder, count)
    yield Row(
        f"{what}: beside RocketMQ, its flush and dispatch running",
        f"{there / ours:.1f} × ({there:.0f} ns; {built / ours:.1f} ×, {built:.0f}, built on the way)",
        "≥ 6 ×",
        there / ours >= 6,
    )
    yield most("RocketMQ", there)
    yield most("RocketMQ, messages built on the way", built)


def floor_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """What the long run consists of, each part by itself; `rate_rows` has the synced loops."""
    first, again = run(touch_memory, folder, count * RECORD_BYTES)
    alone, dispatch = _long_run(put_then_dispatch, folder, count)
    processor = _long_run(processor_time, folder, count)
    not_synced = _long_run(copy_into_new_pages, folder, count, 0)
    return [
        Row("the first write to a page of free memory, and again", f"{first:.0f} ns, {again:.0f}"),
        Row("the long run, processor time of all threads", f"{processor:.0f} ns a put"),
        Row("put that nobody dispatches or flushes", f"{alone:.0f} ns"),
        Row("dispatch of one of those messages, afterwards", f"{dispatch:.0f} ns"),
        Row(
            "memcpy loop in C into new pages of a file that is never synced", f"{not_synced:.0f} ns a record"
        ),
    ]


def latency_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """The slowest puts beside the slowest turns of a loop that only copies."""
    ours, copied = run(put_latency, folder, seconds), run(copy_latency, folder, seconds)
    rows = []
    for name, key, most in (("p99.99", "p9999", 3), ("worst", "worst", 10)):
        ratio = ours[key] / copied[key]
        measured = f"{ratio:.1f} × ({ours[key]:.0f} µs, memcpy {copied[key]:.0f})"
        rows.append(
            Row(f"put, default settings: {name} beside a memcpy loop", measured, f"≤ {most} ×", ratio <= most)
        )
    return rows


def waiter_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """Puts while other threads wait for other topics."""
    count = min(count, 2_000_000)
    alone, beside = run(waited_for, folder, count, 0), run(waited_for, folder, count, WAITERS)
    measured = f"{beside / alone:.2f} × ({beside:.0f} ns, {alone:.0f})"
    return [Row(f"put beside {WAITERS} waiters on other topics", measured, "≤ 1.3 ×", beside <= 1.3 * alone)]


def process_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """Several processes that append to one store at once: by themselves, and with default services. The first rows also
    show loops that only lock and copy, in as many processes."""
    count, rows = min(count, 2_000_000), []
    goals = {2: 1.3, 4: 1.0, 8: 1.0}
    floor = {number: run(several_copies, folder, 2 * count, number) for number in (1, *goals)}
    for services, name in ((0, ""), (1, ", default services")):
        alone = run(several, folder, count, 1, services)
        for processes, least in goals.items():
            taken = run(several, folder, count, processes, services)
            measured = f"{alone / taken:.2f} × ({taken:.0f} ns a put, one: {alone:.0f}"
            if not services:
                measured += f"; lock and memcpy alone: {floor[1] / floor[processes]:.2f} ×"
            what = f"put from {processes} processes beside one{name}"
            rows.append(Row(what, measured + ")", f"≥ {least} ×", alone >= least * taken))
    return rows


def lock_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """The most that several processes could gain, whatever the lock: loops in C beside one such loop. Each copies a
    record, and calculates as long as a put takes besides. The best of four runs counts, half of them pinned to
    processors."""
    count = min(count, 1_000_000)
    move = min(run(line_moves, folder, count) for _ in range(4))
    rows = [Row("a cache line from one processor to the other", f"{move:.0f} ns")]
    steps_ns = native.library().time_steps(10_000_000) / 10_000_000
    put = run(several, folder, count, 1, 0)
    for way, name in enumerate(WAYS):
        copy = run(several_copies, folder, count, 1, way)
        for steps, what in (
            (0, "nothing else"),
            (max(round((put - copy) / steps_ns), 1), f"{put:.0f} ns alone"),
        ):
            found = {
                processes: min(
                    run(several_copies, folder, count, processes, way, steps, pinned) for pinned in (0, 1) * 2
                )
                for processes in (1, 2, 8)
            }
            measured = ", ".join(f"{found[1] / found[n]:.2f} × with {n}" for n in (2, 8))
            rows.append(Row(f"{name}, memcpy, {what}", f"{measured} ({found[1]:.0f} ns with one)"))
    return rows


def wake_rows(folder: Path, count: int, seconds: float) -> list[Row]:
    """From the put until the wait of another process returns, beside the bare system call and beside Redis."""
    ours, bare, redis = (run(part, folder, WAKES) for part in (woken, woken_by_futex, woken_by_redis))
    over, ratio = ours["p50_us"] - bare["p50_us"], ours["p99_us"] / redis["p99_us"]
    return [
        Row(
            "wake-up, 50 %: over a bare futex",
            f"{over:.1f} µs ({ours['p50_us']:.1f}, futex {bare['p50_us']:.1f})",
            "≤ 25 µs",
            over <= 25,
        ),
        Row(
            "wake-up, 99 %: beside Redis BLPOP",
            f"{ratio:.2f} × ({ours['p99_us']:.0f} µs, Redis {redis['p99_us']:.0f}, futex {bare['p99_us']:.0f})",
            "≤ 0.20 ×",
            ratio <= 0.2,
        ),
    ]


GROUPS = {
    "rate": rate_rows,
    "floors": floor_rows,
    "latency": latency_rows,
    "waiters": waiter_rows,
    "processes": process_rows,
    "locks": lock_rows,
    "wake": wake_rows,
}


def _measured(name: str, rows: Callable[..., Iterable[Row]], options: argparse.Namespace) -> Iterator[Row]:
    """The rows of a group; one that failed ends with a row that says why."""
    try:
        yield from rows(options.folder, (options.mib << 20) // RECORD_BYTES, options.seconds)
    except MeasureError as error:
        yield Row(name, f"not measured: {error}", "", False)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks writes", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these of {', '.join(GROUPS)}")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where stores are made"
    )
    parser.add_argument("--mib", type=int, default=4096, help="how much the long run appends")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long latencies are measured")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    reached = True
    print("| | measured | must be | |\n|---|---:|---:|---|", flush=True)
    for name, rows in GROUPS.items():
        if not options.groups or name in options.groups:
            for row in _measured(name, rows, options):
                verdict = "" if row.reached is None else "reached" if row.reached else "**missed**"
                print(f"| {row.what} | {row.measured} | {row.goal} | {verdict} |", flush=True)
                reached = reached and row.reached is not False
    return 0 if reached else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        name, root, *numbers = sys.argv[2:]
        found = PARTS[name](Path(root), *(int(n) if n.isdecimal() else float(n) for n in numbers))
        if found is not None:
            sys.stdout.write(json.dumps(found))
    else:
        sys.exit(main(sys.argv[1:]))
