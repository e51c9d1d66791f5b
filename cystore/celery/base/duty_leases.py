"""The leases of duties, in Redis, with fencing tokens. A lease only schedules; the store's own locks protect it.

Only this module and `cystore.celery.routing.lists` import redis. The keys expire by themselves
(`cystore.celery.registry` and `cystore.celery.routing.lists` list the other keys):

| key | holds | lives |
|---|---|---|
| `cystore:duties:<store id>:lease:<duty>` | hash: `holder` (token, random name), `by` (worker), `done` | the lease |
| `cystore:duties:<store id>:token:<duty>` | the last token given out | a week after the last lease |

Releases before had these keys without `duties:`, beside those of requests. During a rolling upgrade their workers and
ours must not have one duty at once. So a lease also stands under its old name, with the field `shadow`, and a lease of
an older worker counts; both names share the tokens. (A release that no such worker precedes can leave the old names
out.)
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from celery.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from cystore.celery.base.processes import in_pool
from cystore.celery.redis_urls import SENTINEL, WANTED, RedisAwayError, RedisLocation, redis_location_of
from cystore.clock import monotonic_s

log = logging.getLogger("cystore.celery")
T = TypeVar("T")

TOKEN_LIVES_MS = 7 * 24 * 3600 * 1000
LEAST_VERSION = (6, 2)
CONNECT_S, ANSWER_S = 1.0, 2.0  # a duty waits at most this long for Redis
AWAY_S, REFUSED_S = (
    5.0,
    60.0,
)  # until the next try, if the server does not answer, or refuses us

WITH_KEY = ("GET", "HGET", "HGETALL")  # commands with one key, beside scripts

PREFIX, OLD_PREFIX = "cystore:duties:", "cystore:"
# Each script is atomic and takes one round trip. KEYS: lease, its old name, token, its old name.
ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 and not redis.call('HGET', KEYS[2], 'shadow') then return 0 end
local last = tonumber(ARGV[4])
for i = 3, 4 do last = math.max(last, tonumber(redis.call('GET', KEYS[i]) or '0') or 0) end
local token = string.format('%.0f', last + 1)
for i = 3, 4 do redis.call('SET', KEYS[i], token, 'PX', ARGV[3]) end
redis.call('HSET', KEYS[1], 'holder', token .. ':' .. ARGV[1], 'by', ARGV[5], 'done', '0')
redis.call('HSET', KEYS[2], 'shadow', '1', 'by', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
"""
RENEW = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
PROGRESS = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'done', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
RELEASE = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
"""


class Lease:
    """The right to do one duty for one store, for `ttl_ms` since it was acquired or renewed. Made by `acquire`.

    `token` is greater than that of every earlier holder. A holder that was paused for longer than the lease learns that
    from `renew` or `progress`, and the store refuses its next step.
    """

    def __init__(
        self, client: redis.Redis, keys: tuple[str, str], token: int, name: str, ttl_ms: int
    ) -> None:
        self.token, self.ttl_ms = token, ttl_ms
        self._client, self._keys, self._value = client, keys, f"{token}:{name}"

    def renew(self) -> bool:
        """True when this holder still has the lease; its whole time then begins again."""
        return bool(self._client.eval(RENEW, 2, *self._keys, self._value, self.ttl_ms))

    def progress(self, done: int) -> bool:
        """`renew`, and publishes the progress."""
        return bool(self._client.eval(PROGRESS, 2, *self._keys, self._value, self.ttl_ms, done))

    def release(self) -> bool:
        """Gives the lease back; False when this holder had lost it."""
        return bool(self._client.eval(RELEASE, 2, *self._keys, self._value))


def acquire(
    client: redis.Redis, store_id: str, duty: str, ttl_s: float, *, highest_token: int = 0, by: str = ""
) -> Lease | None:
    """The lease, or None while another worker has it. Raises redis.RedisError.

    `highest_token` comes from the store, so a Redis that lost its data still gives a higher token.
    """
    name, ttl_ms = uuid.uuid4().hex, int(ttl_s * 1000)
    leases = (lease_key(store_id, duty), lease_key(store_id, duty, OLD_PREFIX))
    tokens = (_token_key(store_id, duty), _token_key(store_id, duty, OLD_PREFIX))
    token = client.eval(ACQUIRE, 4, *leases, *tokens, name, ttl_ms, TOKEN_LIVES_MS, highest_token, by)
    return Lease(client, leases, int(token), name, ttl_ms) if token else None


def last_token(client: redis.Redis, store_id: str, duty: str) -> int:
    """The last token given out for a duty: the number of leases, since Redis or the store counts them."""
    return int(client.get(_token_key(store_id, duty)) or 0)


def lease_key(store_id: str, duty: str, prefix: str = PREFIX) -> str:
    """The key of a duty's lease."""
    return f"{prefix}{store_id}:lease:{duty}"


