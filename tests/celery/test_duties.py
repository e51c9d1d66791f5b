"""Goal: the dispatch duty does its work under a lease, and stops where the lease is lost. Method: a real Redis and store, the
task run in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis as redis_py
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import MessageStore, StoreFormatError
from cystore.celery import coordination, tasks
from cystore.celery.coordination import acquire, last_token, lease, redis_url_of, store_id_of

DUTY = tasks.REPUT_DUTY


@pytest.fixture
def client(redis) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis.url) as client:
        yield client


@pytest.fixture
def app(redis, url) -> Celery:
    app = Celery("duties", broker=redis.broker_url, backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


@pytest.fixture
def store(app) -> MessageStore:
    return app.backend.store


def reput(app: Celery) -> int | None:
    return app.tasks[tasks.REPUT].apply(throw=True).get()


def fill(store: MessageStore, size_bytes: int) -> None:
    for _ in range(size_bytes // 100_000):
        store.put("T", b"x" * 100_000, keys=("k",))


def behind(store: MessageStore) -> int:
    return store.stats()["dispatch_behind_bytes"]


# ------------------------------------------------------------------------------------------------ leases


def test_one_holder_at_a_time(client, store):
    store_id = store_id_of(store)
    first = acquire(client, store_id, DUTY, 60)
    assert acquire(client, store_id, DUTY, 60) is None
    assert acquire(client, store_id, "another", 60) is not None
    assert first.release()
    assert acquire(client, store_id, DUTY, 60) is not None


def test_tokens_grow(client, store):
    store_id = store_id_of(store)
    tokens = []
    for _ in range(3):
        with lease(client, store_id, DUTY, 60) as held:
            tokens.append(held.token)
    assert tokens == [1, 2, 3]
    assert last_token(client, store_id, DUTY) == 3


def test_who_lost_the_lease_finds_out_and_does_no_harm(client, store):
    store_id = store_id_of(store)
    old = acquire(client, store_id, DUTY, 60)
    client.delete(f"cystore:{store_id}:lease:{DUTY}")  # expired
    new = acquire(client, store_id, DUTY, 60)
    assert new.token > old.token
    assert not old.renew()
    assert not old.release()
    assert new.renew()


def test_a_redis_that_lost_its_memory_mixes_no_holders_up(client, store):
    """Both hold token 1, but the lease is the new holder's."""
    store_id = store_id_of(store)
    old = acquire(client, store_id, DUTY, 60)
    client.flushdb()
    new = acquire(client, store_id, DUTY, 60)
    assert not old.renew()
    assert new.renew()


def test_every_key_expires(client, store):
    store_id = store_id_of(store)
    held = acquire(client, store_id, DUTY, 60)
    keys = list(client.scan_iter(f"cystore:{store_id}:*"))
    assert len(keys) == 2
    assert all(client.pttl(key) > 0 for key in keys)
    assert client.pttl(f"cystore:{store_id}:lease:{DUTY}") <= 60_000
    client.pexpire(f"cystore:{store_id}:lease:{DUTY}", 1_000)
    assert held.renew()
    assert client.pttl(f"cystore:{store_id}:lease:{DUTY}") > 1_000


# --------------------------------------------------------------------------------------------- dispatch


def test_a_tick_dispatches_what_was_appended(app, store):
    fill(store, 1_000_000)
    size = behind(store)
    assert size > 1_000_000
    assert reput(app) == size
    assert behind(store) == 0
    assert reput(app) == 0


def test_a_tick_does_nothing_while_another_worker_has_the_lease(app, store, client):
    fill(store, 100_000)
    with lease(client, store_id_of(store), DUTY, 60):
        assert reput(app) is None
        assert behind(store) > 0
    assert reput(app) > 0


def test_a_tick_gives_its_lease_back(app, store, client):
    reput(app)
    assert acquire(client, store_id_of(store), DUTY, 60) is not None


