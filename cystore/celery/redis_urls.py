"""One URL for a Redis, as kombu and as redis-py spell it. Imports no redis; no password ever stands in a message or a
repr.

| given | redis-py | kombu |
|---|---|---|
| ``redis://host:6379/1``, ``rediss://`` | the same | the same |
| ``unix:///run/r.sock?db=1`` | the same | ``redis+socket:///run/r.sock?virtual_host=1`` |
| ``redis+socket:///run/r.sock?virtual_host=1`` | ``unix:///run/r.sock?db=1`` | the same |
| ``sentinel://a:26379;sentinel://b:26379/1`` | a `Sentinel` of its own | the same, with `master_name` as an option |
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from celery.exceptions import ImproperlyConfigured

from cystore.errors import StoreError, hidden
from cystore.value_class import value_class

SOCKET, SENTINEL = ("unix", "redis+socket"), "sentinel"
SCHEMES = ("redis", "rediss", *SOCKET, SENTINEL)
DEFAULT_PORT = {SENTINEL: 26379}
# kombu's names of redis-py's required, optional and none.
CERT_REQS = {"CERT_REQUIRED": "required", "CERT_OPTIONAL": "optional", "CERT_NONE": "none"}
PREFIX = "global_keyprefix"  # kombu's name for the prefix of every key; the duties' keys have it too
# Other options of kombu's Redis transport and of Celery's Redis result backend. Duties and stores have no use for them.
OF_TRANSPORT = {
    "sep", "ack_emulation", "unacked_key", "unacked_index_key", "unacked_mutex_key", "unacked_mutex_expire",
    "visibility_timeout", "unacked_restore_limit", "unacked_restore_interval", "unacked_restore_throttle",
    "fanout_prefix",
    "fanout_patterns", "queue_order_strategy", "priority_steps", "body_encoding", "polling_interval", "retry_policy",
    "result_chord_ordered", "result_chord_join_timeout", "min_other_sentinels",
}  # fmt: skip
OF_CLIENT = {
    "master_name", "sentinel_kwargs", "socket_timeout", "socket_connect_timeout", "socket_keepalive",
    "socket_keepalive_options", "max_connections", "health_check_interval", "retry_on_timeout", "client_name",
    "credential_provider", "connection_class",
}  # fmt: skip
# Where passwords may stand, beside URLs: a file that a setting names (Celery shows no setting with PASS in its name),
# or a variable of the environment. The first pair is for the duties' Redis, the second for the one that ?reader= names.
PASSWORD_SETTING, PASSWORD_VARIABLE = "cystore_redis_password_file", "CYSTORE_REDIS_PASSWORD"
READER_SETTING, READER_VARIABLE = "cystore_reader_password_file", "CYSTORE_READER_PASSWORD"
SECRET_NAMES = ("pass", "secret", "token")  # parts of the names of options whose values are not shown
WANTED = (
    "the duties need a Redis: cystore_redis_url (or the broker's URL) must begin with redis://, rediss://, "
    "redis+socket://, "
    "unix:// or sentinel://"
)


class RedisAwayError(Exception):
    """Redis is down or refuses this client; the log gives the reason once. Redis is asked again after a while."""


@value_class(frozen=True)
class RedisLocation:
    """The address of a Redis. Made by `parse`; `options` go to redis-py's client. Its text shows no password."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    master_name: str = ""
    key_prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None, password: str = "") -> RedisLocation:
        """`password` counts if the URL has none. Raises ImproperlyConfigured, which names the problem and the
        setting."""
        text = str(url or "").strip()
        scheme = text.partition("://")[0].lower() if "://" in text else ""
        if "cluster" in scheme:
            raise ImproperlyConfigured(
                "cystore_redis_url: Redis Cluster is not supported, because the keys of a store would lie on "
                "several nodes; "
                "name a single Redis or a Sentinel (a store sends it about two hundred bytes a second)"
            )
        if scheme not in SCHEMES:
            raise ImproperlyConfigured(f"{WANTED}, not {scheme or 'nothing'}://")
        parts = [part for part in text.split(";") if part]
        if len(parts) > 1 and scheme != SENTINEL:
            raise ImproperlyConfigured(
                f"cystore_redis_url: {len(parts)} servers are named, but leases need a single one; name that "
                "one, or a Sentinel"
            )
        try:
            return cls._of(scheme, parts, dict(options or {}), password)
        except ValueError:
            # Python's own text may contain the password.
            raise ImproperlyConfigured(
                f"cystore_redis_url: {hidden(text)} is not a valid URL: write "
                "SCHEME://USER:PASSWORD@HOST:PORT/DATABASE, with "
                "special characters of the password percent-encoded"
            ) from None

    @classmethod
    def _of(cls, scheme: str, parts: list[str], options: dict[str, Any], password: str) -> RedisLocation:
        found = [urlsplit(part) for part in parts]
        if scheme not in SOCKET and any("," in (part.hostname or "") for part in found):
            raise ImproperlyConfigured(
                "cystore_redis_url: several hosts with commas between are named, but this is one Redis for all: name "
                "one host, or Sentinels as sentinel://HOST;sentinel://HOST"
            )
        last, login = found[-1], next((part for part in found if part.password or part.username), found[-1])
        query = dict(parse_qsl(last.query))
        database = str(query.pop("virtual_host", query.pop("db", "")))
        if scheme not in SOCKET:
            database = database or next((part.path for part in reversed(found) if part.path.strip("/")), "")
        database = database.strip("/") or "0"
        if not database.isascii() or not database.isdecimal():
            raise ValueError("the database is not a number")
        if query.get("ssl_cert_reqs") in CERT_REQS:
            query["ssl_cert_reqs"] = CERT_REQS[query["ssl_cert_reqs"]]
        default = DEFAULT_PORT.get(scheme, 6379)
        hosts = [(part.hostname or "localhost", part.port or default) for part in found]
        master = str(options.pop("master_name", "") or query.pop("master_name", ""))
        if scheme == SENTINEL and not master:
            raise ImproperlyConfigured(
                "cystore_redis_url: a Sentinel needs the name of the master: set cystore_redis_options = "
                "{'master_name': ...}"
            )
        prefix = str(options.pop(PREFIX, "") or query.pop(PREFIX, ""))
        gives_one = bool({"password", "credential_provider"} & {*query, *options})
        path = unquote(last.path) if scheme in SOCKET else ""
        if scheme in SOCKET and not path.strip("/"):
            raise ValueError("no path of a socket")
        return cls(
            "unix" if scheme in SOCKET else scheme,
            () if scheme in SOCKET else tuple(hosts),
            path,
            int(database),
            unquote(login.username or ""),
            unquote(login.password or "") or ("" if gives_one else password),
            master,
            prefix,
            {name: value for name, value in {**query, **options}.items() if name not in OF_TRANSPORT},
        )

    def __str__(self) -> str:
        """The URL without password and options."""
        login = f"{self.username}:**@" if self.password else ""
        return f"{self.scheme}://{login}{self._place}"

    def without_secrets(self, text: str) -> str:
        """A text of somebody else's, for a message: without the passwords of this Redis and of its Sentinels."""
        for secret in sorted(set(_secrets(self.password, self.options)), key=len, reverse=True):
            text = text.replace(secret, "**")
        return text

    @property
    def _place(self) -> str:
        if self.scheme == "unix":
            return f"{self.path}?db={self.database}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts}/{self.database}"

    @property
    def _login(self) -> str:
        if not self.username and not self.password:
            return ""
        return f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@"

    def for_redis_py(self) -> str:
        """The URL for `redis.Redis.from_url`; not for a Sentinel, which has no URL there."""
        if self.scheme == "unix":
            return f"unix://{self._login}{quote(self.path)}?db={self.database}"
        return f"{self.scheme}://{self._login}{self._place}"

    def for_kombu(self) -> tuple[str, dict[str, Any]]:
        """(`broker_url`, `broker_transport_options`) for the same Redis."""
        more: dict[str, Any] = {PREFIX: self.key_prefix} if self.key_prefix else {}
        if self.scheme == "unix":
            return f"redis+socket://{self._login}{quote(self.path)}?virtual_host={self.database}", more
        if self.scheme == SENTINEL:
            # From a list of URLs, kombu takes the database of the first.
            urls = [f"{SENTINEL}://{self._login}{host}:{port}/{self.database}" for host, port in self.hosts]
            sentinel = {name: value for name, value in self.options.items() if name == "sentinel_kwargs"}
            return ";".join(urls), {"master_name": self.master_name, **sentinel, **more}
        theirs = {ours: theirs for theirs, ours in CERT_REQS.items()}
        query = {
            name: theirs.get(str(value), value)
            for name, value in self.options.items()
            if name.startswith("ssl_")
        }
        return f"{self.scheme}://{self._login}{self._place}" + (f"?{urlencode(query)}" if query else ""), more


