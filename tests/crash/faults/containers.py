"""Containers: writers of one store in PID namespaces of their own, killed, stopped, and lost with their namespace.

Each namespace has a first process that forks its writers, so the thread ids are the same in all of them. Writers are
killed at random moments and at the place where a lock is announced as pending: there the kernel may call a lock
ownerless whose owner, with the same thread id in another namespace, runs. Now and then a whole namespace dies at once.
Whoever is left continues at once, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.crash.matrix import Fault, Run
from tests.support.processes.fork_server import ForkServer, environment, no_compiler
from tests.support.processes.writer_group import STEPS, check_reopened
from tests.support.small_stores import SETTINGS

CONTAINERS = 3
WRITERS = 2  # of each container
KILLS = 24  # of a case
PUTS_BETWEEN = 12  # of the writer that stays: between two kills
LONG_S, WAIT_MAX_S = 1.0, 20.0  # counted; too long on the slowest machine
PENDING = "lock.pending"
PENDING_PASSES = 4000  # a writer takes so many locks before it is done
# As a user's root where we are not root; its first process dies with it.
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["--map-root-user"])]
NAMESPACE = "__import__('os').stat('/proc/self/ns/pid').st_ino"


def obstacle() -> str:
    if not shutil.which("unshare"):
        return "no unshare"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no PID namespace can be made: {done.stderr.strip()}" if done.returncode else ""


class Scene:
    """Some containers, and one that stays and never loses its writer."""

    def __init__(self, path: Path, rng: random.Random, given: dict[str, str]) -> None:
        self.path, self._rng, self._given = path, rng, given
        self._stack = contextlib.ExitStack()
        self.kills = self.lost = self._born = 0
        self.slowest_s = 0.0
        self.long_waits = 0
        self.acknowledged: list[list[str]] = []
        self._stays = self._container()
        self._members: dict[ForkServer, list[int]] = {}

    def _container(self) -> ForkServer:
        return self._stack.enter_context(ForkServer(self._given, through=UNSHARE))

    def _fork(self, container: ForkServer, failpoint: str = "") -> int:
        self._born += 1
        return container.fork(
            "live",
            failpoint,
            path=str(self.path),
            seed=self._born,
            settings={**SETTINGS, "services": self._rng.choice(["none", "none", "all"])},
            steps=STEPS,
        )

    def _fill(self) -> None:
        while len(self._members) < CONTAINERS - 1:
            self._members[self._container()] = []
        for container, members in self._members.items():
            while len(members) < WRITERS:
                armed = self._rng.random() < 0.5
                place = f"{PENDING}:{self._rng.randrange(1, PENDING_PASSES)}" if armed else ""
                members.append(self._fork(container, place))

    def _continues(self) -> None:
        """The one that stays gets more puts acknowledged. Each waits for the last owner of a lock at most."""
        self._stays.news()
        began = time.monotonic()
        self._stays.news(1)
        waited_s = time.monotonic() - began
        self.slowest_s = max(self.slowest_s, waited_s)
        self.long_waits += waited_s > LONG_S

    def _kill_one(self) -> None:
        """One of the writers, which may have been killed at its place before. Some are stopped first."""
        container = self._rng.choice([one for one, members in self._members.items() if members])
        pid = self._rng.choice(self._members[container])
        if self._rng.random() < 0.2:
            container.send(signal.SIGSTOP, pid)
        container.kill(pid)
        container.reap(pid)
        self._members[container].remove(pid)
        self.kills += 1

    def _lose_container(self) -> None:
        container = self._rng.choice(list(self._members))
        self.kills += len(self._members.pop(container))
        container.end()
        self.acknowledged += container.acknowledged
        self.lost += 1

    def play(self) -> None:
        self._fork(self._stays)
        self._continues()
        while self.kills < KILLS:
            self._fill()
            for _ in range(self._rng.randrange(1, WRITERS * len(self._members))):
                self._stays.news(self._rng.randrange(PUTS_BETWEEN))
                self._kill_one()
                self._continues()
            if self._rng.random() < 0.15:
                self._lose_container()
                self._continues()

    def end(self) -> None:
        """Everybody dies."""
        for container in list(self._members):
            container.end()
            self.acknowledged += container.acknowledged
        self._stays.end()
        self.acknowledged += self._stays.acknowledged

    def close(self) -> None:
        self._stack.close()


def run(run: Run) -> None:
    given = environment("failpoints")
    with ForkServer(environment()) as here:
        for case in run.cases(KILLS):
            with run.case(case), case.in_memory() as folder:
                here.begin()
                path = folder / "store"
                case.begin(path, SETTINGS)
                scene = Scene(path, case.rng, given)
                try:
                    scene.play()
                    scene.end()
                finally:
                    scene.close()
                here.acknowledged += scene.acknowledged
                case.faults = scene.kills
                assert scene.slowest_s < WAIT_MAX_S, f"the next put came after {scene.slowest_s:.2f} s"
                count = check_reopened(path, here)
                run.tally(acknowledged=count, namespaces_lost=scene.lost, waits_over_1_s=scene.long_waits)


def _obstacle() -> str:
    return obstacle() or no_compiler()


FAULT = Fault(
    "containers",
    "writers in PID namespaces of their own are killed, also while a lock is pending, and with their namespace",
    20_000,
    KILLS,
    run,
    _obstacle,
)
