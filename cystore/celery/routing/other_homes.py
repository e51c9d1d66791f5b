"""Results that this process's store does not have: decides when to ask another home, and uses its answer.

A client without a store asks for everything. A process with a store asks for a task whose home is known to be another
one: this process sent it there, or the lifecycle log says so. It also asks around for ids that its own store has never
heard of. With `?reader=` in its URL it asks for every id that its own store does not have, and a home that does not
answer is an error. Otherwise asking around never fails: a home that does not answer counts as one without the id.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import ImproperlyConfigured
from celery.result import result_from_tuple
from kombu.exceptions import DecodeError
from vine import promise

from cystore.celery import homes
from cystore.celery.base import records
from cystore.celery.redis_urls import (
    PASSWORD_SETTING,
    READER_SETTING,
    READER_VARIABLE,
    SCHEMES,
    RedisLocation,
    password_of,
    redis_location_of,
    shows_password,
)
from cystore.clock import monotonic_s

if TYPE_CHECKING:
    from cystore.celery.backend import CystoreBackend
    from cystore.celery.routing.client import RemoteReader
    from cystore.celery.routing.messages import Found

log = logging.getLogger("cystore.celery")

PARENTS_S = 10.0  # between two looks for parents that failed, which are remote looks themselves
LOOKED_AT = 1_000  # ids of a wait, in one such look
NOT_IN_LOG_S = 3.0
# Decoding errors for invalid bytes: they come from Redis, where other programs may write.
NO_RESULT = (DecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error)
FIRST_LOOK_S, LAST_LOOK_S = 1.0, 30.0  # intervals of a wait's looks elsewhere, each twice the last
UNKNOWN_LOOK_S = 5.0  # the longest interval while this store does not know the task


def _no_result(found: Found, error: Exception) -> homes.ResultsElsewhereError:
    return homes.ResultsElsewhereError(
        f"the answer of store {found.answered_by} for {found.id} is not its result: {type(error).__name__}: {error}"
    )


def reader_of(backend: CystoreBackend) -> RedisLocation | None:
    """The Redis for results of other homes: that of the URL, else the one that coordinates the app, else none. Raises
    ImproperlyConfigured."""
    given = backend.location.reader
    if not given:
        return redis_location_of(backend.app)
    if given.partition("://")[0].lower() not in SCHEMES:
        raise ImproperlyConfigured(f"the reader in result_backend must be one of {', '.join(SCHEMES)}://...")
    try:
        return RedisLocation.parse(
            given, password=password_of(backend.app.conf, READER_SETTING, READER_VARIABLE)
        )
    except ImproperlyConfigured as error:
        text = str(error).replace("cystore_redis_url", "the reader in result_backend")
        raise ImproperlyConfigured(text) from None


def tell_shown_passwords(backend: CystoreBackend) -> None:
    """Warns of a password where `celery report` and `celery inspect conf` show it."""
    given = {
        f"cystore_redis_url has a password: put it into a file, and name that in {PASSWORD_SETTING}": str(
            backend.app.conf.get("cystore_redis_url") or ""
        ),
        f"?reader= has a password: put it into a file, and name that in {READER_SETTING}": ""
        if backend.location.remote
        else backend.location.reader,
    }
    for text, url in given.items():
        if shows_password(url):
            log.warning("%s. Celery may show this setting (celery report, celery inspect conf)", text)


class ComesElsewhere(Exception):
    """A wait at this store is for tasks whose home is another store. `ids`: the tasks that another home has begun."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        super().__init__()
        self.ids = list(ids)