def _secrets(password: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Passwords, as they are and percent-encoded."""
    if password:
        yield from (password, quote(password, safe=""))
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets("", value)
        elif isinstance(value, str) and any(part in name.lower() for part in SECRET_NAMES):
            yield from _secrets(value, {})


def password_of(conf: Any, setting: str, variable: str) -> str:
    """The password in the file that a setting names, else in a variable of the environment, else none. Raises
    ImproperlyConfigured."""
    file = conf.get(setting)
    return _password_in(str(file), setting) if file else os.environ.get(variable, "")


@functools.lru_cache(16)
def _password_in(file: str, setting: str) -> str:
    """Each process reads it once: no duty waits for the file later."""
    from cystore.ha.link.secret import secret_in  # most apps have no such file

    try:
        return secret_in(file, setting, least=1).decode()
    except (StoreError, UnicodeDecodeError) as error:
        text = str(error) if isinstance(error, StoreError) else f"{setting} must name a file with UTF-8 text"
        raise ImproperlyConfigured(text) from None


def shows_password(url: str) -> bool:
    """Whether a URL has a password, which Celery's reports may show."""
    return bool(url) and hidden(url) != url


def redis_location_of(app: Any) -> RedisLocation | None:
    """The Redis that coordinates an app's duties: the setting `cystore_redis_url` (with `cystore_redis_options`), else
    the broker if that is a Redis, else None. ``cystore_redis_url = ""`` is None too. Raises ImproperlyConfigured."""
    conf = app.conf
    options = dict(conf.get("cystore_redis_options") or {})
    url = conf.get("cystore_redis_url")
    if url is not None:
        return RedisLocation.parse(url, options, _coordinating(conf)) if url else None
    broker = conf.broker_url or ""
    if isinstance(broker, (list, tuple)):
        broker = ";".join(broker)
    if broker.partition("://")[0].lower() not in SCHEMES:
        return None
    transport = conf.broker_transport_options or {}
    inherited = {
        name: transport[name] for name in ("master_name", "sentinel_kwargs", PREFIX) if name in transport
    }
    if isinstance(conf.broker_use_ssl, dict) and broker.startswith("rediss"):
        inherited |= conf.broker_use_ssl
    return RedisLocation.parse(broker, {**inherited, **options}, _coordinating(conf))


def _coordinating(conf: Any) -> str:
    return password_of(conf, PASSWORD_SETTING, PASSWORD_VARIABLE)
