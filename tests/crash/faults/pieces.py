"""Pieces: one process is killed at a place inside of a transaction, a consumer, a put into light queues, the
registration of a filter, a compaction, a named dispatcher, the timer, a put with a key of its own, or claims; others go
on or come after it.

A case is one store, one place and a number of hits, all chosen by chance. The episodes are those of the kill tests of
each piece.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from tests.crash.episodes import (
    claims,
    compaction,
    consumers,
    dispatchers,
    filters,
    light_queues,
    once,
    timer,
    transactions,
)
from tests.crash.matrix import Fault, Run
from tests.support.processes.fork_server import environment, no_compiler

FULL = 500


def run(run: Run, episode: ModuleType, *, company: bool, planted: str = "") -> None:
    """`company`: whether an episode tells if somebody else has the store open. `planted`: statements that one of the
    processes runs with its `store`."""
    places = sorted(episode.PLACES)
    given = environment("failpoints")
    for case in run.cases():
        with run.case(case), case.in_memory() as folder:
            place = case.rng.choice(places)
            more = {"survivors": case.rng.random() < 0.5} if company else {}
            try:
                episode.killed_at(place, case.rng, folder, given, planted=planted, **more)
            except BaseException as error:
                error.add_note(f"killed at {place}, {more}")
                raise
            run.tally(**{f"at_{place.partition(':')[0]}": 1})


def _row(name: str, where: str, episode: ModuleType, *, company: bool = False) -> Fault:
    places = len(episode.PLACES)
    at = f"any of {places} places" if places > 1 else "the place"
    return Fault(
        name, f"SIGKILL at {at} {where}", FULL, 1, partial(run, episode=episode, company=company), no_compiler
    )


PIECES: tuple[Fault, ...] = (
    _row(
        "transactions", "of the end of a transaction; others live, or nobody does", transactions, company=True
    ),
    _row("consumers", "of a consumer's process; another one takes its queues over", consumers),
    _row(
        "light-queues",
        "of a put into light queues and of its dispatch; another process lives, or nobody does",
        light_queues,
        company=True,
    ),
    _row("filters", "of the registration of a filter, beside a process that dispatches", filters),
    _row(
        "compaction",
        "of a compaction and of the cleaning behind it; another process lives, or nobody does",
        compaction,
        company=True,
    ),
    _row("dispatchers", "of a process that runs a named dispatcher; another one takes over", dispatchers),
    _row(
        "timer",
        "of a process that puts messages with a time, cancels, moves, delivers and cleans; another process lives, or "
        "nobody does",
        timer,
        company=True,
    ),
    _row("once", "behind the append of `put_once`; another process puts the same keys", once),
    _row(
        "claims",
        "of a process that puts, claims, settles and gives back messages, and cleans; another process lives, or nobody "
        "does",
        claims,
        company=True,
    ),
)
