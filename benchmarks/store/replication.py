"""`python -m benchmarks replication`: shipping to a slave on loopback, beside RocketMQ's HAService.

cystore's slave is a process of its own; RocketMQ's master and slave share a JVM, and so need no second interpreter of
anything. Both sides run in turns. A put is one of one thread, with a key and a tag.

What a slave costs the master's puts: rounds of puts in turns, into a store without a slave and into one beside it, in
the same process, or in the same JVM (shipping.py). The median of these pairs counts; their quartiles stand beside it.
The goal is judged at a pace: as many puts a second as RocketMQ's master reaches beside its slave in the same run. Two
more rows have 200,000 puts a second, and puts as fast as they go. Then the threads of both sides may want more
processors than there are; the command prints how many. The floor is a thread in C that computes for as long as a put,
beside bare shipping (native/shipped.c).

A replicated put waits for the master's disk and for the slave (SYNC_MASTER, SYNC_FLUSH). Its 16 writers are threads on
RocketMQ's side; here they are threads of the master's process, and in another row processes, as Celery has them. Its
floors are a bare program in C, which does the same syncs and sends the same bytes (native/replicated.c): as a slave
here, which keeps what it gets, and as a member of a group, which syncs it, too.

With --tls the other side is cystore, too, with a certificate: RocketMQ's HAService has no TLS.
"""

from __future__ import annotations

import argparse
import os
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
from benchmarks.peers import rocketmq_peer
from benchmarks.store.loopback import BODY_BYTES, RECORD_BYTES, certificate, loopback, most_puts, puts
from benchmarks.store.shipping import Pair, Rounds, Took, room, shipped, slower
from benchmarks.suite.failures import MeasureError

WRITERS, ROUNDS, TURNS = 16, 3, 2
REPLICATED_ROUNDS = 2 * (ROUNDS + 1)  # into one log: of threads and of processes, and each warms up
PAIRS, PEER_PAIRS = 15, 9  # in a turn; RocketMQ keeps more pages in memory
FLOOR_RECORD_BYTES = BODY_BYTES + 91 + 10 + 32  # as long as a record of `puts`
EASY_PACE, PACE_STEP = 200_000, 10_000
SHIP_GOAL, REPLICATED_GOAL, SLOWER_GOAL = 2.0, 2.0, 0.10
WRITE = """
import sys, cystore
from benchmarks.store.loopback import puts
path, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with cystore.open(path, broker_role="sync_master", flush_disk_type="sync", slave_timeout_ms=60_000, services="none",
                  mapped_file_size_commit_log_bytes=size) as store:
    print(flush=True)
    while sys.stdin.readline():
        puts(store, count)
        print(flush=True)
"""
PARTS = ("a put", "of it on a processor", "of it ready for a processor")

Figures = dict[str, float]


def replicated(folder: Path, count: int, **more: Any) -> Figures:
    """Replicated puts, of threads and of processes."""
    settings = {"broker_role": "sync_master", "flush_disk_type": "sync", "slave_timeout_ms": 60_000, **more}
    bytes_ = REPLICATED_ROUNDS * count * RECORD_BYTES
    with loopback(folder, bytes_, populate_ahead_bytes=bytes_, **settings) as pair:
        pair.follow()
        threads = [_in_threads(pair.master, count) for _ in range(ROUNDS + 1)]
        with _writers(pair.master, count) as turn:
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


def _replicated_by_rocketmq(folder: Path, count: int) -> Figures:
    options = {"count": count, "body-bytes": BODY_BYTES, "writers": WRITERS}
    rate = float(rocketmq_peer.ask("replicated", folder, options)["ops_per_s"])
    return {"ops_per_s": rate, "of_processes_ops_per_s": rate}  # its writers are threads


def _shipped_by_rocketmq(folder: Path, count: int) -> Rounds:
    options = {"count": count, "body-bytes": BODY_BYTES, "rounds": PEER_PAIRS}
    answer = rocketmq_peer.ask("ship", folder, options)
    rounds = zip(answer["alone_ns"], answer["beside_ns"], answer["shipped_ns"], strict=True)
    pairs = [
        Pair(Took(alone / count), Took(beside / count), until / count) for alone, beside, until in rounds
    ]
    return Rounds(pairs, answer["backlog_bytes_per_s"])


