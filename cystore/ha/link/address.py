"""Addresses of a master and of etcd in settings."""

from __future__ import annotations

from urllib.parse import urlsplit

from cystore.errors import StoreConfigError

ETCD_PORT = 2379


def address_of(text: str, setting: str = "ha_master_address") -> tuple[str, int]:
    """``host:port``, or ``[host]:port`` for IPv6, as (host, port). Raises StoreConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise StoreConfigError(f"{setting} must be HOST:PORT, not {text!r}")
    return host, int(port)


def endpoints_of(text: str) -> list[tuple[str, str, int]]:
    """``URL,URL`` as (scheme, host, port). Raises StoreConfigError."""
    found = []
    for one in text.split(","):
        try:
            url = urlsplit(one.strip() if "://" in one else f"http://{one.strip()}")
            port = url.port or ETCD_PORT
        except ValueError:
            url, port = urlsplit(""), 0
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
            raise StoreConfigError(f"ha_etcd_endpoints must be URLs with commas between, not {text!r}")
        found.append((url.scheme, url.hostname, port))
    return found
