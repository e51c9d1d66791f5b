"""Writers of a fork server that live on one store while something is done to it; and what must hold afterwards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cystore
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed
from tests.support.processes.fork_server import ForkServer
from tests.support.small_stores import SETTINGS

STEPS = 1_000_000  # until they are killed


class WriterGroup:
    """Some writers. Their keys begin with their numbers, so it shows who continues."""

    def __init__(
        self,
        fork_server: ForkServer,
        path: Path,
        rng: random.Random,
        count: int,
        *,
        life: str = "live",
        settings: dict[str, Any] = SETTINGS,
        **more: Any,
    ) -> None:
        self._herd, self._rng = fork_server, rng
        given = {"path": str(path), "settings": settings, "steps": STEPS, **more}
        self.members = {
            fork_server.fork(life, seed=number, **given): number for number in range(1, count + 1)
        }

    def goes_on(self) -> None:
        """Every one of them gets more puts acknowledged."""
        self._herd.news()
        begin, waited_for = len(self._herd.acknowledged), {str(n) for n in self.members.values()}
        while waited_for:
            self._herd.news(1)
            new = self._herd.acknowledged[begin:]
            waited_for -= {key.partition(".")[0] for *_, key in new}

    def lose_one(self) -> None:
        pid = self._rng.choice(list(self.members))
        del self.members[pid]
        self._herd.kill(pid)
        self._herd.reap(pid)

    def end(self) -> list[int]:
        """All of them are killed; gives their exit codes, for some may have ended before."""
        self._herd.kill(*self.members)
        return self.ended()

    def ended(self) -> list[int]:
        """Exit codes of all of them, once they have ended."""
        codes = self._herd.reap(*self.members)
        self.members = {}
        return codes


def check_reopened(path: Path, fork_server: ForkServer, settings: dict[str, Any] = SETTINGS) -> int:
    """Nobody is attached any more: the next to open gets in, continues, and finds all that was acknowledged, and so
    does the aftermath; gives how many."""
    with cystore.open(path, **settings) as store:
        store.put("shared", b"goes on", keys=("after",), flush="sync")
        assert store.query("shared", "after")
        count = check(store, fork_server.acknowledged)
    check_closed(path, settings)
    after_check(path, settings, fork_server.acknowledged)
    return count