def _bare(count: int, put_ns: float, pace: int) -> list[Pair]:
    """The pairs of the bare C program that ships, of puts that take `put_ns` of a processor."""
    with tempfile.TemporaryDirectory() as folder:
        lines = shipped_ns(Path(folder), count, FLOOR_RECORD_BYTES, round(put_ns), PAIRS, pace)
    sides = ([ns / count for ns in line] for line in lines)
    return [Pair(Took(*side[:3]), Took(*side[3:])) for side in sides]


class Shipping:
    """The rounds of both sides over some turns. The paces of our puts: EASY_PACE, RocketMQ's own one, and none."""

    def __init__(self, count: int, turns: int, *, tls: bool) -> None:
        self._count, self._tls = count, tls
        self.ours: list[Rounds] = []
        self.theirs: list[Rounds] = []
        if not tls:
            self._peer()
        self.pace = EASY_PACE if tls else -(-round(rate(self.theirs)) // PACE_STEP) * PACE_STEP
        self.paced: dict[int, list[Pair]] = {EASY_PACE: [], self.pace: []}
        for turn in range(turns):
            self._own()
            if tls or turn:
                self._peer()

    def _own(self) -> None:
        for pace, pairs in self.paced.items():
            pairs += self._rounds(pace).pairs
        self.ours.append(self._rounds(0))

    def _peer(self) -> None:
        if self._tls:
            with tempfile.TemporaryDirectory() as keys:
                self.theirs.append(self._rounds(0, **certificate(Path(keys))))
        else:
            with tempfile.TemporaryDirectory() as folder:
                self.theirs.append(_shipped_by_rocketmq(Path(folder), self._count))

    def _rounds(self, pace: int, **settings: Any) -> Rounds:
        with tempfile.TemporaryDirectory() as folder:
            return shipped(Path(folder), self._count, PAIRS, pace, **settings)


def pairs_of(runs: list[Rounds]) -> list[Pair]:
    return [pair for run in runs for pair in run.pairs]


def rate(runs: list[Rounds]) -> float:
    """Puts a second beside a slave."""
    return 1e9 / median(pair.beside.ns for pair in pairs_of(runs))


def _shipping_figures(runs: list[Rounds]) -> Figures:
    pairs = pairs_of(runs)
    return {
        "backlog_bytes_per_s": median(run.backlog_bytes_per_s for run in runs),
        "ops_per_s": 1e9 / median(pair.shipped_ns for pair in pairs),
        "alone_ops_per_s": 1e9 / median(pair.alone.ns for pair in pairs),
        "beside_ops_per_s": rate(runs),
    }


def _replicated_by_both(count: int, turns: int, *, tls: bool) -> tuple[Figures, Figures]:
    """The medians of both sides over some turns; the first side of a turn changes."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for turn in range(turns):
        for side in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                if side == "ours":
                    ours.append(replicated(Path(folder), count))
                elif tls:
                    theirs.append(replicated(Path(folder), count, **certificate(Path(folder))))
                else:
                    theirs.append(_replicated_by_rocketmq(Path(folder), count))
    return _medians(ours), _medians(theirs)


def _medians(runs: list[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks replication",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--count", type=int, default=50_000, help="puts of a round, at most that (%(default)s)"
    )
    parser.add_argument(
        "--replicated", type=int, default=8_000, help="replicated puts of a round (%(default)s)"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="runs of each side (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="beside cystore with TLS; there is no goal")
    options = parser.parse_args(arguments)
    for name, rounds in (("count", room(PAIRS)), ("replicated", REPLICATED_ROUNDS)):
        asked, most = getattr(options, name), most_puts(rounds)
        if not 0 < asked <= most:
            parser.error(
                f"--{name}: {asked:,}; the puts of all rounds must fit in one log file: 1 to {most:,}"
            )
    other = "with TLS" if options.tls else "RocketMQ"
    print(f"{'':<48} {'cystore':>12} {other:>12} {'ratio':>7}  {'' if options.tls else 'goal'}")
    reached, failed = True, False
    for part, count in ((_ship, options.count), (_replicate, options.replicated)):
        try:
            reached &= part(count, options.turns, tls=options.tls)
        except MeasureError as error:
            print(f"not measured: {error}", flush=True)
            failed = True
    return 0 if (reached or options.tls) and not failed else 1


def _ship(count: int, turns: int, *, tls: bool) -> bool:
    shipping = Shipping(count, turns, tls=tls)
    ours, theirs = _shipping_figures(shipping.ours), _shipping_figures(shipping.theirs)
    goal = 0.0 if tls else SHIP_GOAL
    reached = _line("backlog to a new slave, MB/s", ours, theirs, "backlog_bytes_per_s", goal, 1e6)
    reached &= _line("puts until the slave has them, /s", ours, theirs, "ops_per_s", goal)
    _line("puts without a slave, /s", ours, theirs, "alone_ops_per_s")
    _line("puts beside a slave, /s", ours, theirs, "beside_ops_per_s")
    flat = pairs_of(shipping.ours)
    put_ns = median(pair.alone.ran_ns for pair in flat)
    print(f"{'a put is slower beside a slave by':<48} {'median':>12} {'quartiles':>12} {'pairs':>7}")
    for pace, pairs in shipping.paced.items():
        judged = pace == shipping.pace and not tls
        found = _slower(f"at {pace:,} puts a second", pairs, f"<= {SLOWER_GOAL:.0%}" if judged else "")
        reached &= not judged or found <= SLOWER_GOAL
    _slower("as fast as they go", flat)
    _slower(f"{'with TLS' if tls else 'RocketMQ'}: as fast as they go", pairs_of(shipping.theirs))
    bare, paced = _bare(count, put_ns, 0), _bare(count, put_ns, shipping.pace)
    _slower(f"floor in C: at {shipping.pace:,} puts a second", paced)
    _slower("floor in C: as fast as they go", bare)
    _parts(flat, bare)
    _wanted(flat)
    return reached


def _slower(what: str, pairs: list[Pair], goal: str = "") -> float:
    middle, low, high = slower(pairs)
    quartiles = f"{low:.0%} to {high:.0%}"
    print(f"  {what:<46} {middle:>12.0%} {quartiles:>12} {len(pairs):>7}  {goal}", flush=True)
    return middle


def _parts(ours: list[Pair], floor_: list[Pair]) -> None:
    """What the time of a put is made of, without a slave and beside one."""
    print(f"{'as fast as they go':<48} {'no slave':>12} {'slave':>12}")
    for who, pairs in (("cystore", ours), ("floor in C", floor_)):
        for part, what in enumerate(PARTS):
            alone, beside = (
                median(side[part] for side in sides)
                for sides in ([pair.alone for pair in pairs], [pair.beside for pair in pairs])
            )
            print(f"  {f'{who}: {what}, ns':<46} {alone:>12,.0f} {beside:>12,.0f}", flush=True)


def _wanted(pairs: list[Pair]) -> None:
    """How many processors both sides want for puts at the speed that these have without a slave."""
    master, slave = median(pair.master_ns for pair in pairs), median(pair.slave_ns for pair in pairs)
    alone = median(pair.alone.ns for pair in pairs)
    print(f"{'ns on the processors for a put, all threads':<48} {'master':>12} {'slave':>12}")
    print(f"{'':<48} {master:>12,.0f} {slave:>12,.0f}")
    print(
        f"  puts every {alone:,.0f} ns, as without a slave, want {(master + slave) / alone:.1f} processors; "
        f"there are {os.cpu_count()}",
        flush=True,
    )


def _replicate(count: int, turns: int, *, tls: bool) -> bool:
    ours, theirs = _replicated_by_both(count, turns, tls=tls)
    goal, reached = 0.0 if tls else REPLICATED_GOAL, True
    for what, name in (("threads", "ops_per_s"), ("processes", "of_processes_ops_per_s")):
        reached &= _line(f"replicated puts of {WRITERS} {what}, /s", ours, theirs, name, goal)
    for what, syncs in (("the slave keeps it", False), ("the slave syncs it, too", True)):
        found = median(_floor(count, syncs=syncs) for _ in range(turns))
        print(f"{f'floor in C: {what}, /s':<48} {found:>12,.0f} {'':>12} {ours['ops_per_s'] / found:>7.2f}")
    return reached


def _floor(count: int, *, syncs: bool) -> float:
    """Replicated puts a second of the bare C program."""
    with tempfile.TemporaryDirectory() as folder:
        took_ns = replicated_ns(Path(folder), WRITERS, count, FLOOR_RECORD_BYTES, syncs=syncs)
    return count * 1e9 / took_ns


def _line(what: str, ours: Figures, theirs: Figures, name: str, goal: float = 0.0, unit: float = 1.0) -> bool:
    ratio = ours[name] / theirs[name]
    wanted = f">= {goal:g}" if goal else ""
    print(
        f"{what:<48} {ours[name] / unit:>12,.0f} {theirs[name] / unit:>12,.0f} {ratio:>7.2f}  {wanted}",
        flush=True,
    )
    return ratio >= goal
