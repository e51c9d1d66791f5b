"""Episodes: one process is killed at a place inside of a piece of the store (transactions, consumers, ...), others go
on or come after it, and everything is read back. The kill test of a piece plays each place; its row of the fault matrix
plays places by chance."""

from __future__ import annotations

from collections.abc import Mapping


def armed(environment: Mapping[str, str], place: str, hits: int) -> dict[str, str]:
    """The environment of a process that is killed when it comes to this place for the n-th time."""
    return {**environment, "CYSTORE_FAILPOINT": f"{place}:{hits}"}
