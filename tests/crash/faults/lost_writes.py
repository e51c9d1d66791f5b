"""Lost writes: a disk forgets what was not synced, at any request: all of it, some names, some pages, or parts of
pages.

What was acknowledged as durable must be there, whenever that was said: an answer to a sync is the disk's own promise,
and after the power went it makes none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import cystore
from cystore.system import files
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.disks.disk_writers import WAIT_S, Acknowledgements, start
from tests.support.disks.forgetful import ForgetfulDisk, Power, obstacle
from tests.support.processes.fork_server import no_compiler
from tests.support.processes.forks import Nursery
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import SETTINGS

WRITERS = 3
LIVES = 3  # of one store; each loses its power up to three times
SETTINGS_HERE = {**SETTINGS, "allow_any_file_system": True}


def on_disks(
    run: Run,
    power: Power,
    made: Callable[[], Nursery],
    lives: Callable[[Case, Nursery, ForgetfulDisk], None],
    *,
    ignores_sync: bool = False,
) -> None:
    """Plays cases on one disk; a case that fails leaves a copy of it, and the next one begins with a new disk."""
    with ExitStack() as machine:
        disk: ForgetfulDisk | None = None
        for case in run.cases():
            done = False
            with run.case(case):
                if disk is None:
                    nursery = machine.enter_context(made())
                    disk = machine.enter_context(ForgetfulDisk(nursery, power, ignores_sync=ignores_sync))
                lives(case, nursery, disk)
                done = True
            if not done:
                if disk is not None:
                    disk.copy_left(case.folder / "left")
                machine.close()
                disk = None


def run(run: Run, *, ignores_sync: bool = False) -> None:
    clock = ShiftedClock(run.folder("clock"))
    with Acknowledgements() as told, Power() as power:

        def made() -> Nursery:
            return Nursery(clock.environment({**os.environ}), own_mounts=True, keep=(told.out, power.tell))

        def lives(case: Case, nursery: Nursery, disk: ForgetfulDisk) -> None:
            Store(case, nursery, disk, told, clock, run).lives()

        on_disks(run, power, made, lives, ignores_sync=ignores_sync)


class Store:
    """A store that loses its power again and again, while it is written to, while it recovers and after it was
    closed."""

    def __init__(
        self,
        case: Case,
        nursery: Nursery,
        disk: ForgetfulDisk,
        told: Acknowledgements,
        clock: ShiftedClock,
        run: Run,
    ) -> None:
        self._case, self._rng, self._run = case, case.rng, run
        self._nursery, self._disk, self._told, self._clock = nursery, disk, told, clock
        self._folder = case.folder / "disk"
        self._path = self._folder / "store"

    def lives(self) -> None:
        rng, cuts = self._rng, 0
        self._told.forget()
        self._clock.offset_ms = 0
        settings = {
            **SETTINGS_HERE,
            "services": rng.choice(("none", "all", ["flush", "allocate"])),
            "flush_interval_commit_log_ms": 2,
            "flush_interval_consume_queue_ms": 5,
        }
        sync_share = rng.choice((0.0, 0.2, 1.0))
        if self._case.shape.name:
            with self._disk.mounted(self._folder):
                self._case.begin(self._path, SETTINGS_HERE)
        for _ in range(LIVES):
            self._written_to(settings, sync_share)
            cuts += 1
            while rng.random() < 0.4:
                self._recovering()
                cuts += 1
            cuts += self._looked_at()
        with self._disk.mounted(self._folder):
            self._case.shape.remove(self._path)
            files.sync_directory(self._folder)  # else the next store's power cut brings it back
        self._case.faults = cuts

    def _written_to(self, settings: dict[str, Any], sync_share: float) -> None:
        rng, told = self._rng, self._told
        self._disk.mount(self._folder)
        with ExitStack() as stack:
            stack.callback(self._disk.unmount, self._folder, in_use=True)
            at = rng.choice((0, rng.randrange(1, 60), rng.randrange(1, 600)))
            self._disk.cut_at(at)
            writers = [stack.enter_context(self._nursery.fork()) for _ in range(WRITERS)]
            for writer in writers:
                seed = rng.randrange(1 << 40)
                start(writer, told, self._path, settings, seed=seed, sync_share=sync_share)
            enough = len(told.puts) + rng.choice((0, rng.randrange(1, 60), rng.randrange(60, 300)))
            while at or len(told.puts) < enough:
                if not told.wait(len(told.puts) + rng.randrange(1, 40), writers, [self._disk.power.gone]):
                    break
                # A recovery walks the last seconds alone, and believes what was synced before.
                self._clock.offset_ms += rng.choice((0, rng.randrange(5000)))
                self._write_back()
            self._disk.cut_now()
        told.take()
        self._forget()

    def _write_back(self) -> None:
        """The kernel writes what it likes, when it likes: here the pages of some files, which are not synced by
        that."""
        with contextlib.suppress(FileNotFoundError), _power_may_be_gone():
            found = sorted(path for path in self._path.rglob("*") if path.is_file())
            for path in self._rng.sample(found, self._rng.choice((0, min(len(found), 3), len(found)))):
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _recovering(self) -> None:
        """Somebody opens and closes the store; sometimes that is done before the power is gone."""
        self._disk.mount(self._folder)
        with ExitStack() as stack:
            stack.callback(self._disk.unmount, self._folder, in_use=True)
            self._disk.cut_at(self._rng.randrange(1, 120))
            one = stack.enter_context(self._nursery.fork())
            one.send(
                "import cystore, logging\nlogging.disable()\ncystore.open(path, **settings).close()",
                path=str(self._path),
                settings=SETTINGS_HERE,
            )
            assert select.select([one.answers, self._disk.power.gone], [], [], WAIT_S)[0], "recovery hangs"
            if not self._disk.power.is_gone:
                one.answer()
            self._disk.cut_now()
        self._forget()

    def _looked_at(self) -> int:
        """By somebody who has no trouble with the disk; the power may go afterwards. Gives how often it went."""
        with self._disk.mounted(self._folder) as seen:
            read_only = (seen / "store" / "lock").exists() and self._rng.random() < 0.5
            with cystore.open(seen / "store", **{**SETTINGS_HERE, "read_only": read_only}) as store:
                left, gone = self._told.check(store)
                warnings = store.recovery.warnings if store.recovery else ()
                # Queues may lag behind the log, and are filled again; what is written whole or not at all is whole.
                assert all(text.startswith("consume queues lack") for text in warnings), warnings
            if not read_only:
                check_closed(seen / "store", SETTINGS_HERE)
                aftermath(seen / "store", SETTINGS_HERE, self._told.check)
            self._run.tally(acknowledged=left, lost_not_durable=gone)
            if self._rng.random() < 0.5:
                return 0
            self._disk.cut_now()
        self._forget()
        return 1

    def _forget(self) -> None:
        self._case.lose_memory()
        gone = self._disk.power_on(self._rng)
        self._run.tally(**{f"forgotten_{name}": count for name, count in gone.items()})


@contextlib.contextmanager
def _power_may_be_gone():
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


FAULT = Fault(
    "lost-writes",
    "a FUSE disk (LazyFS's model) forgets what was not synced, at any request of several writers or a recovery",
    2_000,
    30,
    run,
    lambda: obstacle() or no_compiler(),
)
