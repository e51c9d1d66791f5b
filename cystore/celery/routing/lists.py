"""Requests and answers in Redis: the keys, the scripts, and a connection that may wait.

| key | holds | lives |
|---|---|---|
| `cystore:readers` | sorted set: stores whose results are read, by their last sign | an hour after the last one |
| `cystore:<store id>:read` | list: requests, "ms JSON", not after that time | two minutes after the last request |
| `cystore:<store id>:taken` | list: those that a worker has taken and not answered | ten minutes after the last sign |
| `cystore:answer:<request>` | list of one: the answer | 10 s |

The scripts get these keys as ARGV: for KEYS Redis wants the rights to read and to write, and a client may only write
requests, and only read `cystore:readers` (docs/remote.md has the rights).

A replica of a store signs, and takes requests, under the name `<store id>:replica`.

Times are those of the Redis server: clocks of hosts differ. Only this module and
`cystore.celery.base.duty_leases` import redis.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from celery.exceptions import ImproperlyConfigured

from cystore.celery.base.duty_leases import check_server, connect
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing.messages import WAIT_MS_MOST, Request
from cystore.clock import monotonic_s

READERS = "cystore:readers"
REPLICA = ":replica"
LIVE_MS = 30_000  # after its last heartbeat a store counts as readable for this time
HOMES_MOST = 64  # the most homes that are asked for an id with an unknown home
REQUESTS_MOST = 1_000  # the most waiting requests of a list
LIVES_MOST_MS = WAIT_MS_MOST + 10_000
ANSWER_LIVES_MS = 10_000
LATE_S = 2.0  # Redis may end a blocking command this much late
AWAY = (redis.RedisError, OSError)
REFUSES = (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError)

# A script's beginning: ARGV has a number, so many keys, and then what the script calls ARGV.
_KEYS = """
local n = tonumber(ARGV[1])
local KEYS, ARGV = {unpack(ARGV, 2, n + 1)}, {unpack(ARGV, n + 2)}
"""
_TIME = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
# KEYS: requests. ARGV: the request, its lifetime in ms, the most waiting ones. Returns 0 if too many wait.
PUSH = (
    _TIME
    + """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('RPUSH', KEYS[1], string.format('%.0f ', now + ARGV[2]) .. ARGV[1])
redis.call('PEXPIRE', KEYS[1], 120000)
return 1
"""
)
# KEYS: readers, taken. ARGV: store id, whether the keys' lifetimes are renewed ("1"). Returns the time.
SIGN = (
    _TIME
    + """
redis.call('ZADD', KEYS[1], now, ARGV[1])
if ARGV[2] == '1' then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 3600000)
    redis.call('PEXPIRE', KEYS[1], 3600000)
    redis.call('PEXPIRE', KEYS[2], 600000)
end
return string.format('%.0f', now)
"""
)
# KEYS: readers. ARGV: the most. Returns pairs of store id and ms since its last sign, the newest first.
SIGNS = (
    _TIME
    + """
local found = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', now - 3600000, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 2, #found, 2 do found[i] = string.format('%.0f', math.max(now - tonumber(found[i]), 0)) end
return found
"""
)
# KEYS: answer, taken. ARGV: the answer, ms that it lives, the request as it was taken.
ANSWER = """
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('LREM', KEYS[2], 1, ARGV[3])
"""
# KEYS: taken, requests. ARGV: the most. Puts back the requests that a killed reader had taken.
AGAIN = """
local moved = 0
while moved < tonumber(ARGV[1]) and redis.call('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT') do moved = moved + 1 end
redis.call('DEL', KEYS[1])
if moved > 0 then redis.call('PEXPIRE', KEYS[2], 120000) end
return moved
"""


def replica_of(home: str) -> str:
    """The name under which the replicas of a home answer."""
    return home + REPLICA


def requests_key(home: str) -> str:
    """The list of a home's requests."""
    return f"cystore:{home}:read"


def taken_key(home: str) -> str:
    """The list of the requests that are being answered."""
    return f"cystore:{home}:taken"


def answer_key(request_id: str) -> str:
    """The key of an answer."""
    return f"cystore:answer:{request_id}"


