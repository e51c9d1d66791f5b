"""Duties: work for a whole store, done by one process at a time; the right to do it, and its last result.

A process that wants to do a duty gets a token, greater than every token before. A lease, in Redis or in the control
block, says which process should do the duty. Each step shows the token again while it holds the duty's lock, which only
one process has; so a process that was paused for longer than the lease is refused at its next step. After a kill inside
a step the next process gets the lock, and the locks below it repair the step's work; a killed holder's lease ends by
itself. A lease in the control block ends with its holder: it names the holder's slot, and the kernel says whether that
process lives. The control block ends with the last process, and so does every old token.
"""

from __future__ import annotations

import enum
import os
from functools import partial
from typing import NamedTuple

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.memory.locks import Held
from cystore._native.record.argument_checks import choice, instance, whole
from cystore.errors import FencedError, StoreConfigError, StoreTimeoutError
from cystore.layout import DUTIES, DUTY_WORDS
from cystore.system import platform
from cystore.system.threads.reentry import undisturbed

__all__ = ["DUTIES", "Duties", "DutyRun", "Outcome"]

MS_MAX = (1 << 31) - 1
_TOKEN, _UNTIL, _BEGUN, _TOOK, _DONE, _OUTCOME, _RUNS, _PID = range(len(DUTY_WORDS))
_PID_BITS = 32  # the last word: the process (`Control.process`), and its process id
_PID_MASK = (1 << _PID_BITS) - 1


class Outcome(enum.IntEnum):
    """The outcome of a run of a duty."""

    NEVER = 0  # it has not run since the first process attached
    DONE = 1  # nothing was left to do, or the time was over
    LOST = 2  # another process has the lease now
    BUSY = 3  # a live process is inside of a step and does not leave it
    FAILED = 4  # an error, which is in the log


class DutyRun(NamedTuple):
    """The last run of a duty: begin (ms), duration (microseconds), amount of work (bytes, files or messages, depending
    on the duty), outcome, number of runs since the first process attached, and the process that ran it (0: one of
    another PID namespace)."""

    begun_ms: int
    took_us: int
    done: int
    outcome: Outcome
    runs: int = 0
    pid: int = 0


class Lease(NamedTuple):
    """A lease that a process has: how long it lasts without a renewal, in ms, and the process id of its holder (0: one
    of another PID namespace)."""

    left_ms: int
    pid: int


def _now_ms() -> int:
    """A clock that all processes of this boot share, ms."""
    return int(clock.monotonic_s() * 1000)


def _number(duty: str) -> int:
    return DUTIES.index(choice("duty", duty, DUTIES, StoreConfigError))


def _ms(field: str, value: object) -> int:
    return whole(field, value, 0, MS_MAX, StoreConfigError)


def _token(field: str, value: object) -> int:
    return whole(field, value, 0, error=StoreConfigError)


def _lock(duty: str) -> str:
    return f"duty_{DUTIES[_number(duty)]}"