def test_a_tick_that_lost_its_lease_stops_at_the_next_step(app, store, client, monkeypatch, caplog):
    """Paused for longer than the lease in its first step, it finds the token of another one before the second."""
    fill(store, 4 * tasks.STEP_BYTES)
    monkeypatch.setattr(tasks, "TICK_S", 3600.0)
    store_id = store_id_of(store)
    dispatch, thieves = MessageStore.dispatch, []

    def paused(self, **limits):
        client.delete(f"cystore:{store_id}:lease:{DUTY}")
        thieves.append(acquire(client, store_id, DUTY, 60))
        return dispatch(self, **limits)

    monkeypatch.setattr(MessageStore, "dispatch", paused)
    with caplog.at_level(logging.WARNING):
        done = reput(app)
    assert tasks.STEP_BYTES <= done < 2 * tasks.STEP_BYTES
    assert len(thieves) == 1
    assert thieves[0].renew(), "the lost lease was given back, and not by its holder"
    assert "was lost" in caplog.text
    monkeypatch.undo()
    assert behind(store) > tasks.STEP_BYTES


def test_a_tick_is_bounded(app, store, monkeypatch):
    fill(store, 3 * tasks.STEP_BYTES)
    monkeypatch.setattr(tasks, "TICK_S", 0.0)
    done = reput(app)
    assert tasks.STEP_BYTES <= done < 2 * tasks.STEP_BYTES
    assert behind(store) > 0


def test_beat_sends_ticks_that_never_pile_up():
    (entry,) = tasks.beat_schedule().values()
    assert entry["task"] == tasks.REPUT
    assert entry["options"]["expires"] < entry["schedule"]
    assert entry["schedule"] > tasks.TICK_S
    assert tasks.LEASE_S > tasks.TICK_S + tasks.LOCK_WAIT_S
    (slower,) = tasks.beat_schedule(10.0).values()
    assert slower["options"]["expires"] < slower["schedule"] == 10.0


# ------------------------------------------------------------------------------------------ ids and URLs


def test_a_store_keeps_its_id(store, tmp_path):
    store_id = store_id_of(store)
    assert store_id_of(store) == store_id
    store.close()
    with cystore.open(tmp_path / "store") as again, cystore.open(tmp_path / "other") as other:
        assert store_id_of(again) == store_id
        assert store_id_of(other) != store_id


def test_two_that_make_the_id_at_once_agree(store, monkeypatch):
    """Between the look and the rename another process made it."""
    move = coordination.files.move

    def raced(source, target):
        target.parent.mkdir(exist_ok=True)
        target.write_text("12345678-1234-5678-1234-567812345678")
        move(source, target)

    monkeypatch.setattr(coordination.files, "move", raced)
    assert store_id_of(store) == "12345678-1234-5678-1234-567812345678"
    assert not list((store.path / "tmp").iterdir())


def test_a_damaged_id_is_an_error(store):
    store_id_of(store)
    (store.path / "config" / coordination.STORE_ID).write_text("not an id")
    with pytest.raises(StoreFormatError, match="id is damaged"):
        store_id_of(store)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("redis://host:6379/1", "redis://host:6379/1"),
        ("redis+socket:///run/r.sock", "unix:///run/r.sock?db=0"),
        ("redis+socket:///run/r.sock?virtual_host=3", "unix:///run/r.sock?db=3"),
        ("redis+socket://:secret@/run/r.sock", "unix://:secret@/run/r.sock?db=0"),
        ("unix:///run/r.sock?db=2", "unix:///run/r.sock?db=2"),
    ],
)
def test_redis_urls(given, ours):
    assert redis_url_of(given) == ours


def test_a_broker_that_is_no_redis_says_which_setting_helps(url):
    app = Celery("duties", broker="memory://", backend=url, set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="cystore_redis_url"):
        reput(app)


def test_a_backend_of_another_kind_is_refused(redis):
    app = Celery("duties", broker=redis.broker_url, backend="cache+memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="cystore:///path"):
        reput(app)
