"""Addresses of masters and of etcd in settings, and the URL of a store whose master may be on one of several hosts."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cystore.errors import StoreConfigError, hidden

ETCD_PORT = 2379
MASTER_PORT = 10912  # RocketMQ's haListenPort
SCHEME = "cystore"


def address_of(text: str, setting: str = "ha_master_address") -> tuple[str, int]:
    """``host:port``, or ``[host]:port`` for IPv6, as (host, port). Raises StoreConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not colon or not host or "@" in text or not is_port:
        raise StoreConfigError(f"{setting} must be HOST:PORT, not {hidden(text)!r}")
    return host, int(port)


def masters_of(text: str) -> list[str]:
    """``HOST:PORT,HOST:PORT`` as the addresses where a slave looks for its master. Raises StoreConfigError."""
    found = [one.strip() for one in text.split(",")]
    for one in found:
        address_of(one)
    return found


class StoreUrl(NamedTuple):
    """``cystore://HOST,HOST:PORT/path``: the store in directory `path` of this host. The master of its log is on one
    of the hosts; `masters` is "" if the URL names none."""

    masters: str
    path: str

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Raises StoreConfigError."""
        try:
            url = urlsplit(text)
        except ValueError:
            # Python's own text may contain the password.
            raise StoreConfigError(f"{hidden(text)!r} is not a URL of a store") from None
        if url.scheme != SCHEME or "@" in url.netloc or url.query or url.fragment or not url.path.strip("/"):
            raise StoreConfigError(
                f"the URL of a store is {SCHEME}://HOST:PORT,HOST:PORT/path/of/this/host, without options, "
                f"not {hidden(text)!r}"
            )
        return cls(masters_in(url.netloc), unquote(url.path))


def split_url(path: str | os.PathLike[str]) -> tuple[str, str | os.PathLike[str]]:
    """(the addresses of a URL's hosts, its path); ("", path) for a path. Raises StoreConfigError."""
    text = os.fsdecode(path)
    if not text.startswith(("cystore:/", "cystore+remote:/")):
        return "", path
    if isinstance(path, str) and text.startswith("cystore://"):
        return StoreUrl.parse(text)
    raise StoreConfigError(
        "path must name a directory of this host, or be the text cystore://HOST:PORT,HOST:PORT/path, not "
        f"{hidden(text)!r}"
    )


def masters_in(netloc: str) -> str:
    """The hosts of a URL as a value of ha_master_address; "" if there are none. Raises StoreConfigError, also for one
    host without a port: it may be the first part of a path after two slashes instead of three."""
    if netloc and ":" not in netloc and "," not in netloc:
        raise StoreConfigError(
            f"{netloc!r} would be a host: write three slashes before a path, or {netloc}:{MASTER_PORT} for a host"
        )
    hosts = [one.strip() for one in netloc.split(",")] if netloc else []
    found = [one if one.rpartition("]")[2].find(":") >= 0 else f"{one}:{MASTER_PORT}" for one in hosts]
    return ",".join(masters_of(",".join(found))) if found else ""


def endpoints_of(text: str) -> list[tuple[str, str, int]]:
    """``URL,URL`` as (scheme, host, port). Raises StoreConfigError."""
    found = []
    for one in text.split(","):
        try:
            url = urlsplit(one.strip() if "://" in one else f"http://{one.strip()}")
            port = url.port or ETCD_PORT
        except ValueError:
            url, port = urlsplit(""), 0
        host = url.hostname if "@" not in url.netloc and url.path in ("", "/") else ""
        if url.scheme not in ("http", "https") or not host:
            raise StoreConfigError(
                f"ha_etcd_endpoints must be URLs with commas between, not {hidden(text)!r}"
            )
        found.append((url.scheme, host, port))
    return found
