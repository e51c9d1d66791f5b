"""Stop: SIGSTOP for a process that holds a lock which all share, for longer than the others wait.

A holder stops itself at a place inside the lock. Who needs the lock is refused with an error that names the holder,
or waits; who does not need it continues; nothing is taken from the holder. Then it continues (sometimes it is killed
instead), and so does everybody who waited.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import cystore
from cystore.layout import LOCK_NAMES
from tests.crash.matrix import Fault, Run
from tests.crash.shapes import Shape
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed, committed
from tests.support.processes.fork_server import ForkServer, environment, no_compiler
from tests.support.processes.places import PLACES
from tests.support.small_stores import LOG_BYTES, SETTINGS

STEPS = 400  # the way to any of the places
PATIENT = {"os_page_cache_busy_timeout_ms": 60_000, "sync_flush_timeout_ms": 60_000}
GATE = "gate"
# A lock, and places where a process has it that joined others.
INSIDE: dict[str, tuple[str, ...]] = {
    "append": (
        "append.queue_added",
        "append.intent",
        "append.claimed",
        "append.bytes_written",
        "append.before_publish",
        "append.published",
        "append.next_set",
        "append.intent_cleared",
        "append.blank_intent",
        "append.blank_published",
        "control.queue_counted",
    ),
    "dispatch": (
        "dispatch.queue_entry",
        "dispatch.queue",
        "dispatch.index",
        "dispatch.record",
        "index.end_moved",
        "index.counted",
        "index.linked",
    ),
    "flush": ("flush.leading", "flush.synced", "checkpoint.checksum_stored", "flush.watermark_stored"),
    "housekeeping": (
        "allocate.created",
        "allocate.reserved",
        "allocate.published",
    ),
    "clean": ("files.written", "files.replaced"),
    "sync": (),
    "commit": (),  # nobody takes it in a store without a pool
    "deliver": (),
    GATE: ("attach.joining", "detach.others_stay"),
}
assert set(INSIDE) == {*LOCK_NAMES, GATE}


class Scene:
    """A store, an observer who has little patience, a holder who stops, and a writer who has patience."""

    def __init__(
        self, fork_server: ForkServer, rng: random.Random, path: Path, lock: str, shape: Shape
    ) -> None:
        self.inside = {**INSIDE, **shape.stopped_in}[lock]
        self.places = {**PLACES, **shape.places}
        self.fork_server, self.rng, self.path, self.lock = fork_server, rng, path, lock
        self.shape = shape
        self.patience_ms = rng.randrange(10, 60)
        # Little patience for the lock of this case only: a live holder of another one may have to wait for a processor.
        impatient = {
            "append": {"os_page_cache_busy_timeout_ms": self.patience_ms},
            "flush": {"sync_flush_timeout_ms": self.patience_ms},
            "commit": {"sync_flush_timeout_ms": self.patience_ms} if shape.buffers else {},
        }
        self.store = cystore.open(path, **SETTINGS | PATIENT | impatient.get(lock, {}))
        self.control = self.store._attached().control
        first = self.store.put("shared", b"first", keys=("first",), flush="async")
        self.fork_server.acknowledged.append(["shared", "0", str(first.queue_offset), "first"])
        committed(self.store)
        self.store.dispatch()

    def holder(self) -> int:
        """A writer that has stopped inside the lock."""
        names: dict[str, Any] = {"path": str(self.path), "seed": 1, "settings": SETTINGS | PATIENT}
        if self.lock != GATE and (not self.inside or self.rng.random() < 0.2):
            pid = self.fork_server.fork("hold", steps=STEPS, lock=self.lock, **names)
        else:
            place = self.rng.choice(self.inside)
            passes = self.rng.randrange(self.places[place].passes) + 1
            pid = self.fork_server.fork(
                self.places[place].life, f"{place}:{passes}:stop", steps=STEPS, **names
            )
        assert self.fork_server.wait_stopped(pid), f"the holder of the {self.lock} lock ended"
        return pid

    def waiter(self) -> int:
        return self.fork_server.fork(
            "live", path=str(self.path), seed=2, settings=SETTINGS | PATIENT, steps=self.rng.randrange(5, 60)
        )

    def behind(self, holder: int) -> None:
        """The observer's view while the holder stands still."""
        if self.lock in LOCK_NAMES:
            owner = self.control.owner(self.lock)  # a thread of the holder's
            assert Path(f"/proc/{holder}/task/{owner}").exists()
            refused = self._refused(
                cystore.StoreLockedError,
                lambda: self.control.held(self.lock, timeout_ms=self.patience_ms).__enter__(),
            )
            assert f"the {self.lock} lock is held by thread {owner}" in str(refused)
        if self.lock == "append":
            self._append_is_busy(owner)
        elif self._room():
            self._acknowledge(self.store.put("shared", b"beside", keys=("beside",), flush="async"), "beside")
            if self.lock == "flush":
                self._flush_times_out(owner, "flushing")
            elif self.lock == "commit" and self.shape.buffers:
                self._flush_times_out(owner, "committing")
            else:
                self.store.put("shared", b"beside", flush="sync")
        if self.lock == "dispatch":
            assert self.store.dispatch(timeout_s=self.patience_ms / 1000) == 0
        else:
            assert bytes(self.store.get("shared", 0, 0, 1).messages[0].body)
            assert self.store.query("shared", "first")
        if self.lock in LOCK_NAMES:
            assert self.control.owner(self.lock) == owner, "the lock was taken from its owner"
        if self.lock in ("append", GATE):
            self.fork_server.news()
            assert not any(key.startswith("2.") for *_, key in self.fork_server.acknowledged), (
                "the waiter got in"
            )

    def _append_is_busy(self, owner: int) -> None:
        before = self.store.wrote_position
        for put in (
            lambda: self.store.put("shared", b"refused"),
            lambda: self.store.put_many([cystore.Message(topic="shared", body=b"refused")]),
        ):
            error = self._refused(cystore.PageCacheBusyError, put)
            assert f"thread {owner} has held the append lock" in str(error)
        assert self.store.wrote_position == before

    def _flush_times_out(self, owner: int, doing: str) -> None:
        error = self._refused(
            cystore.StoreTimeoutError,
            lambda: self.store.put("shared", b"late", keys=("late",), flush="sync"),
        )
        assert f"thread {owner} is {doing}" in str(error)
        (result,) = error.results or []
        self._acknowledge(result, "late")  # appended all the same, as it says

    def _room(self) -> bool:
        """A put by the observer needs no space, and no buffer, that the stopped process may be about to make."""
        end = self.control.log_end
        return bool(
            self.control.allocated - end > 1000 and (not self.shape.buffers or -end % LOG_BYTES > 1000)
        )

    def _acknowledge(self, put: cystore.PutResult, key: str) -> None:
        self.fork_server.acknowledged.append(["shared", "0", str(put.queue_offset), key])

    @staticmethod
    def _refused(kind: type[cystore.StoreError], call: Any) -> cystore.StoreError:
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")


def run(run: Run) -> None:
    locks = list(INSIDE)
    with ForkServer(environment("failpoints")) as fork_server:
        for case in run.cases():
            lock = locks[case.number % len(locks)]
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                case.begin(folder / "store", SETTINGS)
                scene = Scene(fork_server, case.rng, folder / "store", lock, case.shape)
                with scene.store as store:
                    holder = scene.holder()
                    waiter = scene.waiter()
                    scene.behind(holder)
                    killed = case.rng.random() < 0.2
                    if killed:
                        fork_server.kill(holder)
                    fork_server.go_on(holder)
                    codes = fork_server.reap(holder, waiter)
                    assert codes == [-signal.SIGKILL if killed else 0, 0], (lock, codes)
                    check(store, fork_server.acknowledged)
                check_closed(folder / "store", SETTINGS)
                after_check(folder / "store", SETTINGS, fork_server.acknowledged)
                run.tally(acknowledged=len(fork_server.acknowledged), **{lock: 1}, killed_instead=killed)


FAULT = Fault(
    "stop",
    "SIGSTOP for the holder of each shared lock for longer than others wait; then SIGCONT, or SIGKILL",
    500,
    6,
    run,
    no_compiler,
)
