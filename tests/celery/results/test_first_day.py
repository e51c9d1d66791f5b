"""Goal: what an app that had a Redis result backend brings with it works here, or an error says what to do. Method:
apps and backends in this process; a Redis where keys are looked at."""

from __future__ import annotations

import json

import pytest
import redis as redis_py
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import ImproperlyConfigured

from cystore.celery import history, registry
from cystore.celery.base.duty_leases import acquire, connect, last_token, lease_key
from cystore.celery.lifecycle.redaction import HIDDEN
from cystore.celery.redis_urls import RedisLocation, redis_location_of
from cystore.celery.registry import due_ticks, fleet, heartbeat
from cystore.celery.stores import Location
from cystore.config import MIB
from tools.redis_server import redis_server

SECRET = "hunter2"
PREFIX = "shop:"


@pytest.mark.parametrize("url", ["cystore:///a;cystore:///b", "cystore:///a;redis://h/1", "cystore:///a;b"])
def test_a_second_result_backend_is_refused(url):
    """Celery has no failover for result backends: by_url hands the whole text over. Seen: a directory `a;cystore:/b`
    was made."""
    with pytest.raises(ImproperlyConfigured, match="more than one store"):
        Location.parse(url)
    assert Location.parse("cystore:///a%3Bb").path == "/a;b"


def test_options_of_a_redis_result_backend_are_left_out(make_backend, caplog):
    """Seen: `there is no setting 'global_keyprefix'` stopped the app."""
    options = {
        "global_keyprefix": PREFIX,
        "retry_policy": {"timeout": 5.0},
        "visibility_timeout": 3600,
        "master_name": "mine",
        "flush": "sync",
    }
    backend = make_backend(result_backend_transport_options=options)
    assert backend.location.settings == {"flush_disk_type": "sync"}
    backend.store_result("t", 1, states.SUCCESS)
    assert backend.get_result("t") == 1
    assert "global_keyprefix, master_name, retry_policy, visibility_timeout" in caplog.text
    with pytest.raises(ImproperlyConfigured, match="no setting 'visibility_time'"):
        Location.parse("cystore:///a", {"visibility_time": 1})


def test_the_duties_keys_have_the_brokers_prefix(backend):
    """Seen: redis-py does not take `global_keyprefix`, which stopped the app; and the keys of a shared Redis had no
    prefix."""
    with redis_server(own=True) as server:
        app = Celery("shop", broker=server.broker_url, backend=backend.url, set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": PREFIX, "visibility_timeout": 5}
        assert redis_location_of(app).key_prefix == PREFIX
        app.conf.cystore_redis_options = {"global_keyprefix": PREFIX, "visibility_timeout": 5}
        location = redis_location_of(app)
        assert location.for_kombu() == (
            RedisLocation.parse(server.url).for_kombu()[0],
            {"global_keyprefix": PREFIX},
        )
        with connect(location) as client:
            held = acquire(client, "store", "reput", 5.0)
            assert held is not None and held.renew() and held.progress(3)
            heartbeat(client, "store", backend.store, "w@h", ("worker",))
            assert registry.live_stores(client) == ["store"]
            assert due_ticks(client, ["store"], {"reput": 1.0}, 0.0) == {"store": ["reput"]}
            assert [one.store_id for one in fleet(client)] == ["store"]
            assert last_token(client, "store", "reput") == 1
            with redis_py.Redis.from_url(server.url) as plain:
                keys = {key.decode() for key in plain.scan_iter()}
                assert PREFIX + lease_key("store", "reput") in keys
                assert all(key.startswith(PREFIX) for key in keys)
        assert RedisLocation.parse(server.url).key_prefix == ""


@pytest.mark.parametrize("redact", [["password"], lambda name, args, kwargs: ((), {})])
def test_redaction_covers_what_a_result_keeps_of_its_arguments(make_backend, redact):
    """With result_extended. Seen: the lifecycle log had no password, and the result had it."""
    backend = make_backend(result_extended=True, cystore_lifecycle_redact=redact)
    request = Context(
        id="t",
        task="shop.charge",
        args=[{"password": SECRET}, 7],
        kwargs={"password": SECRET},
        delivery_info={},
    )
    backend.store_result("t", 1, states.SUCCESS, request=request)
    (kept,) = history.transitions(backend.store, task_id="t")
    assert SECRET not in json.dumps(kept.meta)
    if isinstance(redact, list):
        assert kept.meta["args"] == [{"password": HIDDEN}, 7]
    assert backend.get_task_meta("t")["kwargs"] == kept.meta["kwargs"]


def test_results_as_large_as_redis_takes_them(backend):
    """Seen: 5 MB became a FAILURE. The limit is 64 MiB, and a segment of that length keeps some of it for itself."""
    for size in (5 * MIB, 63 * MIB):
        text = "x" * size
        backend.store_result(f"t{size}", text, states.SUCCESS)
        assert backend.get_result(f"t{size}") == text
    assert backend.store.config.max_message_size_bytes == 64 * MIB
