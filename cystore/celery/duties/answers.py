"""Answers for one store. One process of a host at a time gives them, under a lock that the kernel ends with the
process.

One thread takes requests from Redis and answers those that can be answered at once. Another one handles the requests
that wait for a result. A process that takes over repeats the requests that its predecessor had taken and not answered.
If Redis is down, the thread gives the lock up and tries again every few seconds; tasks run meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import deque
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from celery import states

from cystore import Message, MessageStore, StoreError
from cystore.celery import homes
from cystore.celery.backend import CystoreBackend
from cystore.celery.base import greenlets, records
from cystore.celery.base.identity import is_master, is_replica, known_home_of
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import lists
from cystore.celery.routing.home_secrets import HomeSecrets
from cystore.celery.routing.messages import (
    PART_BYTES,
    REQUEST_BYTES_MOST,
    RESULT_BYTES_MOST,
    TOPICS,
    Answer,
    Found,
    ProtocolError,
    Request,
    filled,
)
from cystore.clock import monotonic_s
from cystore.engine.files.progress import Progress
from cystore.system import files

log = logging.getLogger("cystore.celery")

LOCK = "readService.lock"
SPARE_MS = 1_000  # kept of a request's time, for its answer
TAKE_S = 12.0  # the longest wait of an idle service for a request
REPLICATED_TAKE_S = 2.0  # the same of a store whose role may change
SIGN_S = 12.0  # between two signs; a client counts a store as silent after two lost ones
RENEW_S = 120.0  # between two renewals of the keys' lifetimes, which are ten minutes and more
AWAY_S = 2.0  # between two tries of a Redis that is away
TOLD_S = 60.0  # crafted messages are logged at most this often
WAITING_MOST = 1_000  # ids that requests wait for
LARGE_BYTES = 64 << 10
UNREAD_BYTES_MOST = 128 << 20  # the most bytes of large answers that no client has taken
LOOK_EVERY_S = 1.0  # finds appends of a process that was killed before it woke the waiters
GATHER_S, GATHER_EACH_S, GATHER_MOST_S = (
    0.004,
    0.0001,
    0.1,
)  # pause between two looks for waiting requests; more for each
NAP_S = 0.5  # the longest sleep of the thread that waits: a new request may have less time


@dataclass
class _Waiting:
    request: Request
    taken: bytes
    until: float  # monotonic
    seen: list[int]  # the store's number for each id, before the last look
    look_at: float


class ReadService:
    """One thread calls `turn`, another `wait_turn`. Each holds `turn_lock` while it works, not while it sleeps."""

    def __init__(
        self,
        backend: CystoreBackend,
        store: MessageStore,
        location: RedisLocation,
        turn_lock: AbstractContextManager[Any],
        *,
        replicated: bool = False,
    ) -> None:
        self._backend, self._store, self._turn_lock = backend, store, turn_lock
        self.home = known_home_of(store)
        self._replica = is_replica(store)
        self._location, self._secrets = location, HomeSecrets(backend.app.conf)
        self._line = lists.Line(location)
        self._answers = lists.Line(location)  # the connection of the thread that waits
        self._take_s = REPLICATED_TAKE_S if replicated else TAKE_S
        self._lock: Any = None
        self._sign_at = self._renew_at = self._retry_at = self._tell_at = 0.0
        self._clock_ms = 0.0  # the server's time, less this process's monotonic time
        self._found_in = ""
        self._waiting: dict[str, _Waiting] = {}
        self._some = threading.Event()
        self._unread: deque[tuple[float, str, int]] = deque()
        self._ended = False

    # -------------------------------------------------------------------------------------------- requests

    def turn(self) -> Progress:
        """Takes one request, or waits for one. Does nothing while another process of this store answers."""
        with self._turn_lock:
            if not self._may_serve():
                return Progress(0)
        try:
            with self._turn_lock:
                self._line.open()
                if monotonic_s() >= self._sign_at:
                    self._sign()
                if not self._line.waits_until:
                    self._line.take_request(self._name, self._take_s)
            # Either `end` finds this connection and wakes it, or this loop finds `_ended`.
            while not self._ended and not self._line.came(TAKE_S):
                pass
            if self._ended:
                return Progress(0)
            with self._turn_lock:
                taken = self._line.taken()
                if isinstance(taken, bytes):
                    self._serve(taken)
            return Progress(taken is not None, more=not self._ended)
        except lists.AWAY as error:
            with self._turn_lock:
                self._went_away(error)
            return Progress(0)

    @property
    def _name(self) -> str:
        """The name of the lists in Redis: of the home, or of its replicas."""
        return lists.replica_of(self.home) if self._replica else self.home

    def _look_at_role(self) -> None:
        """A replica may have become the master, or the other way round; and the log may have got its home."""
        now = is_replica(self._store), known_home_of(self._store)
        if now != (self._replica, self.home):
            self._leave_to_others()
            self._replica, self.home = now

    def _is_current(self) -> bool:
        """Whether a result that was read before this call was the present one. A replica does not say so. An elected
        master knows it while its lease lasts by this host's clock."""
        return is_replica(self._store) if self._replica else is_master(self._store)

    def _leave_to_others(self) -> None:
        """Gives the taken requests back: another process, or another host, answers them."""
        with suppress(*lists.AWAY):
            if self._lock is not None:
                self._line.close()  # it may wait for a request
                self._line.ask_again(self._name)
        self._line.close()
        self._give_up_lock()

    def _may_serve(self) -> bool:
        if self._ended or monotonic_s() < self._retry_at:
            return False
        self._look_at_role()
        if not self._is_current():
            self._leave_to_others()
            self._retry_at = monotonic_s() + AWAY_S
            return False
        if self._lock is None:
            # The lock belongs to the process, not to the open file: a pool process that outlives its parent does not
            # hold it.
            lock = files.open_file(self._store.path / "config" / LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock, self._sign_at = lock, 0.0
            log.debug(
                "%s: this process answers requests of other hosts through %s",
                self._store.path,
                self._location,
            )
        return True

    def _sign(self) -> None:
        first, now = not self._sign_at, monotonic_s()
        renews = first or now >= self._renew_at
        self._clock_ms = self._line.sign(self._name, renews=renews) - monotonic_s() * 1000
        self._sign_at = monotonic_s() + SIGN_S
        if renews:
            self._renew_at = now + RENEW_S
        if first:
            self._line.ask_again(self._name)
        if self._found_in:
            log.warning("other hosts can read results of %s through Redis again", self._store.path)
            self._found_in = ""

    def _went_away(self, error: BaseException) -> None:
        self._line.close()
        self._give_up_lock()
        self._retry_at = monotonic_s() + AWAY_S
        text = self._location.without_secrets(f"{type(error).__name__}: {error}")
        if not self._ended and type(error).__name__ != self._found_in:
            self._found_in = type(error).__name__
            log.warning(
                "other hosts cannot read results of %s: Redis at %s is down or refuses us: %s. Tasks are not "
                "affected; trying "
                "again every %.0f s",
                self._store.path, self._location, text.rstrip("."), AWAY_S,
            )  # fmt: skip

    def _give_up_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
        self._sign_at = 0.0
        self._waiting.clear()  # the next server repeats the taken requests

    def end(self) -> None:
        """Wakes the threads, which then end. Another worker of the store takes over."""
        self._ended = True
        self._some.set()
        self._line.wake()

    def close(self) -> None:
        """Called after the threads have ended."""
        self._line.close()
        self._answers.close()
        self._give_up_lock()

    # --------------------------------------------------------------------------------------------- answers

    def _serve(self, taken: bytes) -> None:
        """Answers a request, or lets it wait. An invalid request, or one whose time is over, gets no answer."""
        stamp, _, text = taken.partition(b" ") if len(taken) <= REQUEST_BYTES_MOST else (b"", b"", b"")
        left_ms = (
            int(stamp) - (self._clock_ms + monotonic_s() * 1000)
            if stamp[:16].isdigit() and len(stamp) <= 16
            else -1
        )
        try:
            if not 0 < left_ms <= lists.LIVES_MOST_MS:
                raise ProtocolError("a request without a time limit, or whose time is over")
            request = Request.parse(text)
            if request.home != self.home:
                raise ProtocolError("home: another store")
        except ProtocolError as error:
            self._line.forget(self._name, taken)
            self._tell(error)
            return
        keys = [records.key_of(one) for one in request.ids]
        wait_s = min(request.wait_ms, max(left_ms - SPARE_MS, 0)) / 1000
        seen = [self._store.key_seen(key) for key in keys]
        found, refused = self._find(request)
        if wait_s > 0 and not refused and not any(_ends(one) for one in found):
            count = sum(len(one.request.ids) for one in self._waiting.values())
            if count + len(keys) <= WAITING_MOST:
                now = monotonic_s()
                self._waiting[request.id] = _Waiting(request, taken, now + wait_s, seen, now + LOOK_EVERY_S)
                self._some.set()
                return
            found, refused = (), f"{count} ids are already waited for"
        self._answer(self._line, request, taken, found, refused)

    def _find(self, request: Request) -> tuple[tuple[Found, ...], str]:
        """The present result of each id, and an empty text; or nothing, and the reason."""
        try:
            if request.part is not None:
                return (self._part(request, *request.part),), ""
            bodies: dict[str, Message] = {}
            found = [self._look(one, request.topic, bodies) for one in request.ids]
            return filled(found, lambda one: bodies[one.id].body), ""
        except StoreError as error:
            log.warning("%s: cannot read a result for another host: %s", self._store.path, error)
            return (), f"{type(error).__name__} at home, see its worker's log"

    def _look(self, task_id: str, topic: str, bodies: dict[str, Message]) -> Found:
        message = self._backend.latest(task_id, TOPICS[topic])
        if message is None:
            known, home = homes.log_entry_of(self._backend, task_id) if topic == "results" else (False, None)
            return Found(task_id, known=known and home is None, elsewhere=home)
        bodies[task_id] = message
        return _found_in(task_id, message)

    def _part(self, request: Request, at: int, begin: int) -> Found:
        """The rest of one result. The request names its place, which may be wrong: a record of that id, which readers
        see, must be there."""
        (task_id,) = request.ids
        known = self._backend.all_states(task_id, TOPICS[request.topic])
        message = next((one for one in known if one.physical_offset == at), None)
        if message is None or not begin < len(message.body) <= RESULT_BYTES_MOST:
            return Found(task_id)
        return _found_in(task_id, message, begin, message.body[begin : begin + PART_BYTES])

    def _answer(
        self, line: lists.Line, request: Request, taken: bytes, found: tuple[Found, ...], refused: str = ""
    ) -> None:
        if not self._is_current():  # the thread that takes requests notices it too
            line.ask_again(self._name)
            self._waiting.clear()
            self._retry_at = monotonic_s() + AWAY_S
            return
        as_of_ms = self._store.stats()["last_store_timestamp_ms"] if self._replica else None
        secret = self._secrets.of(self.home)
        answer = Answer(request.id, self.home, () if refused else found, refused, as_of_ms)
        data = answer.encoded_for(request, secret)
        if len(data) >= LARGE_BYTES:
            if self._unread_bytes(line) + len(data) > UNREAD_BYTES_MOST:
                why = "too many large answers wait to be taken"
                data = Answer(request.id, self.home, (), why, as_of_ms).encoded_for(request, secret)
            else:
                self._unread.append((monotonic_s() + lists.ANSWER_LIVES_MS / 1000, request.id, len(data)))
        line.answer(request.id, self._name, data, taken)

    def _unread_bytes(self, line: lists.Line) -> int:
        """The bytes in Redis that wait for clients. It asks which answers were taken only if the sum seems large."""
        now = monotonic_s()
        while self._unread and self._unread[0][0] <= now:
            self._unread.popleft()
        size_bytes = sum(size for *_, size in self._unread)
        if size_bytes > UNREAD_BYTES_MOST - PART_BYTES:
            there = line.waiting_answers([name for _, name, _ in self._unread])
            self._unread = deque(one for one in self._unread if one[1] in there)
            size_bytes = sum(size for *_, size in self._unread)
        return size_bytes

    def _tell(self, error: ProtocolError) -> None:
        level, now = logging.DEBUG, monotonic_s()
        if now >= self._tell_at:
            level, self._tell_at = logging.WARNING, now + TOLD_S
        log.log(level, "%s: a request from Redis stays unanswered: %s", self._store.path, error)

    # --------------------------------------------------------------------------------------------- waiting

    def wait_turn(self) -> Progress:
        """Answers waiting requests when a result is ready or the time is over, and sleeps until the log grows."""
        if not self._waiting:
            self._some.wait(60.0)
        if self._ended:
            return Progress(0)
        try:
            with self._turn_lock:
                self._some.clear()
                end = self._store.wrote_position
                self._answer_ready()
                nap_s = self._nap_s()
        except lists.AWAY as error:
            with self._turn_lock:  # the other thread meets the error too
                self._answers.close()
                self._waiting.clear()
            log.debug("could not answer: %s", error)
            return Progress(0)
        if nap_s > 0 and greenlets.off_the_hub(self._store.wait_log, end, nap_s):
            lists.sleep(
                min(GATHER_S + GATHER_EACH_S * len(self._waiting), GATHER_MOST_S)
            )  # the appending process wakes the id's waiters next, and other processes append too
        return Progress(0, more=True)

    def _nap_s(self) -> float:
        now = monotonic_s()
        due = [min(one.until, one.look_at) - now for one in self._waiting.values()]
        return max(0.001, min([NAP_S, *due])) if due else 0.0

    def _answer_ready(self) -> None:
        count = sum(len(one.request.ids) for one in self._waiting.values())
        for one in list(self._waiting.values()):
            now = monotonic_s()
            over = now >= one.until
            seen = [self._store.key_seen(records.key_of(task_id)) for task_id in one.request.ids]
            if seen == one.seen and not over and now < one.look_at:
                continue
            one.seen, one.look_at = seen, now + LOOK_EVERY_S * max(1, count // 100)
            found, refused = self._find(one.request)
            if over or refused or any(map(_ends, found)):
                self._waiting.pop(one.request.id, None)
                self._answer(self._answers, one.request, one.taken, found, refused)


def _found_in(task_id: str, message: Message, begin: int = 0, body: bytes | memoryview = b"") -> Found:
    properties = message.properties
    return Found(
        task_id,
        message.tags,
        known=True,
        at=message.physical_offset,
        size_bytes=len(message.body),
        begin=begin,
        body=body,
        content_type=properties.get("content_type", "application/json"),
        content_encoding=properties.get("content_encoding", "utf-8"),
    )


def _ends(found: Found) -> bool:
    """Whether a wait for an id ends with this."""
    return found.state in states.READY_STATES or found.elsewhere is not None
