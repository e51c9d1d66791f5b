"""`python -m benchmarks replication`: shipping to a slave on loopback, beside RocketMQ's HAService.

cystore's slave is a process of its own; RocketMQ's master and slave share a JVM, and so need no second interpreter of
anything. Both sides run in turns, and the median round counts. A put is one of one thread, with a key and a tag; a
replicated put waits for the master's disk and for the slave (SYNC_MASTER, SYNC_FLUSH). Its 16 writers are threads on
RocketMQ's side; here they are threads of the master's process, and in another row processes, as Celery has them. Its
floors are a bare program in C, which does the same syncs and sends the same bytes (native/replicated.c): as a slave
here, which keeps what it gets, and as a member of a group, which syncs it, too.
What a slave costs the master's puts: rounds without a slave, and beside one. The time of a put is split into that on a
processor, which is what the shipping itself costs the put, and that in which the thread is ready and other threads have
the processors. The floor is a thread in C that computes for as long, beside bare shipping (native/shipped.c). Another
row has as many puts a second as RocketMQ's master reaches here, in bursts: then the processors have time left.
With --tls the other side is cystore, too, with a certificate: RocketMQ's HAService has no TLS.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import cystore
from benchmarks.native import replicated_ns, shipped_ns
from benchmarks.peers.rocketmq_peer import JVM_FLAGS, TIMEOUT_S
from tests.support.interop import rocketmq

BODY_BYTES, WRITERS, ROUNDS, TURNS = 1024, 16, 3, 3
RECORD_BYTES = BODY_BYTES + 91 + 10 + 64
FLOOR_RECORD_BYTES = BODY_BYTES + 91 + 10 + 32  # as long as a record of `puts`
BODY = b"0123456789abcdef" * (BODY_BYTES // 16)
LOOK_S = 0.00005
PACE, BURST = 200_000, 100  # puts a second, and how many of them before the thread sleeps
SHIP_GOAL, REPLICATED_GOAL, SLOWER_GOAL = 2.0, 2.0, 0.10
FOLLOW = """
import sys, cystore
with cystore.open(sys.argv[1], services="all", broker_role="slave", ha_master_address=sys.argv[2],
                  mapped_file_size_commit_log_bytes=int(sys.argv[3]), ha_tls_ca_file=sys.argv[4]):
    sys.stdin.read()
"""
WRITE = """
import sys, cystore
from benchmarks.store.replication import puts
path, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with cystore.open(path, broker_role="sync_master", flush_disk_type="sync", slave_timeout_ms=60_000, services="none",
                  mapped_file_size_commit_log_bytes=size) as store:
    print(flush=True)
    while sys.stdin.readline():
        puts(store, count)
        print(flush=True)
"""
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out own.pem"
)

SPLIT = {"": "a put", "ran_": "of it on a processor", "ready_": "of it ready for a processor"}

Figures = dict[str, float]


@contextmanager
def _pair(
    folder: Path, bytes_: int, **settings: Any
) -> Iterator[tuple[cystore.MessageStore, Callable[[], Any]]]:
    """A master, and a function that starts its slave."""
    size = max(64 << 20, -(-bytes_ // (1 << 20)) << 20)
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    slaves: list[subprocess.Popen[bytes]] = []
    trusted = settings.get("ha_tls_certificate_file", "")

    def follow() -> None:
        command = [
            sys.executable,
            "-c",
            FOLLOW,
            str(folder / "slave"),
            f"localhost:{port}",
            str(size),
            trusted,
        ]
        slaves.append(subprocess.Popen(command, stdin=subprocess.PIPE))

    try:
        with cystore.open(
            folder / "master",
            services="all",
            ha_listen_port=port,
            mapped_file_size_commit_log_bytes=size,
            allocate_ahead_bytes=size,
            populate_ahead_bytes=size,
            **settings,
        ) as master:
            yield master, follow
    finally:
        for slave in slaves:
            slave.communicate(timeout=60)


def _reach(master: cystore.MessageStore, position: int) -> int:
    """The end of the slave's log by its last report, when it is at least `position`."""
    control = master._attached().control
    while control.replicated < position:
        time.sleep(LOOK_S)
    return int(control.replicated)


def puts(store: cystore.MessageStore, count: int) -> float:
    put, keys = store.put, [(f"key-{number}",) for number in range(1024)]
    begun = time.perf_counter()
    for number in range(count):
        put("BenchTopic", BODY, keys=keys[number % 1024], tags="TagA")
    return time.perf_counter() - begun


def paced_puts(store: cystore.MessageStore, count: int) -> float:
    """Seconds of puts, without the thread's sleep between bursts."""
    put, took_s, due = store.put, 0.0, time.perf_counter()
    for _ in range(0, count, BURST):
        begun = time.perf_counter()
        for number in range(BURST):
            put("BenchTopic", BODY, keys=(f"key-{number}",), tags="TagA")
        took_s += time.perf_counter() - begun
        due += BURST / PACE
        time.sleep(max(0, due - time.perf_counter()))
    return took_s


