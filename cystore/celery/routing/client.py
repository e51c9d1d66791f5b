"""Asks homes for results. A thread that asks sends requests, and sleeps in one Redis command until one of them is
answered.

An id whose home is known is asked there; any other id is asked at every store that gave a sign of late. A wait is the
home's: it answers when one of the ids is ready, and at the latest after `WAIT_MS_MOST`. Nothing is asked again before
that, unless Redis went away.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import ImproperlyConfigured
from celery.exceptions import TimeoutError as ResultTimeoutError

from cystore.celery import homes
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import lists
from cystore.celery.routing.messages import (
    ID_CHARS_MOST,
    IDS_MOST,
    PART_BYTES,
    WAIT_MS_MOST,
    Answer,
    Found,
    ProtocolError,
    Request,
    checked_home,
    new_request_id,
)
from cystore.clock import monotonic_s

if TYPE_CHECKING:
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore.celery")

ANSWER_S = 5.0  # a live home answers within this time
AROUND_S = 2.0  # ... and within this one for ids that it may not have
MUTED_S = 30.0  # a home that did not is not asked for such ids for this time
SETTING = "cystore_home_silent_s"
# its default: after this time without an answer a wait without a timeout ends too. A fleet restarts faster
SILENT_S = 300.0
WARNED_S = 10.0  # after this time without an answer the log names the home
AGAIN_S = 0.25  # between two tries of a Redis that is away, or of a home that is busy
SIGNS_S = 5.0  # for this time this process believes its list of homes
TICK_S = 1.0  # a wait gives its caller a turn about this often
LATE_S = 0.75  # an answer that is later than this when the timeout is over did not come
LATE_PARTS = 4  # this many requests for one part may be open; older answers are gone
LEAST_S = 1.0  # a home may take this long to answer once, however short the timeout is


@dataclass
class _Asked:
    """A request that is out."""

    request: Request
    at: float  # monotonic
    answer_by: float


@dataclass
class _Home:
    """This look's knowledge of one home. `asking` are the ids for the next request."""

    asking: dict[str, None] = field(default_factory=dict)
    answered: bool = False
    silent_since: float | None = None  # monotonic; None while it answers
    why: str = ""