class Line:
    """One Redis: short commands, and one connection for a command that waits. It belongs to one thread at a time.

    Every method raises one of `AWAY` when Redis does not answer in time; the line is then closed, and the next use
    opens it again.
    """

    def __init__(self, location: RedisLocation) -> None:
        # No retries: a repeated command would ask twice, and double a wait. The callers try again themselves.
        plain = dataclasses.replace(location, options={**location.options, "decode_responses": False})
        self._client = connect(plain, tries=0)
        self._prefix = getattr(self._client, "key_prefix", "")
        self._connection: Any = None
        self._checked = False
        self.waits_until = 0.0  # monotonic; 0 if no command waits

    def open(self) -> None:
        """Connects. A later `send` does not resolve names any more."""
        if not self._checked:
            try:
                check_server(self._client)
            except ImproperlyConfigured as error:
                raise redis.RedisError(str(error)) from None
            self._checked = True
        if self._connection is None:
            pool = self._client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)  # the pool does not need to know it
            connection.connect()
            self._connection = connection

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wake(self) -> None:
        """Ends the blocking command of another thread, which gets an error. `close` alone would not wake a greenlet of
        eventlet: its hub forgets a socket that is closed."""
        sock = getattr(self._connection, "_sock", None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connections."""
        connection, self._connection, self.waits_until = self._connection, None, 0.0
        if connection is not None:
            connection.disconnect()
        self._client.connection_pool.disconnect()

    # ------------------------------------------------------------------------------------ a command that waits

    def take_request(self, home: str, timeout_s: float) -> None:
        """Begins to wait for a request. It stands in the list of taken ones until it is answered."""
        words = ("BLMOVE", self._prefix + requests_key(home), self._prefix + taken_key(home), "LEFT", "RIGHT")
        self._send(timeout_s, *words)

    def take_answer(self, request_ids: list[str], timeout_s: float) -> None:
        """Begins to wait for the answer to one of several requests."""
        self._send(timeout_s, "BLPOP", *(self._prefix + answer_key(one) for one in request_ids))

    def _send(self, timeout_s: float, *words: Any) -> None:
        self.open()
        self.waits_until = monotonic_s() + timeout_s + LATE_S
        self._connection.send_command(*words, f"{max(timeout_s, 0.01):.3f}")

    def came(self, timeout_s: float) -> bool:
        """Whether the blocking command has ended, within this time."""
        connection = self._connection
        if connection is None:
            raise redis.ConnectionError("the connection was closed")
        try:
            came = connection.can_read(max(0.0, min(timeout_s, self.waits_until - monotonic_s())))
        except (ValueError, AttributeError):
            if self._connection is connection:
                raise
            raise redis.ConnectionError(
                "the connection was closed"
            ) from None  # another thread called `close`
        if came:
            return True
        if monotonic_s() >= self.waits_until:
            raise redis.TimeoutError("Redis did not answer a blocking command in time")
        return False

    def taken(self) -> Any:
        """The result of the blocking command."""
        connection = self._connection
        if connection is None:
            raise redis.ConnectionError("the connection was closed")
        found = connection.read_response()
        self.waits_until = 0.0
        return found

    def answer_in(self, taken: Any) -> tuple[str, bytes] | None:
        """(request id, answer) from `take_answer`; None without an answer."""
        if not isinstance(taken, (list, tuple)) or len(taken) != 2 or not isinstance(taken[1], bytes):
            return None
        name = taken[0].decode("ascii", "replace") if isinstance(taken[0], bytes) else ""
        return name.removeprefix(self._prefix + answer_key("")), taken[1]

    # -------------------------------------------------------------------------------------------- short ones

    def _script(self, script: str, keys: Sequence[str], *words: Any) -> Any:
        named = [self._prefix + key for key in keys]
        return self._client.eval(_KEYS + script, 0, len(keys), *named, *words)

    def push(self, request: Request, lives_ms: int, *, name: str = "") -> bool:
        """Sends a request to its home, or to the `name` of its replicas; False if too many wait already."""
        key, text = requests_key(name or request.home), request.encoded()
        return bool(self._script(PUSH, (key,), text, int(lives_ms), REQUESTS_MOST))

    def sign(self, home: str, *, renews: bool = True) -> int:
        """Publishes that this process answers for a store. `renews` also renews the lifetimes of the keys: needed now
        and then. Returns the server's time, ms."""
        return int(self._script(SIGN, (READERS, taken_key(home)), home, int(renews)))

    def signs(self) -> list[tuple[str, int]]:
        """(store id, ms since its last sign), the newest first; ids are not checked."""
        found = self._script(SIGNS, (READERS,), 2 * HOMES_MOST)
        names = [one.decode("ascii", "replace") if isinstance(one, bytes) else str(one) for one in found]
        return [(names[i], int(names[i + 1])) for i in range(0, len(names) - 1, 2)]

    def answer(self, request_id: str, home: str, answer: bytes, taken: bytes) -> None:
        """Gives an answer, and forgets that the request was taken."""
        keys = (answer_key(request_id), taken_key(home))
        self._script(ANSWER, keys, answer, ANSWER_LIVES_MS, taken)

    def forget(self, home: str, taken: bytes) -> None:
        """Forgets a taken request that gets no answer."""
        self._script("return redis.call('LREM', KEYS[1], 1, ARGV[1])", (taken_key(home),), taken)

    def ask_again(self, home: str) -> int:
        """Puts back the requests that another process of this store had taken and not answered."""
        return int(self._script(AGAIN, (taken_key(home), requests_key(home)), 2 * REQUESTS_MOST))

    def waiting_answers(self, request_ids: list[str]) -> set[str]:
        """The answers that no client has taken yet."""
        script = "local r = {} for i, k in ipairs(KEYS) do r[i] = redis.call('EXISTS', k) end return r"
        there = self._script(script, [answer_key(one) for one in request_ids])
        return {one for one, exists in zip(request_ids, there, strict=True) if exists}


def sleep(seconds: float) -> None:
    """Sleeps; under gevent and eventlet only this greenlet does."""
    time.sleep(seconds)


def pause(seconds: float, until: float) -> None:
    """Sleeps, but not beyond `until` (monotonic)."""
    time.sleep(max(0.0, min(seconds, until - monotonic_s())))