def _token_key(store_id: str, duty: str, prefix: str = PREFIX) -> str:
    return f"{prefix}{store_id}:token:{duty}"


@contextmanager
def lease(
    client: redis.Redis, store_id: str, duty: str, ttl_s: float, *, highest_token: int = 0, by: str = ""
) -> Iterator[Lease | None]:
    """`acquire` for the length of a with block."""
    held = acquire(client, store_id, duty, ttl_s, highest_token=highest_token, by=by)
    try:
        yield held
    finally:
        if held is not None:
            held.release()


# --------------------------------------------------------------------------------------------- the connection


class Coordination:
    """This process's view of an app's Redis: up, or down until the next try.

    Duties continue without Redis. An error is reported when it begins and when it changes. No call waits for a server
    that was down a moment ago.
    """

    def __init__(self, location: RedisLocation) -> None:
        self.location = location
        self._client: redis.Redis | None = None
        self._retry_at = 0.0
        self._problem, self._away = "", False

    def call(self, work: Callable[[redis.Redis], T]) -> T:
        """The result of `work(client)`. Raises RedisAwayError."""
        if monotonic_s() < self._retry_at:
            raise RedisAwayError(self._problem)
        try:
            result = work(self.client())
        except (redis.RedisError, OSError, ImproperlyConfigured) as error:
            self._went_away(error)
            raise RedisAwayError(self._problem) from None  # redis-py's text may contain parts of the URL
        if self._problem:
            log.log(_level(logging.WARNING), "Redis at %s is back", self.location)
            self._problem, self._away = "", False
        return result

    def client(self) -> redis.Redis:
        """A client of a server that can keep leases. Raises redis.RedisError, ImproperlyConfigured."""
        if self._client is None:
            client = connect(self.location)
            check_server(client)
            self._client = client
        return self._client

    def _went_away(self, error: Exception) -> None:
        gone = isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)) and not isinstance(
            error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)
        )
        self._retry_at = monotonic_s() + (AWAY_S if gone else REFUSED_S)
        text = self.location.without_secrets(f"{type(error).__name__}: {error}")
        was_away, self._away = self._away, gone
        before, self._problem = self._problem, text
        if (
            was_away and gone
        ) or text == before:  # the connection error of an absent server may change with each try
            return
        log.log(
            _level(logging.WARNING if gone else logging.ERROR),
            "Redis at %s %s: %s. The store works without it; its duties use leases in the store. Trying Redis "
            "again every "
            "%.0f s",
            self.location,
            "is away" if gone else "refuses us",
            text.rstrip("."),
            AWAY_S if gone else REFUSED_S,
        )


class _Prefixed:
    """Adds `key_prefix` to every key: a server that several apps share may limit each app to its own prefix."""

    key_prefix = ""

    def execute_command(self, *words: Any, **options: Any) -> Any:
        """Runs a command of the duties. Their scripts take keys only as KEYS."""
        name, *rest = words
        if name == "EVAL":
            script, count, *rest = rest
            rest = [script, count, *(self.key_prefix + key for key in rest[:count]), *rest[count:]]
        elif name in WITH_KEY:
            rest[0] = self.key_prefix + rest[0]
        return super().execute_command(name, *rest, **options)  # type: ignore[misc]