class RemoteReader:
    """One backend's access to results elsewhere. Safe for threads."""

    def __init__(self, backend: CystoreBackend, location: RedisLocation) -> None:
        self.location = location
        self._backend = backend
        self._lines: list[lists.Line] = []
        self._signs: tuple[float, list[str]] = (0.0, [])
        self._one_at_a_time = threading.Lock()  # of those that would look whether there are other homes
        self._muted: dict[str, float] = {}  # homes that did not answer, and until when; "" is Redis
        self.silent_s = silent_s_of(backend.app)

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
        for one in self._found(ids, monotonic_s() + ANSWER_S, topic=topic):
            if one is not None:
                found[one.id] = one
        return found

    def ask_around(self, ids: Iterable[str], topic: str = "results") -> dict[str, Found]:
        """`look` for ids that this host has never heard of. It never fails: a home, or a Redis, that does not answer
        in time counts as one without the ids, and is left alone for a while."""
        wanted, now = [one for one in ids if askable(one)], monotonic_s()
        self._muted = {home: until for home, until in self._muted.items() if until > now}
        found: dict[str, Found] = {}
        if not wanted or "" in self._muted or self._alone():
            return found
        look = _Look(self, self._backend, wanted, now + AROUND_S, topic, False, leaves_out=set(self._muted))
        try:
            for one in look.run():
                if one is not None:
                    found[one.id] = one
        except homes.HomeAwayError as error:
            until = monotonic_s() + MUTED_S
            self._muted.update(dict.fromkeys(look.silent(), until))
            log.warning("%s; tasks that this host has not heard of are PENDING meanwhile", error)
        return found

    def _alone(self) -> bool:
        """Whether no other home is there. A thousand waits at once would else look with a connection each."""
        with self._one_at_a_time, suppress(*lists.AWAY), self.line() as line:
            return not self.homes_there(line)
        return False  # Redis is away, and the look says so

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
        yield from _Look(self, self._backend, listed, until, topic, waits).run()

    # ------------------------------------------------------------------------------------------------- homes

    def homes_there(self, line: lists.Line) -> list[str]:
        """Stores that are read through this Redis at the moment, this process's own left out."""
        now = monotonic_s()
        if now >= self._signs[0]:
            named = [name for name, ago_ms in line.signs() if ago_ms <= lists.LIVE_MS]
            self._signs = (now + SIGNS_S, [name for name in named if _is_home(name)])
        own = homes.own_id(self._backend)
        named = [self._backend.home] if self._backend.home else []
        return [name for name in dict.fromkeys([*named, *self._signs[1]]) if name != own]

    def forget_signs(self) -> None:
        """The next look asks which homes there are."""
        self._signs = (0.0, [])

    def away(self, home: str, why: str, asked_s: float) -> homes.HomeAwayError:
        """The error for a home that did not answer; without `home`, for an unknown one."""
        who = f"store {home} did not answer" if home else "no store answered"
        return homes.HomeAwayError(
            f"{who} within {asked_s:.1f} s through the Redis at {self.location}{f' ({why})' if why else ''}. "
            "The workers of a store "
            "answer for it: one of them must run, with this Redis as its reader (the broker, or ?reader= in "
            "result_backend), and "
            "without cystore_read_service = False"
        )

    def redis_away(self, ids: Collection[str], error: BaseException) -> homes.HomeAwayError:
        """The error for a Redis that did not answer, or does not want us."""
        text = f"{type(error).__name__}: {error}"
        if self.location.password:
            text = text.replace(self.location.password, "**")
        known = {homes.sent_to(self._backend, one) or self._backend.home for one in ids}
        named = ", ".join(sorted(home for home in known if home))
        return homes.HomeAwayError(
            f"{f'store {named}' if named else 'a store elsewhere'} cannot be asked for results: the Redis at "
            f"{self.location} is down, "
            f"or refuses us: {text.rstrip('.')}"
        )