class Duties:
    """The duties of one store. Unknown names raise StoreConfigError."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def _get(self, duty: str, word: int) -> int:
        return self._control.duty_word(_number(duty), word)

    def _set(self, duty: str, word: int, value: int) -> None:
        self._control.set_duty_word(_number(duty), word, value)

    def _take(self, duty: str, token: int, ttl_ms: int) -> None:
        """Notes this process as the holder first: after a kill in between the lease is no living process's."""
        self._set(duty, _PID, self._own_process())
        self._set(duty, _TOKEN, token)
        self._set(duty, _UNTIL, _now_ms() + ttl_ms)

    def _own_process(self) -> int:
        word = self._control.process << _PID_BITS | os.getpid()
        return word - (1 << 64) if word >> 63 else word

    def _holder(self, duty: str) -> int:
        return self._get(duty, _PID) >> _PID_BITS & _PID_MASK

    def _pid(self, duty: str) -> int:
        """The process id of the last holder, 0 if it means another process here."""
        holder = self._holder(duty)
        own = not holder or self._control.namespace_of(holder) == platform.pid_namespace()
        return self._get(duty, _PID) & _PID_MASK if own else 0

    def highest_token(self, duty: str) -> int:
        """The highest token of all steps, and of all leases in the control block; 0 before the first."""
        return self._get(duty, _TOKEN)

    # ------------------------------------------------------------------------------- the lease in the control block

    def acquire(self, duty: str, ttl_ms: int) -> int | None:
        """A token with a lease of `ttl_ms`, or None while another process has the lease. A lease ends with its process,
        which the kernel knows at once."""
        return undisturbed(partial(self._acquire, duty, _ms("ttl_ms", ttl_ms)))

    def _acquire(self, duty: str, ttl_ms: int) -> int | None:
        with self._control.held_if_free(_lock(duty)) as turn:
            if not turn.held or (self._left_ms(duty) and self._control.lives(self._holder(duty))):
                return None
            token = self._get(duty, _TOKEN) + 1
            self._take(duty, token, ttl_ms)
            return token

    def release(self, duty: str, token: int) -> None:
        """Ends a lease before its time, unless another process has a newer one."""
        undisturbed(partial(self._release, duty, _token("token", token)))

    def _release(self, duty: str, token: int) -> None:
        with self._control.held_if_free(_lock(duty)) as turn:
            if turn.held and self._get(duty, _TOKEN) == token:
                self._set(duty, _UNTIL, 0)

    def step(self, duty: str, token: int, *, ttl_ms: int, wait_ms: int = 100) -> Held:
        """A with block for one step of a duty. No other process does a step meanwhile, and no process with an older
        token does one afterwards.

        Renews the lease in the control block to `ttl_ms`. Raises FencedError if a process with a newer token was here,
        and StoreTimeoutError if a live process is inside a step for longer than `wait_ms`.
        """

        token, ttl_ms, wait_ms = _token("token", token), _ms("ttl_ms", ttl_ms), _ms("wait_ms", wait_ms)

        def entered() -> None:
            newest = self._get(duty, _TOKEN)
            if token < newest:
                raise FencedError(
                    f"{duty}: token {token} is older than {newest}: another process does this duty now"
                )
            self._take(duty, token, ttl_ms)

        def busy(reason: str, *, path: str) -> StoreTimeoutError:
            return StoreTimeoutError(f"another process is inside a step of {duty}: {reason}", path=path)

        return self._control.held(_lock(duty), timeout_ms=wait_ms, entered=entered, busy=busy)

    def lease_left_ms(self, duty: str) -> int:
        """How long the lease in the control block still lasts; 0 while no process has it."""
        left_ms = self._left_ms(duty)
        return left_ms if left_ms and self._control.lives(self._holder(duty)) else 0

    def _left_ms(self, duty: str) -> int:
        return max(0, self._get(duty, _UNTIL) - _now_ms())

    def lease(self, duty: str) -> Lease | None:
        """The lease in the control block; None while no process has it. A reader cannot ask the kernel, and shows the
        lease of a killed process until its time is over."""
        left_ms = self.lease_left_ms(duty)
        return Lease(left_ms, self._pid(duty)) if left_ms else None

    # ------------------------------------------------------------------------------------------- the last runs

    def ran(self, duty: str, run: DutyRun) -> None:
        """Records a run of this process. The numbers are for people: if two runs end at once, a reader may get parts of
        both."""
        instance("run", run, DutyRun, StoreConfigError)
        values = {
            _BEGUN: run.begun_ms,
            _TOOK: run.took_us,
            _DONE: run.done,
            _OUTCOME: int(run.outcome),
            _PID: self._own_process(),
        }
        for word, value in values.items():
            self._set(duty, word, value)
        self._set(duty, _RUNS, self._get(duty, _RUNS) + 1)

    def last(self, duty: str) -> DutyRun:
        """The last run of a duty."""
        begun, took, done, outcome, runs = (
            self._get(duty, word) for word in (_BEGUN, _TOOK, _DONE, _OUTCOME, _RUNS)
        )
        return DutyRun(begun, took, done, Outcome(outcome), runs, self._pid(duty))
