"""What a run says while it works: lines, and a bar where a person looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cystore.cli.progress import progress

PLAIN_STEP = 0.2  # the share of the work that is worth a line where no person looks


def say(text: str = "") -> None:
    """A line for whoever started the run."""
    print(text, flush=True)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that shows how much of `total` is done: a bar on a terminal, else a line now and then."""
    told = 0.0

    def plain(done: int) -> None:
        nonlocal told
        if done == total or done / total - told >= PLAIN_STEP:
            told = done / total
            say(f"        {what}: {done:,} of {total:,}")

    with progress(first_after_s=0.0) as drawn:
        yield plain if drawn is None else lambda done: drawn(what, done, total)
