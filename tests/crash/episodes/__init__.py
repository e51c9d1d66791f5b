"""Episodes: one process is killed at a place inside of a piece of the store (transactions, consumers, ...), others go
on or come after it, and everything is read back. The kill test of a piece plays each place; its row of the fault matrix
plays places by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.process import Process

ENDLESS = 1_000_000  # calls of the process that is killed


def armed(environment: Mapping[str, str], place: str, hits: int) -> dict[str, str]:
    """The environment of a process that is killed when it comes to this place for the n-th time."""
    return {**environment, "CYSTORE_FAILPOINT": f"{place}:{hits}"}


def killed_beside(
    environment: Mapping[str, str],
    work: str,
    given: Callable[[int, int | None], dict[str, Any]],
    *,
    survivors: bool,
    together: bool = True,
    planted: str = "",
) -> None:
    """One process works until a place of `environment` kills it; another one does the same after it, and with
    `survivors` beside it, too (only has the store open if they are not `together`). `given` has the arguments of a
    process, from the number of its first call, and of its calls."""
    with Process(dict(environment)) as victim, Process() as other:
        if survivors:
            first = given(0, None)
            other.do(
                "import cystore; keeps = cystore.open(path, **settings)",
                path=first["path"], settings=first["settings"],
            )  # fmt: skip
        victim.send(work, **given(0, ENDLESS))
        if survivors and together:
            other.do(work, **given(ENDLESS, None))
        with pytest.raises(EOFError):
            victim.answer()
        other.do(work + planted, **given(2 * ENDLESS, None))