class Elsewhere:
    """The other homes, as one backend sees them."""

    def __init__(self, backend: CystoreBackend) -> None:
        self._backend = backend
        self._reader: RemoteReader | None = None
        self._has_reader = True  # False once it is known that this app has no Redis for this
        # Ids without another home in the log, and until when that holds. Only a few are remembered.
        self._not_in_log: dict[str, float] = {}

    def after_fork(self) -> None:
        """Called in a child, which has no connections."""
        if self._reader is not None:
            self._reader.after_fork()

    def reader(self) -> RemoteReader | None:
        """None without a Redis for this. Raises ImproperlyConfigured."""
        if self._reader is None:
            location = reader_of(self._backend) if self._has_reader else None
            if location is None:
                self._has_reader = False
                return None
            try:
                from cystore.celery.routing.client import RemoteReader
            except ImportError as error:
                raise ImproperlyConfigured(
                    f"reading results through Redis is configured, and {error}: pip install cystore[redis]"
                ) from error
            self._reader = RemoteReader(self._backend, location)
        return self._reader

    def home_of(self, task_id: str) -> str | None:
        """The other store that keeps the result of a task; None if this host knows of none."""
        return self.homes_of([task_id])[task_id]

    def homes_of(self, task_ids: Iterable[str]) -> dict[str, str | None]:
        """`home_of` for many tasks, with one look at the store."""
        return self._homes_of(task_ids)[0]

    def _homes_of(
        self, task_ids: Iterable[str], *, anew: bool = False
    ) -> tuple[dict[str, str | None], list[str]]:
        """`homes_of`, and the ids that this host has never heard of. Unless the store is looked at `anew`, an id is
        among these once in NOT_IN_LOG_S."""
        backend, now = self._backend, monotonic_s()
        found = {task_id: homes.sent_to(backend, task_id) for task_id in task_ids}
        unknown: list[str] = []
        if not backend.location.path:
            return found, unknown
        asked = [
            one
            for one, home in found.items()
            if home is None and (anew or now >= self._not_in_log.get(one, 0.0))
        ]
        for task_id, (known, home) in homes.log_entries_of(backend, asked).items() if asked else ():
            found[task_id] = home
            if home is None:  # rarely, because a program that polls a task's state pays for this
                if len(self._not_in_log) >= LOOKED_AT:
                    self._not_in_log.clear()
                self._not_in_log[task_id] = now + NOT_IN_LOG_S
                if not known:
                    unknown.append(task_id)
            else:
                homes.remember(backend, task_id, home)
        return found, homes.without_results(backend, unknown) if unknown else unknown

    def find(self, task_id: str, topic: str = records.RESULTS) -> dict[str, Any] | None:
        """Another home's result for an id that this store does not have: its meta, or the saved group. None if no home
        has any. Raises ResultsElsewhereError if no home can be asked, or if a home does not answer."""
        return self.find_all([task_id], topic).get(task_id) if self._may_have(task_id) else None

    def _may_have(self, task_id: str) -> bool:
        """Whether `find_all` has to look for an id. For nearly all ids of a host without others it has not, which one
        look at the log tells: no other home is known for the id, and there is no other home that could be asked."""
        backend = self._backend
        if (
            backend.location.reader
            or not backend.location.path
            or homes.sent_to(backend, task_id) is not None
        ):
            return True
        if task_id in self._not_in_log and monotonic_s() < self._not_in_log.get(task_id, 0.0):
            return False
        return not self._is_alone() or homes.is_logged(backend, task_id)

    def _is_alone(self) -> bool:
        """Whether it is known that there is no other home. Asks nobody."""
        if not self._has_reader:
            return True
        return self._reader is not None and self._reader.is_alone()

    def find_all(self, task_ids: Iterable[str], topic: str = records.RESULTS) -> dict[str, dict[str, Any]]:
        """The same for many ids, in as few requests as possible."""
        backend = self._backend
        asks_all = bool(backend.location.reader or not backend.location.path)
        known, unknown = self._homes_of(task_ids)
        asked = {task_id: home for task_id, home in known.items() if asks_all or home is not None}
        what, read = ("groups", self._group) if topic == records.GROUPS else ("results", self._meta)
        found: list[Found] = []
        if asked:
            reader = self.reader()
            if reader is None:
                task_id, home = next(iter(asked.items()))
                raise homes.no_store(backend) if home is None else homes.elsewhere(task_id, home)
            found += reader.look(asked, what).values()
        if unknown and not asks_all:
            found += self._ask_around(unknown, what).values()
        return {one.id: read(one) for one in found}

    def _ask_around(self, ids: list[str], topic: str = "results") -> dict[str, Found]:
        """The results of ids that this host has never heard of, at any home. Nothing without a usable Redis."""
        try:
            reader = self.reader()
        except ImproperlyConfigured as error:
            log.debug("no other home is asked: %s", error)
            return {}
        return {} if reader is None else reader.ask_around(ids, topic)

    def _content(self, found: Found) -> dict[str, Any]:
        content = self._backend.decoded(found.body, found.content_type, found.content_encoding)
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__}, where an object is expected")
        return content

    def _group(self, found: Found) -> dict[str, Any]:
        """A saved group, ready for use."""
        try:
            content = self._content(found)
            content["result"] = result_from_tuple(content["result"], self._backend.app)
        except NO_RESULT as error:
            raise _no_result(found, error) from error
        return content

    def _meta(self, found: Found) -> dict[str, Any]:
        """A task's meta. Raises ResultsElsewhereError for invalid bytes, and kombu's ContentDisallowed."""
        try:
            content = self._content(found)
            if content.get("task_id") != found.id or content.get("status") != found.state:
                raise ValueError("it belongs to another task")
            meta: dict[str, Any] = self._backend.meta_from_decoded(content)
            if found.as_of_ms is not None:
                meta["cystore_as_of_ms"] = found.as_of_ms
            for child in meta.get("children") or ():
                result_from_tuple(child, self._backend.app)  # AsyncResult makes the same call
        except NO_RESULT as error:
            raise _no_result(found, error) from error
        return meta

    # ------------------------------------------------------------------------------------------------ waits

    def ids_in(self, result: Any) -> list[str]:
        """The ids of a result, which may be a group's, whose homes this process must ask."""
        ids = list(_open_ids(result))
        if not self._backend.location.path:
            return ids
        known = [one for one in ids if homes.sent_to(self._backend, one) is not None]
        if self._backend.location.reader:
            known += self._heard_of([one for one in ids if one not in set(known)])
        return known

    def _heard_of(self, ids: list[str]) -> list[str]:
        """The ids that another home knows and this store does not."""
        unknown = [
            one for one in ids if not homes.is_home_of(self._backend, one) and self.home_of(one) is None
        ]
        known = [one for one in ids if homes.sent_to(self._backend, one) is not None]
        reader = self.reader()
        if unknown and reader is not None:
            try:
                found = reader.look(unknown)
            except homes.HomeAwayError:  # this store may get the result as well
                found = {}
            known += [one for one in unknown if one in found or homes.sent_to(self._backend, one) is not None]
        return known

    def look(self, result: Any) -> bool:
        """One look, during a wait at this store, whether the home of a task is another one. Raises ComesElsewhere if it
        is. False if no home knows the task yet."""
        ids = list(islice(_open_ids(result), LOOKED_AT))
        found, unknown = self._homes_of(ids, anew=True)
        known = [one for one, home in found.items() if home is not None]
        if known or (self._backend.location.reader and self._heard_of(ids)):
            raise ComesElsewhere
        if not unknown or self._backend.location.reader:
            return True
        begun = self._ask_around(unknown)
        if begun:
            raise ComesElsewhere(begun)
        return False

    def wait(
        self,
        result: Any,
        ids: list[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None,
        on_message: Callable[[dict[str, Any]], Any] | None,
    ) -> Iterator[None]:
        """Waits until the ids are ready; gives the caller a turn after each. The failure of a parent ends the wait
        too."""
        reader = self.reader()
        if reader is None:
            home = homes.sent_to(self._backend, ids[0])
            raise homes.no_store(self._backend) if home is None else homes.elsewhere(ids[0], home)
        left, parents = dict.fromkeys(ids), dict.fromkeys(_parents_of(result))
        interval_due, interval_s = monotonic_s(), PARENTS_S if parents else 0.0
        consumer = self._backend.result_consumer
        for found in reader.wait([*left, *(one for one in parents if one not in left)], timeout):
            if found is not None:
                failed = found.state in states.PROPAGATE_STATES
                if found.id in left:
                    del left[found.id]
                    consumer.hand_over(self._meta(found), on_message)
                elif failed and on_interval is not None:
                    on_interval()
            elif self._backend.location.path:
                consumer.hand_over_own(result)
                if result.on_ready.ready:  # a message that named no home was run here after all
                    return
            if on_interval is not None and monotonic_s() >= interval_due:
                interval_due = monotonic_s() + interval_s
                on_interval()
            yield
            if not left:
                return

    def wait_for(self, result: Any, local: Callable[..., Iterator[None]], **options: Any) -> Iterator[None]:
        """A wait for a result: elsewhere, or with `local` at this store, or one after the other."""
        timeout, on_interval = options.pop("timeout", None), options.pop("on_interval", None)
        until = None if timeout is None else monotonic_s() + timeout
        ids = self.ids_in(result)
        while True:
            if ids:
                yield from self.wait(result, ids, _left(until), on_interval, options.get("on_message"))
            if not self._backend.location.path or (ids and result.on_ready.ready):
                return
            try:
                yield from local(
                    result, timeout=_left(until), on_interval=HomeLooks(self, result, on_interval), **options
                )
                return
            except ComesElsewhere as found:
                ids = list(dict.fromkeys([*self.ids_in(result), *found.ids]))


class HomeLooks:
    """The looks at other homes during a wait at this store. To call it costs nothing until the next look is due. Then
    it calls `on_interval`, which it wraps."""

    def __init__(self, elsewhere: Elsewhere, result: Any, on_interval: Callable[[], Any] | None) -> None:
        self._elsewhere, self._result, self._on_interval = elsewhere, result, on_interval
        self._look_s = FIRST_LOOK_S
        self._due = monotonic_s() + FIRST_LOOK_S * 0.9
        self.is_alone = on_interval is None or (
            isinstance(on_interval, promise) and _is_empty(on_interval)
        )  # it has to be called only when a look is due

    def left_s(self) -> float:
        """The time until the next look."""
        return max(self._due - monotonic_s(), 0.0)

    def __call__(self) -> None:
        """Looks if it is time. Raises ComesElsewhere when the home of a task turns out to be another one."""
        if monotonic_s() >= self._due:
            self._look_s = min(2 * self._look_s, LAST_LOOK_S)
            self._due = monotonic_s() + self._look_s
            if not self._elsewhere.look(self._result):
                self._due = min(self._due, monotonic_s() + UNKNOWN_LOOK_S)
        if self._on_interval is not None:
            self._on_interval()


def _is_empty(callback: promise) -> bool:
    """Whether a promise calls nothing: `.get()` makes such a one where its caller gave no `on_interval`."""
    return not (callback.fun or callback._svpending or callback._lvpending)


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - monotonic_s(), 0.0)


def _open_ids(result: Any) -> Iterator[str]:
    """The ids in a result, which may be a group's, that are not known to be ready."""
    children = getattr(result, "results", None)
    if children is None:
        if not result._cache:
            yield str(result.id)
        return
    for child in children:
        yield from _open_ids(child)


def _parents_of(result: Any) -> Iterator[str]:
    """The ids of the tasks that had to succeed before a result."""
    parent = getattr(result, "parent", None)
    while parent is not None:
        yield from homes.ids_of(parent)
        parent = getattr(parent, "parent", None)
