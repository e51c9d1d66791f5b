"""The duties, and how one is run: a lease, then step after step until nothing is left or the time is over.

The lease is in Redis if the app has one that answers, else in the store's control block. Both kinds of lease get a
token above the highest one that the store knows, and each step tells the store its token. The store refuses a step
whose token is lower than the highest one. So two workers never do a duty at once, whatever Redis says
(`cystore.services.duty_table`). A kill leaves a lease, which in Redis ends by itself and in the store at once, and an
unfinished step, which the store's own locks repair.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from celery.exceptions import ImproperlyConfigured

from cystore import FencedError, MessageStore, StoreClosedError, StoreError, StoreTimeoutError
from cystore.celery.backend import CystoreBackend
from cystore.celery.base import greenlets
from cystore.celery.base.identity import store_id_of
from cystore.celery.chords import chord_steps
from cystore.celery.eta import sending
from cystore.celery.redis_urls import RedisAwayError, redis_location_of
from cystore.celery.schedules import runs
from cystore.clock import monotonic_s, now_ms
from cystore.services.duty_table import Duties, DutyRun, Outcome
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore.celery")

LOCK_WAIT_S = 0.1  # the longest wait for another process that is inside a step
STEP_BYTES = 4 << 20  # the log that one step dispatches, in some 15 ms
STEP_MESSAGES = 1_000  # delivered in one step
EXPIRES_PERIODS = 0.8  # a tick that no worker took expires before the next one comes
IDLE_S = 300.0  # a duty without need is done this often, in case its need was not noticed
QUIET_S = (
    5.0  # needs are examined this often while nothing is appended, and earlier at a due time or an append
)
SCRUB_ROUND_MS = 3_600_000  # a small store is not verified all the time


class Duty(NamedTuple):
    """`step(app, store)` does a bounded piece and returns (the amount of work, whether more is left). Times in s: a
    tick comes every `period_s`, begins no step after `bound_s`, and has a lease of `lease_s`, which is longer than any
    step. `needed(store)` says whether there is work."""

    name: str
    period_s: float
    bound_s: float
    lease_s: float
    step: Callable[[Any, MessageStore], tuple[int, bool]]
    needed: Callable[[MessageStore], bool]
    # True: it uses connections to the broker, which belong to one thread (under greenlets: to one hub)
    sends: bool = False
    # True: a turn that its bound ended is followed by another one at once, not after a period
    goes_on: bool = False

    @property
    def task(self) -> str:
        """The name of its task."""
        return f"cystore.{self.name}"

    @property
    def expires_s(self) -> float:
        """The time for which a tick may wait for a worker."""
        return self.period_s * EXPIRES_PERIODS


def _reput(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Dispatches appended records into consume queues and index; counts bytes of log. Without this duty, readers do the
    same before they read. Source: DefaultMessageStore.ReputMessageService."""
    done = store.dispatch(max_bytes=STEP_BYTES, timeout_s=LOCK_WAIT_S)
    return done, done > 0