class _Look:
    """One look for ids, by one thread."""

    def __init__(
        self,
        reader: RemoteReader,
        backend: CystoreBackend,
        ids: list[str],
        until: float,
        topic: str,
        waits: bool,
        *,
        leaves_out: set[str] | None = None,
    ) -> None:
        self._reader, self._backend, self._topic, self._waits = reader, backend, topic, waits
        self._leaves_out = leaves_out  # homes that are not asked; None: a look that may fail, and asks all
        self._left = dict.fromkeys(ids)
        self._began = monotonic_s()
        self._until = until
        self._last = max(until, self._began + LEAST_S)  # a home has this time to answer once
        self._homes: dict[str, _Home] = {}
        self._asked: dict[str, _Asked] = {}
        self._at: dict[str, str] = {}  # homes of ids that are certain
        self._begun: dict[str, tuple[str, Found]] = {}
        self._redis_since: float | None = None
        self._pause_s = 0.0
        self._silent_s = reader.silent_s if until == float("inf") else float("inf")
        self._warned: set[str] = set()

    def run(self) -> Iterator[Found | None]:
        """Raises TimeoutError, HomeAwayError."""
        while self._left:
            try:
                with self._reader.line() as line:
                    yield from self._turns(line)
                return
            except lists.AWAY as error:
                self._went_away(error)

    def silent(self) -> list[str]:
        """The homes that were asked, and said nothing; "" if Redis did not."""
        return [name for name, home in self._homes.items() if not home.answered] if self._homes else [""]

    def _went_away(self, error: BaseException) -> None:
        """Redis is away: all is asked again until the time is over."""
        now = monotonic_s()
        self._redis_since = self._redis_since if self._redis_since is not None else now
        self._asked.clear()
        self._homes.clear()
        self._reader.forget_signs()
        over = now + AGAIN_S >= min(self._last, self._redis_since + self._silent_s)
        if over or self._leaves_out is not None or isinstance(error, lists.REFUSES):
            raise self._reader.redis_away(self._left, error) from None
        lists.pause(AGAIN_S, self._last)

    def _turns(self, line: lists.Line) -> Iterator[Found | None]:
        line.open()
        self._choose_homes(line, self._left)
        while self._left:
            self._choose_new_homes(line)
            self._push(line)
            if self._asked:
                while not self._comes(line):
                    yield None
                answer = self._answer(line)
                if answer is not None:
                    yield from self._take(line, answer)
            elif self._homes and not any(home.asking for home in self._homes.values()):
                yield from self._take_begun(line)
                return  # every home has answered
            elif not self._homes:
                if self._backend.location.path and not self._waits:
                    return  # there are no other homes
                lists.pause(AGAIN_S, self._last)
                self._reader.forget_signs()
                self._choose_homes(line, self._left)
                yield None
            self._check_time()

    # --------------------------------------------------------------------------------------------- asking

    def _choose_homes(self, line: lists.Line, ids: Iterable[str]) -> None:
        there: list[str] | None = None
        for task_id in ids:
            home = self._at.get(task_id) or homes.sent_to(self._backend, task_id)
            if home is not None:
                self._home(home).asking[task_id] = None
                continue
            if there is None:
                there = self._there(line)
            for one in there:
                self._home(one).asking[task_id] = None

    def _choose_new_homes(self, line: lists.Line) -> None:
        """A store may have begun to answer since the last look, or have gone."""
        uncertain = [one for one in self._left if not self._is_certain(one)]
        if not uncertain:
            return
        there = self._there(line)
        for name in there:
            if name not in self._homes:
                self._home(name).asking.update(dict.fromkeys(uncertain))
        needed = {*there, *self._at.values(), *(homes.sent_to(self._backend, one) for one in self._left)}
        for name in [name for name in self._homes if name not in needed]:
            del self._homes[name]

    def _there(self, line: lists.Line) -> list[str]:
        return [one for one in self._reader.homes_there(line) if one not in (self._leaves_out or ())]

    def _is_certain(self, task_id: str) -> bool:
        return task_id in self._at or homes.sent_to(self._backend, task_id) is not None

    def _home(self, home: str) -> _Home:
        return self._homes.setdefault(home, _Home())

    def _push(self, line: lists.Line) -> None:
        """Sends the next requests."""
        if self._pause_s:
            lists.pause(self._pause_s, self._last)
            self._pause_s = 0.0
        now = monotonic_s()
        for name, home in self._homes.items():
            ids = [one for one in home.asking if one in self._left and self._at.get(one, name) == name]
            home.asking.clear()
            for i in range(0, len(ids), IDS_MOST):
                wait_s = self._wait_s(home, now)
                if not all(map(self._is_certain, ids[i : i + IDS_MOST])):
                    wait_s = min(wait_s, SIGNS_S)  # there may be more homes then
                request = Request(
                    new_request_id(), name, tuple(ids[i : i + IDS_MOST]), self._topic, int(wait_s * 1000)
                )
                if line.push(request, int(1000 * (wait_s + ANSWER_S))):
                    self._asked[request.id] = _Asked(request, now, now + wait_s + ANSWER_S)
                else:
                    self._unanswered(request, "too many requests wait for it")

    def _wait_s(self, home: _Home, now: float) -> float:
        """The longest wait of a home. It answers before the time is over, so that an absent home differs from an
        unready task."""
        left_s = self._until - now
        if not self._waits or left_s <= 0:
            return 0.0
        if left_s < 2 * AGAIN_S:
            return left_s if home.answered else 0.0
        return min(WAIT_MS_MOST / 1000, max(left_s - 1.0, 0.75 * left_s))

    def _unanswered(self, request: Request, why: str) -> None:
        """Asks again, a little later."""
        home = self._home(request.home)
        home.silent_since = home.silent_since if home.silent_since is not None else monotonic_s()
        home.why = why
        home.asking.update(dict.fromkeys(request.ids))
        self._pause_s = AGAIN_S

    # ------------------------------------------------------------------------------------------- answers

    def _comes(self, line: lists.Line) -> bool:
        """Sleeps until the next answer, or until it is time to look at the clock: True. False about once a second."""
        if not line.waits_until:
            wake = min([self._last, *(asked.answer_by for asked in self._asked.values())])
            line.take_answer(list(self._asked), wake + AGAIN_S / 5 - monotonic_s())
        return line.came(TICK_S)

    def _answer(self, line: lists.Line) -> Answer | None:
        taken = line.answer_in(line.taken())
        self._redis_since = None
        asked = self._asked.pop(taken[0], None) if taken is not None else None
        if taken is None or asked is None:
            return None
        try:
            answer = Answer.parse(taken[1], asked.request)
        except ProtocolError as error:
            log.warning("store %s: %s; asking it again", asked.request.home, error)
            self._unanswered(asked.request, str(error))
            return None
        if answer.refused:
            self._unanswered(asked.request, answer.refused)
            return None
        home = self._home(answer.home)
        home.answered, home.silent_since, home.why = True, None, ""
        early = monotonic_s() - asked.at < min(AGAIN_S, asked.request.wait_ms / 1000)
        if early and not any(one.state in states.READY_STATES for one in answer.found):
            self._pause_s = AGAIN_S  # it was asked to wait, and did not
        return answer

    def _take(self, line: lists.Line, answer: Answer) -> Iterator[Found | None]:
        """Uses an answer. Asks again for unready ids."""
        asking = self._home(answer.home).asking
        for one in answer.found:
            if one.id not in self._left:
                continue
            if one.elsewhere not in (None, answer.home) and one.id not in self._at:
                self._believe(one.id, str(one.elsewhere))
                self._choose_homes(line, [one.id])
                continue
            ready = one.state in states.READY_STATES
            if ready and one.id not in self._at:
                self._believe(one.id, answer.home)
            if one.state is not None and not ready and not self._waits and not self._is_certain(one.id):
                # A worker that died may have left it there, and the task has ended at another home.
                self._begun.setdefault(one.id, (answer.home, one))
            elif one.state is not None and (ready or not self._waits):
                whole = yield from self._whole(line, answer.home, one)
                if whole is not None:
                    del self._left[one.id]
                    yield whole
                else:
                    asking[one.id] = None  # it went while it was read: forgotten, or expired
            elif self._waits:
                asking[one.id] = None

    def _take_begun(self, line: lists.Line) -> Iterator[Found | None]:
        """Tasks that no home knows to be ready, and one knows to have begun."""
        for task_id, (home, one) in self._begun.items():
            if task_id not in self._left:
                continue
            whole = yield from self._whole(line, home, one)
            if whole is not None:
                del self._left[task_id]
                yield whole

    def _believe(self, task_id: str, home: str) -> None:
        self._at[task_id] = home
        if self._topic == "results":
            homes.remember(self._backend, task_id, home)

    def _whole(self, line: lists.Line, home: str, found: Found) -> Generator[None, None, Found | None]:
        """A result whose answer had only the beginning, with its other parts. None if it was removed meanwhile. If a
        part does not come, it is asked for again until the time is over, because another worker of the home may
        answer."""
        parts, have = [bytes(found.body)], len(found.body)
        began = monotonic_s()
        while have < found.size_bytes:
            one = yield from self._part(line, home, found, have)
            if not one.body or (one.at, one.size_bytes) != (found.at, found.size_bytes):
                self._pause_s = AGAIN_S
                return None
            parts.append(bytes(one.body))
            have += len(one.body)
            if not self._waits and len(one.body) == min(PART_BYTES, found.size_bytes - one.begin):
                self._until = self._last = monotonic_s() + ANSWER_S  # a look has this time for each part
        now = monotonic_s()
        if now - began >= ANSWER_S:
            # Answers to other requests came meanwhile, and may be gone: that is not their home's fault.
            for asked in self._asked.values():
                asked.at, asked.answer_by = now, now + AGAIN_S
        return replace(found, body=b"".join(parts), answered_by=home)

    def _part(self, line: lists.Line, home: str, found: Found, begin: int) -> Generator[None, None, Found]:
        """The part of a result that begins there. The answer to an earlier request for it, which came late, will do."""
        silent_since, why = None, ""
        requests: dict[str, Request] = {}
        while True:
            asked_at = monotonic_s()
            self._check_part_time(home, found, silent_since, why)
            request = Request(new_request_id(), home, (found.id,), self._topic, part=(found.at, begin))
            if not line.push(request, int(1000 * ANSWER_S)):
                why = "too many requests wait for it"
            else:
                requests[request.id] = request
                if len(requests) > LATE_PARTS:
                    del requests[next(iter(requests))]
                line.take_answer(list(requests), min(ANSWER_S, self._last - asked_at))
                while not line.came(TICK_S):
                    yield None
                taken = line.answer_in(line.taken())
                asked = requests.pop(taken[0], None) if taken is not None else None
                if taken is None or asked is None:
                    why = f"a part of the result of {found.id} is missing"
                else:
                    try:
                        answer = Answer.parse(taken[1], asked)
                    except ProtocolError as error:
                        log.warning("store %s: %s; asking it again", home, error)
                        why = str(error)
                    else:
                        if not answer.refused:
                            return answer.found[0]
                        why = answer.refused
            silent_since = asked_at if silent_since is None else silent_since
            yield None
            lists.pause(AGAIN_S, self._last)

    def _check_part_time(self, home: str, found: Found, silent_since: float | None, why: str) -> None:
        """Raises HomeAwayError, TimeoutError: when the time is over, and without a timeout when the home says nothing
        for `silent_s`."""
        now = monotonic_s()
        if silent_since is not None:
            self._warn(home, now - silent_since)
            patience_over = now - silent_since >= self._silent_s
            if patience_over or (now >= self._last and now - silent_since >= LATE_S):
                raise self._reader.away(home, why, now - silent_since)
        if now >= self._last:
            if self._waits:
                raise ResultTimeoutError("The operation timed out.")
            raise self._reader.away(
                home, f"the parts of the result of {found.id} arrive too slowly", now - self._began
            )

    # ---------------------------------------------------------------------------------------------- time

    def _check_time(self) -> None:
        now = monotonic_s()
        for request_id, asked in list(self._asked.items()):
            if now >= asked.answer_by:
                del self._asked[request_id]
                if asked.request.home in self._homes:
                    since = self._home(asked.request.home).silent_since
                    self._unanswered(asked.request, "")
                    self._home(asked.request.home).silent_since = asked.at if since is None else since
        if not self._left:
            return
        needed = {
            name: home
            for name, home in self._homes.items()
            if any(self._at.get(one, name) == name for one in self._left)
        }
        over = now >= self._last
        late = {
            a.request.home: a.at
            for a in self._asked.values()
            if now > a.at + a.request.wait_ms / 1000 + LATE_S
        }
        for name, home in needed.items():
            since = home.silent_since
            if since is None and now >= self._until:
                since = late.get(name, self._began if over and not home.answered else None)
            if since is None:
                continue
            if (now >= self._until and home.answered) or over or now - since >= self._silent_s:
                raise self._reader.away(name, home.why, now - since)
            self._warn(name, now - since)
        if now >= self._until and needed and all(home.answered for home in needed.values()):
            raise ResultTimeoutError("The operation timed out.")
        if not needed:
            if now - self._began >= min(self._silent_s, self._last - self._began):
                raise self._reader.away("", "no store sent a heartbeat recently", now - self._began)
            self._warn("", now - self._began)

    def _warn(self, home: str, silent_s: float) -> None:
        """Logs once for each silent home that the wait continues."""
        if self._waits and silent_s >= WARNED_S and home not in self._warned:
            self._warned.add(home)
            log.warning(
                "%s has not answered for %.0f s through the Redis at %s; the wait for results continues",
                f"store {home}" if home else "no store", silent_s, self._reader.location,
            )  # fmt: skip


def silent_s_of(app: Any) -> float:
    """The setting: how long a wait without a timeout may get no answer. Raises ImproperlyConfigured."""
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
