"""One look for results of other stores, by one thread: the requests that are out, the homes that answer or are silent,
and the parts of a large result.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery import states
from celery.exceptions import TimeoutError as ResultTimeoutError

from cystore.celery import homes
from cystore.celery.routing import lists
from cystore.celery.routing.messages import (
    IDS_MOST,
    PART_BYTES,
    WAIT_MS_MOST,
    Answer,
    ForgedError,
    Found,
    ProtocolError,
    Request,
    new_request_id,
)
from cystore.clock import monotonic_s

if TYPE_CHECKING:
    from cystore.celery.backend import CystoreBackend
    from cystore.celery.routing.client import RemoteReader

log = logging.getLogger("cystore.celery")

ANSWER_S = 5.0  # a live home answers within this time
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


class Look:
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
        self._forged: set[str] = set()  # homes with an answer that was not theirs

    def run(self) -> Iterator[Found | None]:
        """Raises TimeoutError, HomeAwayError."""
        while self._left:
            try:
                with self._reader.line() as line:
                    yield from self._turns(line)
                return
            except lists.AWAY as error:
                self._went_away(error)

    def left(self) -> list[str]:
        """The ids without a result."""
        return list(self._left)

    def drop(self, task_id: str) -> None:
        """Looks no more for an id: its result was found in another way."""
        self._left.pop(task_id, None)

    def silent(self) -> list[str]:
        """The homes that were asked and did not answer; "" if Redis did not."""
        return [name for name, home in self._homes.items() if not home.answered] if self._homes else [""]

    def _went_away(self, error: BaseException) -> None:
        """Redis is away: all requests are repeated until the time is over."""
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
                    new_request_id(),
                    name,
                    tuple(ids[i : i + IDS_MOST]),
                    self._topic,
                    int(wait_s * 1000),
                    signed=self._reader.secrets.of(name) is not None,
                )
                if line.push(request, int(1000 * (wait_s + ANSWER_S))):
                    self._asked[request.id] = _Asked(request, now, now + wait_s + ANSWER_S)
                else:
                    self._unanswered(request, "too many requests wait for it")

    def _wait_s(self, home: _Home, now: float) -> float:
        """The time for which a home may wait before it answers. The home answers before the time is over, so that an
        absent home differs from an unready task."""
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
        asked = self._asked.get(taken[0]) if taken is not None else None
        if taken is None or asked is None:
            return None
        try:
            answer = Answer.parse(taken[1], asked.request, secret=self._reader.secrets.of(asked.request.home))
        except ForgedError as error:  # the request stays open: the home may answer it yet
            self._tell_forged(asked.request.home, error)
            return None
        except ProtocolError as error:
            del self._asked[taken[0]]
            log.warning("store %s: %s; asking it again", asked.request.home, error)
            self._unanswered(asked.request, str(error))
            return None
        del self._asked[taken[0]]
        if answer.refused:
            self._unanswered(asked.request, answer.refused)
            return None
        home = self._home(answer.home)
        home.answered, home.silent_since, home.why = True, None, ""
        early = monotonic_s() - asked.at < min(AGAIN_S, asked.request.wait_ms / 1000)
        if early and not any(one.state in states.READY_STATES for one in answer.found):
            self._pause_s = AGAIN_S  # the home was asked to wait, and did not
        return answer

    def _tell_forged(self, home: str, error: ForgedError) -> None:
        self._home(home).why = str(error)
        if home not in self._forged:
            self._forged.add(home)
            log.warning("store %s: %s; waiting for the right one", home, error)

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
                    asking[one.id] = None  # the result was forgotten, or expired, while it was read
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
            # Answers to other requests may have come and expired meanwhile, so their homes get more time.
            for asked in self._asked.values():
                asked.at, asked.answer_by = now, now + AGAIN_S
        return found._replace(body=b"".join(parts), answered_by=home)

    def _part(self, line: lists.Line, home: str, found: Found, begin: int) -> Generator[None, None, Found]:
        """The part of a result from `begin` on. A late answer to an earlier request for it is used, too."""
        silent_since, why = None, ""
        requests: dict[str, Request] = {}
        while True:
            asked_at = monotonic_s()
            self._check_part_time(home, found, silent_since, why)
            secret = self._reader.secrets.of(home)
            request = Request(
                new_request_id(),
                home,
                (found.id,),
                self._topic,
                part=(found.at, begin),
                signed=secret is not None,
            )
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
                asked = requests.get(taken[0]) if taken is not None else None
                if taken is None or asked is None:
                    why = f"a part of the result of {found.id} is missing"
                else:
                    try:
                        answer = Answer.parse(taken[1], asked, secret=secret)
                    except ForgedError as error:  # the request stays open
                        self._tell_forged(home, error)
                        why = str(error)
                    except ProtocolError as error:
                        del requests[asked.id]
                        log.warning("store %s: %s; asking it again", home, error)
                        why = str(error)
                    else:
                        del requests[asked.id]
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
