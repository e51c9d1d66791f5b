"""Who does a duty: leases in Redis with fencing tokens. A lease only schedules; the store's own locks protect it.

Keys, all of which expire by themselves:

| key                              | holds                               | lives                       |
|----------------------------------|-------------------------------------|-----------------------------|
| `cystore:<store id>:lease:<duty>` | the holder's token and a random name | the lease, unless renewed   |
| `cystore:<store id>:token:<duty>` | the last token given out             | a week after the last lease |
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from celery.exceptions import ImproperlyConfigured

from cystore import MessageStore, StoreFormatError, files

STORE_ID = "storeId"
TOKEN_LIVES_MS = 7 * 24 * 3600 * 1000

# Each is one round trip, and atomic. KEYS: lease, token. The value of a lease is "token:name".
ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local token = redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], token .. ':' .. ARGV[1], 'PX', ARGV[2])
return token
"""
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class Lease:
    """The right to do one duty for one store, for `ttl_ms` since it was acquired or renewed. Made by `lease`.

    `token` is greater than that of every holder before. Who was paused for longer than the lease finds out by `renew`, before
    its next step.
    """

    def __init__(self, client: redis.Redis, key: str, token: int, name: str, ttl_ms: int) -> None:
        self.token = token
        self._client, self._key, self._value, self._ttl_ms = client, key, f"{token}:{name}", ttl_ms

    def renew(self) -> bool:
        """True when the lease is still this holder's; it then has its whole time again."""
        return bool(self._client.eval(RENEW, 1, self._key, self._value, self._ttl_ms))

    def release(self) -> bool:
        """Gives the lease back; False when it was not this holder's any more."""
        return bool(self._client.eval(RELEASE, 1, self._key, self._value))


def acquire(client: redis.Redis, store_id: str, duty: str, ttl_s: float) -> Lease | None:
    """The lease, or None while somebody else has it. Raises redis.RedisError."""
    key, name, ttl_ms = f"cystore:{store_id}:lease:{duty}", uuid.uuid4().hex, int(ttl_s * 1000)
    token = client.eval(ACQUIRE, 2, key, _token_key(store_id, duty), name, ttl_ms, TOKEN_LIVES_MS)
    return Lease(client, key, int(token), name, ttl_ms) if token else None


def last_token(client: redis.Redis, store_id: str, duty: str) -> int:
    """The last token given out for a duty: how often somebody had the lease, since Redis knows of it."""
    return int(client.get(_token_key(store_id, duty)) or 0)


def _token_key(store_id: str, duty: str) -> str:
    return f"cystore:{store_id}:token:{duty}"


@contextmanager
def lease(client: redis.Redis, store_id: str, duty: str, ttl_s: float) -> Iterator[Lease | None]:
    """`acquire` for the length of a with block."""
    held = acquire(client, store_id, duty, ttl_s)
    try:
        yield held
    finally:
        if held is not None:
            held.release()


def store_id_of(store: MessageStore) -> str:
    """The id that a store keeps in ``config/storeId``, made by whoever asks first; it goes where the directory goes."""
    path = store.path / "config" / STORE_ID
    if not path.exists():
        draft = files.temporary_path(store.path)
        files.write_whole(store.path, draft, str(uuid.uuid4()).encode(), keep_last=False)
        try:
            files.move(draft, path)
        except FileExistsError:
            files.remove(draft)
    text = files.read_all(path).decode("ascii", "replace").strip()
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise StoreFormatError(f"the store's id is damaged: {text[:40]!r}", path=path) from None


_clients: dict[str, redis.Redis] = {}


def redis_of(app: Any) -> redis.Redis:
    """This process's client for the Redis that coordinates: the setting `cystore_redis_url`, else the broker's.

    Raises ImproperlyConfigured where neither is a Redis.
    """
    url = redis_url_of(app.conf.get("cystore_redis_url") or app.conf.broker_url or "")
    if url not in _clients:
        _clients[url] = redis.Redis.from_url(url)
    return _clients[url]


def redis_url_of(url: str) -> str:
    """A URL as redis-py spells it, from one that may be kombu's: ``redis+socket:///path?virtual_host=1`` is
    ``unix:///path?db=1``."""
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss", "unix"):
        return url
    if parts.scheme != "redis+socket":
        raise ImproperlyConfigured(
            f"the duties need a Redis: cystore_redis_url (or the broker's URL) must begin with redis://, rediss://, "
            f"redis+socket:// or unix://, not {parts.scheme or 'nothing'}://"
        )
    database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
    login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"unix://{login}{Path(unquote(parts.path))}?db={database}"


def _forked() -> None:
    """Connections are the parent's."""
    _clients.clear()


os.register_at_fork(after_in_child=_forked)
