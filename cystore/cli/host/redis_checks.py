"""Checks of the Redis of a fleet, for `cystore doctor --redis URL`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cystore.cli.host.site import Finding, Site, bad, ok, warn
from cystore.errors import StoreError, hidden
from cystore.operate.output import size_text


def reachable(site: Site) -> Iterator[Finding]:
    """Whether it answers, and can keep leases."""
    if not site.redis_url:
        yield ok(site.no_redis)
        return
    try:
        import redis
        from celery.exceptions import ImproperlyConfigured

        from cystore.celery.base import duty_leases
        from cystore.celery.redis_urls import PASSWORD_VARIABLE, RedisLocation
    except (ImportError, StoreError) as error:
        yield bad(f"{type(error).__name__}: {error}", "pip install 'cystore[celery]'")
        return
    try:
        password = os.environ.get(PASSWORD_VARIABLE, "")
        location = RedisLocation.parse(site.redis_url, password=password)
        client = duty_leases.connect(location)
    except ImproperlyConfigured as error:
        yield bad(str(error), "give --redis redis://HOST:6379/0, and the password in its URL or environment")
        return
    try:
        with client:
            info = client.info()
            duty_leases.check_server_info(info)
    except ImproperlyConfigured as error:
        yield bad(str(error), "name another Redis in cystore_redis_url")
    except redis.exceptions.NoPermissionError as error:
        yield warn(
            f"{location} answers, and does not show INFO: {hidden(str(error))}", "check it as its operator"
        )
    except (redis.exceptions.RedisError, OSError) as error:
        text = location.without_secrets(f"{type(error).__name__}: {error}")
        yield bad(
            f"{location} does not answer: {text}",
            "start it, or check address, password and firewall; results of this host do not need it",
        )
    else:
        site.redis = info
        yield ok(f"{location} answers: Redis {info.get('redis_version')}")


def role(site: Site) -> Iterator[Finding]:
    """Whether it is a master, and has its data in memory."""
    info = site.redis
    assert info is not None
    if info.get("loading"):
        yield warn("it still loads its data", "wait")
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        yield bad("a replica, which takes no writes", f"name the master, {master}, or a Sentinel")
    else:
        yield ok("a master")


def persistence(site: Site) -> Iterator[Finding]:
    """Whether a restart keeps what it has."""
    info = site.redis
    assert info is not None
    if not info.get("aof_enabled"):
        yield warn(
            "appendonly is off: a restart of Redis loses the tasks that wait in it, and the leases",
            "CONFIG SET appendonly yes, and the same in redis.conf",
        )
    elif str(info.get("aof_last_write_status", "ok")) != "ok":
        yield bad("the last write of its append-only file failed", "check the disk of Redis")
    else:
        yield ok("appendonly is on")


def eviction(site: Site) -> Iterator[Finding]:
    """Whether it may remove keys when its memory is full."""
    info = site.redis
    assert info is not None
    policy, most = str(info.get("maxmemory_policy")), int(info.get("maxmemory", 0))
    text = f"maxmemory-policy is {policy}, with {size_text(most) if most else 'no limit'} of memory"
    advice = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    if policy == "noeviction":
        yield ok(text)
    elif most and policy.startswith("allkeys"):
        yield bad(f"{text}: Redis may remove queues with their tasks", advice)
    else:
        yield warn(f"{text}: Redis may remove leases, and queues with their tasks", advice)