def _scheduled() -> list[int]:
    """ns for which this thread ran, and for which it was ready and other threads had the processors."""
    return [int(ns) for ns in Path("/proc/thread-self/schedstat").read_text().split()[:2]]


def _split(store: cystore.MessageStore, count: int) -> tuple[float, float, float]:
    """Seconds of `puts`, and what of them its thread ran, and was ready."""
    before = _scheduled()
    took_s = puts(store, count)
    ran, ready = (after - begun for after, begun in zip(_scheduled(), before, strict=True))
    return took_s, ran / 1e9, ready / 1e9


def _median_split(rounds: list[tuple[float, float, float]], count: int, when: str) -> Figures:
    middle = sorted(rounds)[len(rounds) // 2]
    return {f"{part}{when}_ns": s * 1e9 / count for part, s in zip(SPLIT, middle, strict=True)}


def _certificate(folder: Path) -> dict[str, str]:
    subprocess.run(
        [*CERTIFICATE.split(), "-addext", "subjectAltName=DNS:localhost"],
        check=True,
        cwd=folder,
        capture_output=True,
    )
    return {
        "ha_tls_certificate_file": str(folder / "own.pem"),
        "ha_tls_key_file": str(folder / "key.pem"),
    }


def ship(folder: Path, count: int, **settings: Any) -> Figures:
    """What RocketMQ's case of that name measures."""
    with _pair(folder, (4 * ROUNDS + 1) * count * RECORD_BYTES, **settings) as (master, follow):
        puts(master, count)
        alone = [_split(master, count) for _ in range(ROUNDS)]
        paced_alone = [paced_puts(master, count) for _ in range(ROUNDS)]
        follow()
        begin, begun = _reach(master, 1), time.perf_counter()
        bytes_ = _reach(master, master.stats()["wrote"]) - begin
        backlog_s = time.perf_counter() - begun
        beside, shipped = [], []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            beside.append(_split(master, count))
            _reach(master, master.stats()["wrote"])
            shipped.append(time.perf_counter() - begun)
        paced_beside = [paced_puts(master, count) for _ in range(ROUNDS)]
    return {
        "backlog_bytes_per_s": bytes_ / backlog_s,
        "alone_ops_per_s": count / median(took_s for took_s, _, _ in alone),
        "beside_ops_per_s": count / median(took_s for took_s, _, _ in beside),
        "ops_per_s": count / median(shipped),
        "paced_alone_ns": median(paced_alone) * 1e9 / count,
        "paced_beside_ns": median(paced_beside) * 1e9 / count,
        **_median_split(alone, count, "alone"),
        **_median_split(beside, count, "beside"),
    }


def replicated(folder: Path, count: int, **more: Any) -> Figures:
    """The same of replicated puts, of threads and of processes."""
    settings = {"broker_role": "sync_master", "flush_disk_type": "sync", "slave_timeout_ms": 60_000, **more}
    with _pair(folder, 2 * (ROUNDS + 1) * count * RECORD_BYTES, **settings) as (master, follow):
        follow()
        while not master._attached().control.replicas:
            time.sleep(LOOK_S)
        threads = [_in_threads(master, count) for _ in range(ROUNDS + 1)]
        with _writers(master, count) as turn:
            processes = [turn() for _ in range(ROUNDS + 1)]
    return {  # without the first round, which warms up
        "ops_per_s": count / median(threads[1:]),
        "of_processes_ops_per_s": count / median(processes[1:]),
    }


@contextmanager
def _writers(store: cystore.MessageStore, count: int) -> Iterator[Callable[[], float]]:
    """Processes that attach to the store. The function returns how long they take for `count` puts in all."""
    size = store._attached().config.mapped_file_size_commit_log_bytes
    command = [sys.executable, "-c", WRITE, str(store.path), str(size), str(count // WRITERS)]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(WRITERS)
    ]

    def answers() -> None:
        for writer in writers:
            assert writer.stdout is not None
            if not writer.stdout.readline():
                raise RuntimeError(f"a writer ended with code {writer.wait()}")

    def turn() -> float:
        begun = time.perf_counter()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        answers()
        return time.perf_counter() - begun

    try:
        answers()
        yield turn
    finally:
        for writer in writers:
            writer.communicate(timeout=60)


def _in_threads(store: cystore.MessageStore, count: int) -> float:
    failed: list[cystore.StoreError] = []

    def work() -> None:
        try:
            puts(store, count // WRITERS)
        except cystore.StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - begun
    if failed:
        raise failed[0]
    return took_s


def of_rocketmq(case: str, folder: Path, count: int) -> Figures:
    """The figures of the Java program."""
    jars = rocketmq.build()
    command = [str(jars.java), *JVM_FLAGS, "-jar", str(jars.bench), case, "--dir", str(folder / "rocketmq")]
    command += ["--count", str(count), "--body-bytes", str(BODY_BYTES)]
    if case == "replicated":
        command += ["--writers", str(WRITERS)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    answer = {name: float(value) for name, value in said.items() if isinstance(value, int | float)}
    answer["of_processes_ops_per_s"] = answer["ops_per_s"]  # its writers are threads
    return answer


def floor(folder: Path, count: int, *, syncs: bool) -> Figures:
    """The figure of the bare C program."""
    took_ns = replicated_ns(folder, WRITERS, count, FLOOR_RECORD_BYTES, syncs=syncs)
    return {"ops_per_s": count * 1e9 / took_ns}


def bare(folder: Path, count: int, put_ns: float) -> Figures:
    """The figures of the bare C program that ships, of puts that take `put_ns` of a processor."""
    alone, beside = shipped_ns(folder, count, FLOOR_RECORD_BYTES, round(put_ns))
    figures = {f"{part}alone_ns": ns / count for part, ns in zip(SPLIT, alone, strict=True)}
    return figures | {f"{part}beside_ns": ns / count for part, ns in zip(SPLIT, beside, strict=True)}


def measured(case: str, count: int, turns: int, *, tls: bool = False) -> tuple[Figures, Figures]:
    """The medians of both sides over some turns; the first side of a turn changes."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    mine = ship if case == "ship" else replicated
    for turn in range(turns):
        for side in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                if side == "ours":
                    ours.append(mine(Path(folder), count))
                elif tls:
                    theirs.append(mine(Path(folder), count, **_certificate(Path(folder))))
                else:
                    theirs.append(of_rocketmq(case, Path(folder), count))
    return _medians(ours), _medians(theirs)


def _medians(runs: list[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks replication", description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="puts of a round (%(default)s)")
    parser.add_argument(
        "--replicated", type=int, default=8_000, help="replicated puts of a round (%(default)s)"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="runs of each side (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="beside cystore with TLS; there is no goal")
    options = parser.parse_args(arguments)
    other = "with TLS" if options.tls else "RocketMQ"
    print(f"{'':<44} {'cystore':>12} {other:>12} {'ratio':>7}  {'' if options.tls else 'goal'}")
    ours, theirs = measured("ship", options.count, options.turns, tls=options.tls)
    goal, replicated_goal = (0.0, 0.0) if options.tls else (SHIP_GOAL, REPLICATED_GOAL)
    reached = _line("backlog to a new slave, MB/s", ours, theirs, "backlog_bytes_per_s", goal, 1e6)
    reached &= _line("puts until the slave has them, /s", ours, theirs, "ops_per_s", goal)
    _line("puts without a slave, /s", ours, theirs, "alone_ops_per_s")
    _line("puts beside a slave, /s", ours, theirs, "beside_ops_per_s")
    slower = [one["alone_ops_per_s"] / one["beside_ops_per_s"] - 1 for one in (ours, theirs)]
    print(f"{'a put is slower beside a slave by':<44} {slower[0]:>12.0%} {slower[1]:>12.0%}", end="")
    print("" if options.tls else f"{'':>8}  <= {SLOWER_GOAL:.0%}")
    paced = ours["paced_beside_ns"] / ours["paced_alone_ns"] - 1
    print(f"{f'the same of {PACE:,} puts a second':<44} {paced:>12.0%}")
    floors = [bare(Path(folder), options.count, ours["ran_alone_ns"]) for folder in _folders(options.turns)]
    _parts(ours, _medians(floors))
    ours, theirs = measured("replicated", options.replicated, options.turns, tls=options.tls)
    for what, name in (("threads", "ops_per_s"), ("processes", "of_processes_ops_per_s")):
        reached &= _line(f"replicated puts of {WRITERS} {what}, /s", ours, theirs, name, replicated_goal)
    for what, syncs in (("the slave keeps it", False), ("the slave syncs it, too", True)):
        folders = _folders(options.turns)
        found = [floor(Path(folder), options.replicated, syncs=syncs)["ops_per_s"] for folder in folders]
        ratio = ours["ops_per_s"] / median(found)
        print(f"{f'floor in C: {what}, /s':<44} {median(found):>12,.0f} {'':>12} {ratio:>7.2f}", flush=True)
    return 0 if reached and (options.tls or slower[0] <= SLOWER_GOAL) else 1


def _folders(count: int) -> Iterator[str]:
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            yield folder


def _parts(ours: Figures, floor_: Figures) -> None:
    """What the time of a put is made of, without a slave and beside one."""
    print(f"{'':<44} {'no slave':>12} {'slave':>12} {'more':>7}")
    for who, figures in (("cystore", ours), ("floor in C", floor_)):
        for part, what in SPLIT.items():
            alone, beside = figures[f"{part}alone_ns"], figures[f"{part}beside_ns"]
            more = f"{(beside - alone) / figures['alone_ns']:>7.0%}"
            print(f"{f'{who}: {what}, ns':<44} {alone:>12,.0f} {beside:>12,.0f} {more}", flush=True)


def _line(what: str, ours: Figures, theirs: Figures, name: str, goal: float = 0.0, unit: float = 1.0) -> bool:
    ratio = ours[name] / theirs[name]
    wanted = f">= {goal:g}" if goal else ""
    print(
        f"{what:<44} {ours[name] / unit:>12,.0f} {theirs[name] / unit:>12,.0f} {ratio:>7.2f}  {wanted}",
        flush=True,
    )
    return ratio >= goal
