"""The messages of a running job: lines, and a bar at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cystore.operate.progress import progress

PLAIN_STEP = 0.2  # the share of the work between two lines without a terminal


def say(text: str = "") -> None:
    """A line for the user that started the run."""
    print(text, flush=True)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that shows the finished part of `total`: a bar at a terminal, else a line now and then."""
    told = 0.0

    def line_now_and_then(done: int) -> None:
        nonlocal told
        if done == total or done / total - told >= PLAIN_STEP:
            told = done / total
            say(f"        {what}: {done:,} of {total:,}")

    with progress(first_after_s=0.0) as drawn:
        yield line_now_and_then if drawn is None else lambda done: drawn(what, done, total)
