"""Lost writes: a file system that forgets what was not synced (LazyFS over FUSE). Nothing here drives one yet, and the table says so."""

from __future__ import annotations

from tests.crash.matrix import Fault, Run


def obstacle() -> str:
    return (
        "LazyFS is not driven yet; in the rows power and power-xfs the disk forgets what was not synced, too"
    )


def run(run: Run) -> None:
    raise AssertionError(obstacle())


FAULT = Fault("lost-writes", "LazyFS over FUSE forgets what was not synced", 2_000, 20, run, obstacle)
