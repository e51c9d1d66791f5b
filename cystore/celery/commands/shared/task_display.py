"""The display of a task's life: as a line, as JSON; and progress while the commands read the log for it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cystore.celery.base.reading import Placed, Source, Stores
from cystore.celery.lifecycle import task_lives
from cystore.celery.lifecycle.task_lives import Life
from cystore.operate.output import one_line, time_text, write_json, write_line
from cystore.operate.progress import progress

TEXT_CHARS = 120  # the longest arguments or error on a line for people
EVERY = 256  # entries between two reports of progress
UNITS = (("d", 86_400), ("h", 3600), ("min", 60))
Entry = TypeVar("Entry", bound=Placed)


def watched(store: Source, newest_first: Iterable[Entry], *, lines_follow: bool) -> Iterator[Entry]:
    """The entries. At a terminal, standard error shows how far back in the log they are. With `lines_follow` the caller
    writes while it reads; then there is no bar if its lines go to a terminal, because it would stand between them.
    Several stores have none either."""
    with progress() as report:
        if report is None or isinstance(store, Stores) or (lines_follow and sys.stdout.isatty()):
            yield from newest_first
            return
        end, begin = store.wrote_position, store.stats()["min_physical_offset"]
        for number, entry in enumerate(newest_first):
            if number % EVERY == 0:
                report("reading the log", end - entry.physical_offset, max(1, end - begin))
            yield entry


def duration_text(seconds: float) -> str:
    """A length of time: three digits below a minute, then the two largest units."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    words: list[str] = []
    for unit, size in (*UNITS, ("s", 1)):
        if whole >= size and len(words) < 2:
            words.append(f"{whole // size} {unit}")
            whole %= size
    return " ".join(words)


def life_object(life: Life) -> dict[str, Any]:
    """A life for programs, without unknown fields."""
    told = {
        name: value
        for name, value in dataclasses.asdict(life).items()
        if value is not None and name not in task_lives.NOT_SHOWN
    }
    if life.wait_ms is not None:
        told["wait_s"] = life.wait_ms / 1000
    return told


def life_words(life: Life) -> list[str]:
    """State, id and name of a task, for a line."""
    return [f"{life.outcome or life.stage or '?':<10}", life.task_id, life.name or "-"]


def short(text: str) -> str:
    """The beginning of a text, on one line."""
    shown = one_line(text[: TEXT_CHARS + 1])
    return shown if len(text) <= TEXT_CHARS else f"{shown[:TEXT_CHARS]}..."


def call_text(life: Life) -> str:
    """The kept arguments, as in a call; empty without any."""
    args, kwargs = (life.args or "").strip("()").rstrip(","), (life.kwargs or "").strip("{}")
    return f"({', '.join(filter(None, (args, kwargs)))})" if args or kwargs else ""


def line(*words: str) -> str:
    """Words of a line for people."""
    return one_line("  ".join(filter(None, words))).rstrip()


def at(time_ms: int | None) -> str:
    """A time for people."""
    return "-" if time_ms is None else time_text(time_ms)


def write_causes(causes: Sequence[Life], *, as_json: bool) -> None:
    """The tasks whose failures kept a task from running, the root cause last."""
    for one in causes:
        if as_json:
            write_json({"kind": "cause", **life_object(one)})
        else:
            write_line(line("  because of", *life_words(one), short(one.exception or "")))
