"""Asks homes for results. A thread that asks sends requests, and sleeps in one Redis command until one of them is
answered.

An id whose home is known is asked there; any other id is asked at every store with a recent sign. The home does the
waiting: it answers when one of the ids is ready, and at the latest after `WAIT_MS_MOST`. The client asks nothing again
before that, unless Redis went away.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery.exceptions import ImproperlyConfigured

from cystore.celery import homes
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import lists, replica_look, result_look
from cystore.celery.routing.home_secrets import HomeSecrets
from cystore.celery.routing.messages import (
    ID_CHARS_MOST,
    Found,
    ProtocolError,
    checked_home,
)
from cystore.clock import monotonic_s
from cystore.operate.output import time_text

if TYPE_CHECKING:
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore.celery")

AROUND_S = 2.0  # a home answers within this time for ids that it may not have
MUTED_S = 30.0  # a home that did not answer is not asked for such ids for this time
SETTING = "cystore_home_silent_s"
# The setting's default. After this time without an answer, a wait without a timeout ends. A fleet restarts faster.
SILENT_S = 300.0


class RemoteReader:
    """One backend's access to results elsewhere. Safe for threads."""

    def __init__(self, backend: CystoreBackend, location: RedisLocation) -> None:
        self.location = location
        self._backend = backend
        self._lines: list[lists.Line] = []
        self._signs: tuple[float, list[str], list[str]] = (0.0, [], [])  # until when, homes, silent homes
        self._alone_until = 0.0  # no other home until then, by these signs
        self._as_of: dict[str, int] = {}  # silent homes whose replica answered, and its newest record
        self._one_at_a_time = threading.Lock()  # for threads that look whether there are other homes
        self._silent_due = 0.0  # the next look for homes that are silent
        self._muted: dict[str, float] = {}  # homes that did not answer, and until when; "" is Redis
        self.silent_s = silent_s_of(backend.app)
        self.secrets = HomeSecrets(backend.app.conf)

    def after_fork(self) -> None:
        """The connections are the parent's, and a thread of it may have the lock."""
        self._lines = []
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def line(self) -> Iterator[lists.Line]:
        """A line of this thread's for the length of a with block."""
        try:
            line = self._lines.pop()
        except IndexError:
            line = lists.Line(self.location)
        try:
            yield line
        except lists.AWAY:
            line.close()
            raise
        finally:
            if line.waits_until:  # the answer to its command would reach the next user
                line.close()
            self._lines.append(line)

    # ------------------------------------------------------------------------------------------ two ways to ask

    def look(self, ids: Iterable[str], topic: str = "results") -> dict[str, Found]:
        """The present, complete result of each id. Leaves out an id that no home knows. Raises
        `homes.HomeAwayError`."""
        found: dict[str, Found] = {}
        for one in self._found(ids, monotonic_s() + result_look.ANSWER_S, topic=topic):
            if one is not None:
                found[one.id] = one
        return found

    def _of_replicas(self, ids: Iterable[str], topic: str = "results") -> Iterator[Found]:
        """The final results that replicas have of silent homes. A Redis or a replica that is away has none."""
        asked = self._silent_homes(ids)
        if not asked:
            return
        try:
            with self.line() as line:
                for one in replica_look.final_results(line, asked, topic, self.secrets):
                    if isinstance(one, Found):
                        homes.remember(self._backend, one.id, one.answered_by)
                        yield one
                    else:
                        self._heard_of_replica(one)
        except lists.AWAY as error:
            log.debug("no replica is asked: %s", error)

    def _silent_homes(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """The ids by homes that are silent and have a replica. An id of an unknown home may be at any of them. One
        thread looks for such homes, with one connection."""
        with self._one_at_a_time:
            now = monotonic_s()
            if now >= self._silent_due:
                self._silent_due = now + result_look.SIGNS_S
                with suppress(*lists.AWAY), self.line() as line:
                    self.homes_there(line)
        found: dict[str, list[str]] = {}
        for home in self._signs[2]:
            if self._muted.get(lists.replica_of(home), 0.0) <= now:
                known = ((one, homes.sent_to(self._backend, one)) for one in ids)
                some = [one for one, at in known if at in (None, home)]
                if some:
                    found[home] = some
        return found

    def _heard_of_replica(self, state: replica_look.ReplicaState) -> None:
        if state.as_of_ms is None:
            self._as_of.pop(state.home, None)
            self._muted[lists.replica_of(state.home)] = monotonic_s() + MUTED_S
            log.warning("a replica of store %s: %s", state.home, state.why)
            return
        if state.home not in self._as_of:
            log.warning(
                "store %s is silent: its final results come from a replica, whose newest record is of %s",
                state.home,
                time_text(state.as_of_ms),
            )
        self._as_of[state.home] = state.as_of_ms

    def ask_around(self, ids: Iterable[str], topic: str = "results") -> dict[str, Found]:
        """`look` for ids that this host has never heard of. It never fails: a home, or a Redis, that does not answer
        in time counts as one without the ids, and is left alone for a while."""
        wanted, now = [one for one in ids if askable(one)], monotonic_s()
        self._muted = {home: until for home, until in self._muted.items() if until > now}
        found: dict[str, Found] = {}
        if not wanted or "" in self._muted:
            return found
        found |= {one.id: one for one in self._of_replicas(wanted, topic)}
        wanted = [one for one in wanted if one not in found]
        if not wanted or self._alone():
            return found
        around = result_look.Look(
            self, self._backend, wanted, now + AROUND_S, topic, False, leaves_out=set(self._muted)
        )
        try:
            for one in around.run():
                if one is not None:
                    found[one.id] = one
        except homes.HomeAwayError as error:
            until = monotonic_s() + MUTED_S
            self._muted.update(dict.fromkeys(around.silent(), until))
            log.warning("%s; tasks that this host has not heard of are PENDING meanwhile", error)
        return found

    def _alone(self) -> bool:
        """Whether there is no other home. The lock keeps a thousand waits from looking with a connection each."""
        with self._one_at_a_time, suppress(*lists.AWAY), self.line() as line:
            return not self.homes_there(line)
        return False  # Redis is away, and the look will report it

    def wait(self, ids: Iterable[str], timeout_s: float | None) -> Iterator[Found | None]:
        """Each id as it gets ready, until all are; None about once a second, to give the caller a turn. Raises
        TimeoutError, and `homes.HomeAwayError` if a home did not answer until then (without a timeout: for
        `silent_s`)."""
        until = float("inf") if timeout_s is None else monotonic_s() + timeout_s
        return self._found(ids, until, waits=True)

    def _found(
        self, ids: Iterable[str], until: float, *, topic: str = "results", waits: bool = False
    ) -> Iterator[Found | None]:
        listed = list(dict.fromkeys(map(str, ids)))
        for one in listed:
            if not askable(one):
                raise ProtocolError(
                    f"task id {one[:40]!r}: other hosts can be asked only for printable ids of up to "
                    f"{ID_CHARS_MOST} characters"
                )
        left, begun = dict.fromkeys(listed), monotonic_s()
        for found in self._of_replicas(listed, topic):
            left.pop(found.id, None)
            yield found
        if not left:
            return
        if not waits:  # a look has its time for the homes
            until += monotonic_s() - begun
        look = result_look.Look(self, self._backend, [*left], until, topic, waits)
        due = monotonic_s() + result_look.SIGNS_S
        for at_home in look.run():
            yield at_home
            if at_home is not None or monotonic_s() < due:
                continue
            due = monotonic_s() + result_look.SIGNS_S
            for found in self._of_replicas(look.left(), topic):
                look.drop(found.id)
                yield found
            if not look.left():
                return

    # ------------------------------------------------------------------------------------------------- homes

    def homes_there(self, line: lists.Line) -> list[str]:
        """Stores that are read through this Redis at the moment, this process's own left out."""
        now = monotonic_s()
        if now >= self._signs[0]:
            live = [name for name, ago_ms in line.signs() if ago_ms <= lists.LIVE_MS]
            named = [name for name in live if _is_home(name)][: lists.HOMES_MOST]
            copied = [name.removesuffix(lists.REPLICA) for name in live if name.endswith(lists.REPLICA)]
            silent = [name for name in copied if _is_home(name) and name not in named]
            self._signs = (now + result_look.SIGNS_S, named, silent)
            for name in named:
                self._as_of.pop(name, None)
        own = homes.own_id(self._backend)
        named = [self._backend.home] if self._backend.home else []
        found = [name for name in dict.fromkeys([*named, *self._signs[1]]) if name != own]
        self._alone_until = 0.0 if found or self._signs[2] else self._signs[0]
        return found

    def is_alone(self) -> bool:
        """Whether the last look, not long ago, found no other home, and no replica of a silent one. Asks nobody."""
        return monotonic_s() < self._alone_until

    def forget_signs(self) -> None:
        """The next look asks which homes there are."""
        self._signs, self._alone_until = (0.0, [], []), 0.0

    def away(self, home: str, why: str, asked_s: float) -> homes.HomeAwayError:
        """The error for a home that did not answer; without `home`, for an unknown one."""
        who = f"store {home} did not answer" if home else "no store answered"
        as_of_ms = self._as_of.get(home)
        known = (
            f", and its replica has no final result, as of its newest record of {time_text(as_of_ms)}"
            if as_of_ms is not None
            else ""
        )
        return homes.HomeAwayError(
            f"{who} within {asked_s:.1f} s through the Redis at {self.location}{f' ({why})' if why else ''}{known}. "
            "The workers of a store "
            "answer for it: one of them must run, with this Redis as its reader (the broker, or ?reader= in "
            "result_backend), and "
            "without cystore_read_service = False"
        )

    def redis_away(self, ids: Collection[str], error: BaseException) -> homes.HomeAwayError:
        """The error for a Redis that did not answer, or does not want us."""
        text = self.location.without_secrets(f"{type(error).__name__}: {error}")
        known = {homes.sent_to(self._backend, one) or self._backend.home for one in ids}
        named = ", ".join(sorted(home for home in known if home))
        return homes.HomeAwayError(
            f"{f'store {named}' if named else 'a store elsewhere'} cannot be asked for results: the Redis at "
            f"{self.location} is down, "
            f"or refuses us: {text.rstrip('.')}"
        )


def silent_s_of(app: Any) -> float:
    """The setting: the longest time without an answer for a wait without a timeout. Raises ImproperlyConfigured."""
    chosen = app.conf.get(SETTING, SILENT_S)
    if chosen is None:
        return math.inf
    if isinstance(chosen, bool) or not isinstance(chosen, (int, float)) or not chosen > 0:
        raise ImproperlyConfigured(f"{SETTING} must be a number of seconds above 0, or None, not {chosen!r}")
    return float(chosen)


def askable(task_id: str) -> bool:
    """Whether an id can stand in a request."""
    return 0 < len(task_id) <= ID_CHARS_MOST and task_id.isprintable()


def _is_home(name: str) -> bool:
    try:
        checked_home(name, "")
    except ProtocolError:
        return False
    return True