class _PrefixedPipeline(_Prefixed, redis.client.Pipeline):
    pass


class _PrefixedRedis(_Prefixed, redis.Redis):
    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _PrefixedPipeline:
        made = _PrefixedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.key_prefix = self.key_prefix
        return made


def connect(location: RedisLocation, *, tries: int = 1) -> redis.Redis:
    """A client that sends nothing before its first command. It repeats a failed command up to `tries` times. Raises
    ImproperlyConfigured for options that make no sense."""
    options: dict[str, Any] = {
        "socket_timeout": ANSWER_S,
        "socket_connect_timeout": CONNECT_S,
        "retry": Retry(NoBackoff(), tries),  # one repeat is for a connection that a restarted server closed
        **location.options,
    }
    kind = _PrefixedRedis if location.key_prefix else redis.Redis
    try:
        if location.scheme == SENTINEL:
            sentinel_options = {
                "socket_timeout": CONNECT_S,
                "retry": Retry(NoBackoff(), 0),  # no repeat: redis-py asks the next Sentinel
                **options.pop("sentinel_kwargs", {}),
            }
            login = {"username": location.username or None, "password": location.password or None}
            sentinel = Sentinel(list(location.hosts), sentinel_kwargs=sentinel_options)
            client = sentinel.master_for(location.master_name, kind, db=location.database, **login, **options)
        else:
            if location.scheme == "unix":
                options.pop("socket_connect_timeout")
            client = kind.from_url(location.for_redis_py(), **options)
        if isinstance(client, _PrefixedRedis):
            client.key_prefix = location.key_prefix
        client.connection_pool.make_connection()  # checks the options, does not connect
        return client
    except (TypeError, ValueError):
        raise ImproperlyConfigured(
            f"cystore_redis_options: redis-py does not accept one of {', '.join(sorted(location.options)) or 'them'}"
        ) from None


def check_server(client: redis.Redis) -> None:
    """Raises ImproperlyConfigured for a server that cannot keep leases: a cluster, or a version before 6.2."""
    try:
        info = client.info("server")
    except redis.exceptions.NoPermissionError:
        return  # without the right to INFO, the scripts reveal the version
    check_server_info(info)


def check_server_info(info: dict[str, Any]) -> None:
    """`check_server` with INFO's answer."""
    if info.get("redis_mode") == "cluster":
        raise ImproperlyConfigured(
            "this Redis is a Cluster, which is not supported, because the keys of a store would lie on several "
            "nodes; name a "
            "single Redis or a Sentinel in cystore_redis_url"
        )
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < LEAST_VERSION:
        raise ImproperlyConfigured(f"this Redis is {version}; the duties need 6.2 or newer")


_coordinations: dict[RedisLocation, Coordination] = {}


def coordination_of(app: Any) -> Coordination | None:
    """This process's access to the Redis that coordinates an app; None without one. Raises ImproperlyConfigured."""
    location = redis_location_of(app)
    if location is None:
        return None
    if location not in _coordinations:
        _coordinations[location] = Coordination(location)
    return _coordinations[location]


def redis_of(app: Any) -> redis.Redis:
    """This process's client for the Redis that coordinates: the setting `cystore_redis_url`, else the broker's.

    Raises ImproperlyConfigured if neither is a Redis, and redis.RedisError.
    """
    found = coordination_of(app)
    if found is None:
        raise ImproperlyConfigured(f"{WANTED}, not {str(app.conf.broker_url).partition('://')[0]}://")
    return found.client()


def redis_url_of(url: str) -> str:
    """A URL in redis-py's spelling; the given URL may have kombu's."""
    return RedisLocation.parse(url).for_redis_py()


def _level(level: int) -> int:
    """The level, DEBUG in a pool process: the worker's main process asks Redis too, and reports."""
    return logging.DEBUG if in_pool() else level


def _forked() -> None:
    """Connections belong to the parent."""
    _coordinations.clear()


os.register_at_fork(after_in_child=_forked)