def _deliver(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Delivers delayed messages that are due, runs the schedules and sends the tasks among them; counts all. Source:
    ScheduleMessageService."""
    done = store.deliver(max_messages=STEP_MESSAGES, timeout_s=LOCK_WAIT_S)
    ran, more_runs = runs.run_due(app, store)
    sent, more = sending.send_due(app, store)
    return done + ran + sent, done > 0 or more_runs or more


def _delayed(store: MessageStore) -> bool:
    return store.maintenance.delayed or runs.is_due(store) or sending.is_due(store)


def _sweep_chords(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Ends chords whose parts are all there and whose claim was lost; counts bodies sent."""
    return chord_steps.sweep(app, store), False


def _clean(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Begins a segment by time, checks the disk, removes expired files; counts them. Source:
    DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService."""
    progress = store.clean_due()
    return progress.done, progress.more


def _flush(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Makes the log durable; counts bytes. Source: CommitLog.FlushRealTimeService."""
    return store.flush_log(), False


def _checkpoint(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Makes queues, index and the checkpoint durable; counts bytes of log. Source:
    DefaultMessageStore.FlushConsumeQueueService."""
    return store.checkpoint(), False


def _scrub(app: Any, store: MessageStore) -> tuple[int, bool]:
    """Verifies the next slice of the store; counts bytes of log."""
    found = store.scrub(pause_ms=SCRUB_ROUND_MS)
    return found.end - found.begin, False


REPUT = Duty("reput", 1.0, 0.5, 5.0, _reput, lambda store: store.maintenance.dispatch_bytes > 0)
DELIVER_DELAYED = Duty("deliver_delayed", 1.0, 0.5, 5.0, _deliver, _delayed, sends=True, goes_on=True)
CLEAN_EXPIRED = Duty("clean_expired", 10.0, 2.0, 30.0, _clean, lambda store: store.maintenance.clean)
FLUSH = Duty("flush", 2.0, 1.0, 15.0, _flush, lambda store: store.maintenance.flush_bytes > 0)
CHECKPOINT = Duty(
    "checkpoint", 30.0, 5.0, 30.0, _checkpoint, lambda store: store.maintenance.checkpoint_bytes > 0
)
CHORD_SWEEP = Duty("chord_sweep", 5.0, 2.0, 15.0, _sweep_chords, chord_steps.sweep_is_due, sends=True)
SCRUB = Duty("scrub", 10.0, 1.0, 15.0, _scrub, lambda store: store.maintenance.scrub)
ALL: dict[str, Duty] = {
    duty.name: duty for duty in (REPUT, DELIVER_DELAYED, CLEAN_EXPIRED, FLUSH, CHECKPOINT, CHORD_SWEEP, SCRUB)
}


NEEDED = (CLEAN_EXPIRED, DELIVER_DELAYED, CHORD_SWEEP)  # duties that every store needs, with or without ticks


class Held(Protocol):
    """A lease, of Redis or of the control block."""

    token: int

    def renew(self) -> bool: ...
    def progress(self, done: int) -> bool: ...


class LocalLease:
    """A lease in the store's control block; each step renews it."""

    def __init__(self, duties: Duties, duty: str, token: int) -> None:
        self.token = token
        self._duties, self._duty = duties, duty

    def renew(self) -> bool:
        """Whether no other worker has a newer token."""
        return self._duties.highest_token(self._duty) == self.token

    def progress(self, done: int) -> bool:
        """The same; the control block holds no progress."""
        return self.renew()

    def release(self) -> None:
        """Gives it back."""
        self._duties.release(self._duty, self.token)


def store_of(app: Any) -> MessageStore:
    """The store of the app's result backend. Raises ImproperlyConfigured for another backend."""
    backend = app.backend
    if not isinstance(backend, CystoreBackend):
        raise ImproperlyConfigured(
            f"the duties need a result backend cystore:///path, not {backend.as_uri()}"
        )
    return backend.store


def coordination_for(app: Any) -> Any:
    """This process's `cystore.celery.base.duty_leases.Coordination` for an app; None without a Redis. Raises
    ImproperlyConfigured."""
    if redis_location_of(app) is None:
        return None
    try:
        from cystore.celery.base.duty_leases import coordination_of
    except ImportError as error:
        raise ImproperlyConfigured(
            f"the duties need Redis, and {error}: pip install cystore[redis], or set cystore_redis_url = ''"
        ) from error
    return coordination_of(app)


@contextmanager
def lease_for(app: Any, store: MessageStore, duty: Duty, *, fleet: bool = True) -> Iterator[Held | None]:
    """The lease of a duty for a with block, None while another worker has it; in Redis if that answers, unless `fleet`
    is False."""
    remote, asked = _redis_lease(app, store, duty) if fleet else (None, False)
    if asked:
        try:
            yield remote
        finally:
            if remote is not None:
                remote.release()
                store.duties.release(duty.name, remote.token)
        return
    token = store.duties.acquire(duty.name, int(duty.lease_s * 1000))
    if token is None:
        yield None
        return
    local = LocalLease(store.duties, duty.name, token)
    try:
        yield local
    finally:
        local.release()


def _redis_lease(app: Any, store: MessageStore, duty: Duty) -> tuple[Any, bool]:
    """(lease or None, whether Redis was asked)."""
    coordination = coordination_for(app)
    if coordination is None:
        return None, False
    from cystore.celery.base.duty_leases import acquire

    highest, store_id = store.duties.highest_token(duty.name), store_id_of(store)
    try:
        held = coordination.call(
            lambda client: acquire(
                client, store_id, duty.name, duty.lease_s, highest_token=highest, by=process_name()
            )
        )
    except RedisAwayError:
        return None, False
    return held and _Remote(coordination, held), True


class _Remote:
    """A lease in a Redis that may go away; it then counts as lost."""

    def __init__(self, coordination: Any, held: Any) -> None:
        self.token = held.token
        self._coordination, self._held = coordination, held

    def _ask(self, question: Callable[[], bool]) -> bool:
        try:
            return bool(self._coordination.call(lambda client: question()))
        except RedisAwayError:
            return False

    def renew(self) -> bool:
        return self._ask(self._held.renew)

    def progress(self, done: int) -> bool:
        return self._ask(lambda: self._held.progress(done))

    def release(self) -> bool:
        return self._ask(self._held.release)


def process_name() -> str:
    """The holder of a lease, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run(app: Any, duty: Duty, *, fleet: bool = True) -> int | None:
    """One tick: the amount of work; None if another worker has the lease or the duty failed. Notes the run in the
    store. Without `fleet` the lease is only in the control block, and Redis is not asked.

    Errors of the store are logged, a lasting one once; they are never raised, because the next tick tries again.
    """
    store = store_of(app)
    begun, begun_ms, done, more = monotonic_s(), now_ms(), 0, False
    _left_work.discard((store.path, duty.name))
    with lease_for(app, store, duty, fleet=fleet) as held:
        if held is None:
            log.debug("%s: another worker has the lease", duty.name)
            return None
        outcome = Outcome.DONE
        try:
            while True:
                if duty.sends:
                    step, more = _step(app, store, duty, held.token)
                else:  # an fsync, a scrub's slice, a hundred unlinks: other greenlets need not wait for that
                    step, more = greenlets.off_the_hub(_step, app, store, duty, held.token)
                done += step
                if not more or monotonic_s() - begun > duty.bound_s:
                    break
                if not held.progress(done):
                    outcome = Outcome.LOST
                    break
            _troubles[store.path, duty.name].over()
            if more and duty.goes_on and outcome is Outcome.DONE:
                _left_work.add((store.path, duty.name))
        except FencedError:
            outcome = Outcome.LOST
        except StoreClosedError:
            raise
        except StoreTimeoutError as error:
            outcome = Outcome.BUSY
            log.debug("%s: %s", duty.name, error)
        except StoreError as error:
            outcome = Outcome.FAILED
            _tell(store, duty, error)
        if outcome is Outcome.LOST:
            log.warning("%s: the lease with token %d was lost", duty.name, held.token)
        if store.duties.highest_token(duty.name) <= held.token:
            took_us = int((monotonic_s() - begun) * 1_000_000)
            store.duties.ran(duty.name, DutyRun(begun_ms, took_us, done, outcome))
    return None if outcome is Outcome.FAILED else done


def _step(app: Any, store: MessageStore, duty: Duty, token: int) -> tuple[int, bool]:
    """One step, under the duty's lock, which belongs to a thread of the operating system."""
    with store.duties.step(duty.name, token, ttl_ms=int(duty.lease_s * 1000)):
        return duty.step(app, store)


def due_here(store: MessageStore, slack_s: float) -> list[str]:
    """Duties of a store that were not run for a period, less the slack."""
    return [duty.name for duty in ALL.values() if _since_s(store, duty) >= duty.period_s - slack_s]


def overdue_here(
    store: MessageStore,
    periods: int,
    watched_since: float,
    mine: Mapping[str, int],
    among: Iterable[Duty] = tuple(ALL.values()),
) -> list[str]:
    """Duties of a store that no worker ran for this number of periods, while this process watched (monotonic seconds).
    A duty whose last run was the caller's own (`mine`: duty and number of the run) is due after one period, because no
    other worker does it."""
    watched_s, found = monotonic_s() - watched_since, []
    for duty in among:
        due = 1 if mine.get(duty.name) == store.duties.last(duty.name).runs else periods
        if min(_since_s(store, duty), watched_s) >= duty.period_s * due:
            found.append(duty.name)
    return found


def needed_here(store: MessageStore, periods: int = 1, idle_s: float = IDLE_S) -> list[str]:
    """Duties of a store that have work and that no worker ran for this number of periods; after `idle_s` also duties
    without work."""
    found = []
    for duty in ALL.values():
        since_s = _since_s(store, duty)
        if since_s >= duty.period_s * periods and (since_s >= idle_s or _is_needed(store, duty)):
            found.append(duty.name)
    return found


def quiet_s(store: MessageStore, least_s: float) -> float:
    """The time for which a store needs no look if nothing is appended: until a delayed message is due or the period
    of a duty is over, at least `least_s`. A record that is not dispatched yet may be a delayed message; a task that is
    due waits for the broker, or for the next turn. Raises StoreError."""
    work = store.maintenance
    if work.dispatch_bytes or sending.is_due(store):
        return least_s
    due_in_ms = work.due_in_ms
    due = [QUIET_S] if due_in_ms is None else [QUIET_S, due_in_ms / 1000]
    periods = (duty.period_s - _since_s(store, duty) for duty in NEEDED if duty is not DELIVER_DELAYED)
    return max(min(*due, *(left_s for left_s in periods if left_s > 0), QUIET_S), least_s)


def _is_needed(store: MessageStore, duty: Duty) -> bool:
    """An unknown need counts as a need: the duty runs and reports the reason."""
    try:
        return duty.needed(store)
    except StoreClosedError:
        raise
    except StoreError:
        return True


def has_left_work(store: MessageStore) -> bool:
    """Whether this process ended a turn of a duty of the store only because its time was over: the next turn is due
    at once."""
    return any(path == store.path for path, _ in _left_work)


def _since_s(store: MessageStore, duty: Duty) -> float:
    """The time since a duty last began; long ago if this process left work of it, or after a clock was set back."""
    if (store.path, duty.name) in _left_work:
        return float("inf")
    since_ms = now_ms() - store.duties.last(duty.name).begun_ms
    return since_ms / 1000 if since_ms >= 0 else float("inf")


# By path and name: duties whose last turn in this process ended with work to do.
_left_work: set[tuple[Path, str]] = set()
_troubles: defaultdict[tuple[object, str], Trouble] = defaultdict(Trouble)


def _tell(store: MessageStore, duty: Duty, error: StoreError) -> None:
    """Reports a lasting error once, because the tick comes again every second."""
    if not _troubles[store.path, duty.name].tell(log, logging.ERROR, error, f"{duty.name} failed"):
        log.debug("%s failed again: %s", duty.name, error)
