"""Goal: a duty does its work under a lease, in Redis or in the store, and stops where the lease is lost. Method: a
real Redis and store, the tasks run in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import redis as redis_py
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import MessageStore, StoreFormatError
from cystore.celery import tasks
from cystore.celery.base.duty_leases import acquire, last_token, lease, redis_of
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import duty_runs
from cystore.celery.duties.duty_runs import ALL, REPUT, STEP_BYTES
from cystore.derived.dispatch.backlog import BacklogKeeper
from cystore.engine.files.progress import Progress
from cystore.ha import home
from cystore.services.duty_table import Outcome

DUTY = REPUT.name


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
def store(app, monkeypatch) -> MessageStore:
    """The store, whose own thread dispatches nothing: on a busy machine it would do so before the duty does."""
    monkeypatch.setattr(BacklogKeeper, "run_once", lambda keeper: Progress(0))
    return app.backend.store


def reput(app: Celery) -> int | None:
    return app.tasks[REPUT.task].apply(throw=True).get()


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
    client.delete(f"cystore:duties:{store_id}:lease:{DUTY}")  # expired
    new = acquire(client, store_id, DUTY, 60)
    assert new.token > old.token
    assert not old.renew()
    assert not old.release()
    assert new.renew()


def test_a_redis_that_lost_its_memory_mixes_no_holders_up(client, store):
    """It is told the store's highest token, and gives out a higher one."""
    store_id = store_id_of(store)
    for _ in range(5):
        old = acquire(client, store_id, DUTY, 60)
        assert old.release()
    with store.duties.step(DUTY, old.token, ttl_ms=1):
        client.flushdb()
    new = acquire(client, store_id, DUTY, 60, highest_token=store.duties.highest_token(DUTY))
    assert (old.token, new.token) == (5, 6)
    assert not old.renew()
    assert new.renew()


def test_a_store_that_is_behind_redis_locks_nobody_out(client, store):
    store_id = store_id_of(store)
    for _ in range(3):
        assert acquire(client, store_id, DUTY, 60, highest_token=1).release()
    assert acquire(client, store_id, DUTY, 60).token == 5


def test_progress_renews_and_is_seen(client, store):
    store_id = store_id_of(store)
    held = acquire(client, store_id, DUTY, 60, by="me")
    key = f"cystore:duties:{store_id}:lease:{DUTY}"
    client.pexpire(key, 1_000)
    assert held.progress(123)
    assert client.pttl(key) > 1_000
    assert client.hmget(key, "by", "done") == [b"me", b"123"]
    client.delete(key)
    assert not held.progress(124)
    assert not client.exists(key)


def test_every_key_expires(client, store):
    store_id = store_id_of(store)
    held = acquire(client, store_id, DUTY, 60)
    keys = list(client.scan_iter(f"cystore:*{store_id}:*"))
    assert len(keys) == 4, "lease and token, by their names and by those of releases before"
    assert all(client.pttl(key) > 0 for key in keys)
    assert client.pttl(f"cystore:duties:{store_id}:lease:{DUTY}") <= 60_000
    client.pexpire(f"cystore:duties:{store_id}:lease:{DUTY}", 1_000)
    assert held.renew()
    assert client.pttl(f"cystore:duties:{store_id}:lease:{DUTY}") > 1_000


# As the workers of 1.0 have them, which know neither `duties:` nor shadows. KEYS: lease, token.
OLD_ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local last = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
local token = string.format('%.0f', math.max(last, tonumber(ARGV[4])) + 1)
redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'holder', token .. ':' .. ARGV[1], 'by', ARGV[5], 'done', '0')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
"""
OLD_RENEW = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
OLD_RELEASE = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class OldWorker:
    """A worker of a release before, beside ours during a rolling upgrade."""

    def __init__(self, client: redis_py.Redis, store_id: str) -> None:
        self._client, self._name = client, "b" * 32
        self.lease, self._token = f"cystore:{store_id}:lease:{DUTY}", f"cystore:{store_id}:token:{DUTY}"
        self.token = 0

    def acquire(self, ttl_ms: int = 60_000) -> bool:
        words = (self._name, ttl_ms, 604_800_000, 0, "old@here")
        self.token = int(self._client.eval(OLD_ACQUIRE, 2, self.lease, self._token, *words))
        return self.token > 0

    def renew(self) -> bool:
        return bool(self._client.eval(OLD_RENEW, 1, self.lease, f"{self.token}:{self._name}", 60_000))

    def release(self) -> bool:
        return bool(self._client.eval(OLD_RELEASE, 1, self.lease, f"{self.token}:{self._name}"))


def test_an_old_worker_and_ours_never_both_have_a_duty(client, store):
    """Through a rolling upgrade, in both directions; each new holder has a higher token than every earlier one."""
    store_id = store_id_of(store)
    old, tokens = OldWorker(client, store_id), []
    for _ in range(3):
        assert old.acquire()
        tokens.append(old.token)
        assert acquire(client, store_id, DUTY, 60) is None
        assert old.renew(), "ours did no harm to its lease"
        assert old.release()
        ours = acquire(client, store_id, DUTY, 60)
        tokens.append(ours.token)
        assert not old.acquire()
        assert ours.renew() and ours.progress(7)
        assert not old.acquire()
        assert ours.release()
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("step", ["renew", "progress"])
def test_an_old_worker_waits_as_long_as_our_lease_is_renewed(client, store, step):
    store_id = store_id_of(store)
    old = OldWorker(client, store_id)
    ours = acquire(client, store_id, DUTY, 60)
    for key in (old.lease, f"cystore:duties:{store_id}:lease:{DUTY}"):
        client.pexpire(key, 2_000)
    assert ours.renew() if step == "renew" else ours.progress(1)
    assert client.pttl(old.lease) >= client.pttl(f"cystore:duties:{store_id}:lease:{DUTY}") - 1_000 > 50_000
    assert not old.acquire()


def test_who_lost_a_duty_to_an_old_worker_finds_out(client, store):
    """Paused until its lease had ended, ours neither renews it nor ends that of the old worker."""
    store_id = store_id_of(store)
    old, ours = OldWorker(client, store_id), acquire(client, store_id, DUTY, 60)
    client.delete(old.lease, f"cystore:duties:{store_id}:lease:{DUTY}")  # expired
    assert old.acquire()
    assert old.token > ours.token
    assert not (ours.renew() or ours.progress(1) or ours.release())
    assert old.renew()


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


@pytest.mark.parametrize("expired_only", [True, False])
def test_a_tick_that_lost_its_lease_stops_at_the_next_step(
    app, store, client, monkeypatch, caplog, expired_only
):
    """Paused for longer than the lease in its first step, it finds that out before the second: from Redis, and from
    the store when the one who has the lease now has done a step already."""
    fill(store, 4 * STEP_BYTES)
    store_id = store_id_of(store)
    dispatch, thieves = MessageStore.dispatch, []

    def paused(self, **limits):
        if not thieves:
            client.delete(f"cystore:duties:{store_id}:lease:{DUTY}")
            thieves.append(acquire(client, store_id, DUTY, 60))
        return dispatch(self, **limits)

    def other_steps_first(held, done):
        with store.duties.step(DUTY, thieves[0].token, ttl_ms=60_000):
            return True

    monkeypatch.setattr(MessageStore, "dispatch", paused)
    if not expired_only:
        monkeypatch.setattr(duty_runs._Remote, "progress", other_steps_first)
    with caplog.at_level(logging.WARNING):
        done = reput(app)
    assert STEP_BYTES <= done < 2 * STEP_BYTES
    assert len(thieves) == 1
    assert thieves[0].renew(), "the lost lease was given back, and not by its holder"
    assert "was lost" in caplog.text
    monkeypatch.undo()
    assert behind(store) > STEP_BYTES
    if not expired_only:
        assert store.duties.highest_token(DUTY) == thieves[0].token


def test_a_tick_is_bounded(app, store):
    fill(store, 3 * STEP_BYTES)
    short = REPUT._replace(bound_s=0.0)
    done = duty_runs.run(app, short)
    assert STEP_BYTES <= done < 2 * STEP_BYTES
    assert behind(store) > 0


def test_a_tick_waits_for_nobody_inside_of_a_step(app, store):
    fill(store, 100_000)
    taken, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with store.duties.step(DUTY, 0, ttl_ms=1):
            taken.set()
            assert leave.wait(30)

    thread = threading.Thread(target=inside)
    thread.start()
    assert taken.wait(30)
    assert reput(app) == 0
    assert store.duties.last(DUTY).outcome is Outcome.BUSY
    leave.set()
    thread.join()
    assert reput(app) > 0


@pytest.mark.parametrize("duty", ALL.values(), ids=lambda duty: duty.name)
def test_every_duty_runs_and_is_noted(app, store, client, duty):
    fill(store, 300_000)
    assert app.tasks[duty.task].apply(throw=True).get() is not None
    last = store.duties.last(duty.name)
    assert (last.outcome, last.runs) == (Outcome.DONE, 1)
    assert last.took_us > 0
    assert last_token(client, store_id_of(store), duty.name) == store.duties.highest_token(duty.name) == 1


def test_what_the_duties_do(app, store):
    fill(store, 300_000)
    run = {name: lambda duty=duty: duty_runs.run(app, duty) for name, duty in ALL.items()}
    stats = store.stats()
    assert stats["flushed"] < stats["wrote"] > stats["dispatched"]
    assert run["reput"]() == stats["wrote"]
    run["flush"]()
    assert store.stats()["flushed"] == stats["wrote"]
    assert run["checkpoint"]() > 0
    assert run["checkpoint"]() == 0
    assert (store.path / "config" / "queueOffset.json").exists()
    assert run["scrub"]() == stats["wrote"]
    assert run["scrub"]() == 0, "the next round begins in an hour"


def test_a_duty_that_fails_is_told_once_and_raises_nothing(app, store, caplog, monkeypatch):
    def refuse(*_, **__):
        raise cystore.StoreIOError("the disk cannot be read", path=store.path)

    fill(store, 100_000)
    monkeypatch.setattr("cystore.derived.dispatch.dispatcher.Dispatcher.run_once", refuse)
    for _ in range(3):
        assert reput(app) is None
    assert store.duties.last(DUTY).outcome is Outcome.FAILED
    assert caplog.text.count("reput failed: ") == 1


def test_a_duty_on_a_full_disk_is_told_in_one_line(app, store, caplog, monkeypatch):
    """Whatever numbers the error has."""
    turns = []

    def refuse(*_, **__):
        turns.append(len(turns))
        raise cystore.StoreFullError(f"{len(turns)} bytes are free", path=store.path)

    fill(store, 100_000)
    monkeypatch.setattr("cystore.derived.dispatch.dispatcher.Dispatcher.run_once", refuse)
    for _ in range(3):
        assert reput(app) is None
    told = [record for record in caplog.records if record.getMessage().startswith("reput failed: ")]
    assert [record.exc_info for record in told] == [None]


def test_a_damaged_record_does_not_fail_the_duty(app, store):
    """Dispatch steps over damage, lists it and continues."""
    fill(store, 100_000)
    store.dispatch()
    segment = store._attached().commit_log.segment_for(0)
    fill(store, 100_000)
    position = [m.physical_offset for m in store.scan()][1]
    segment.write(position, b"\xff" * 8)
    assert reput(app) > 0
    assert store.duties.last(DUTY).outcome is Outcome.DONE


def test_beat_sends_ticks_that_never_pile_up():
    (entry,) = tasks.beat_schedule().values()
    assert entry["task"] == tasks.FAN_OUT
    assert entry["options"]["expires"] < entry["schedule"]
    (slower,) = tasks.beat_schedule(10.0).values()
    assert slower["options"]["expires"] < slower["schedule"] == 10.0
    for duty in ALL.values():
        assert duty.expires_s < duty.period_s
        assert duty.lease_s > duty.bound_s + duty_runs.LOCK_WAIT_S
        assert app_task(duty).ignore_result and not app_task(duty).acks_late


def app_task(duty):
    return getattr(tasks, duty.name)


def test_one_line_adds_the_schedule(app):
    app.conf.beat_schedule = {"mine": {"task": "x", "schedule": 5}}
    cystore.celery.install(app)
    assert set(app.conf.beat_schedule) == {"mine", tasks.FAN_OUT}


# --------------------------------------------------------------------------------------------- without a Redis


@pytest.fixture
def alone(url) -> Celery:
    app = Celery("alone", broker="memory://", backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


@pytest.mark.parametrize("duty", ALL.values(), ids=lambda duty: duty.name)
def test_every_duty_runs_without_a_redis(alone, duty):
    store = alone.backend.store
    fill(store, 300_000)
    assert duty_runs.run(alone, duty) is not None
    assert store.duties.last(duty.name).outcome is Outcome.DONE
    assert store.duties.highest_token(duty.name) == 1


def test_a_lease_in_the_control_block_keeps_another_process_out(alone):
    store = alone.backend.store
    fill(store, 100_000)
    token = store.duties.acquire(DUTY, 60_000)
    assert duty_runs.run(alone, REPUT) is None
    store.duties.release(DUTY, token)
    assert duty_runs.run(alone, REPUT) > 0


def test_a_redis_that_is_not_there_costs_little_and_is_told_once(url, caplog):
    app = Celery("away", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_redis_url="redis://:secret@127.0.0.1:1/0")
    store = app.backend.store
    fill(store, 100_000)
    with caplog.at_level(logging.DEBUG):
        for duty in ALL.values():
            assert duty_runs.run(app, duty) is not None
    assert caplog.text.count("is away") == 1
    assert "secret" not in caplog.text
    assert behind(store) == 0


# ------------------------------------------------------------------------------------------------ ids


def test_a_store_keeps_its_id(store, tmp_path):
    store_id = store_id_of(store)
    assert store_id_of(store) == store_id
    store.close()
    with cystore.open(tmp_path / "store") as again, cystore.open(tmp_path / "other") as other:
        assert store_id_of(again) == store_id
        assert store_id_of(other) != store_id


def test_two_that_make_the_id_at_once_agree(store, monkeypatch):
    """Between the look and the rename another process made it."""
    move = home.files.move

    def raced(source, target):
        target.parent.mkdir(exist_ok=True)
        target.write_text("12345678-1234-5678-1234-567812345678")
        move(source, target)

    monkeypatch.setattr(home.files, "move", raced)
    assert store_id_of(store) == "12345678-1234-5678-1234-567812345678"
    assert not list((store.path / "tmp").iterdir())


def test_a_damaged_id_is_an_error(store):
    store_id_of(store)
    (store.path / "config" / "storeId").write_text("not an id")
    with pytest.raises(StoreFormatError, match="id is damaged"):
        store_id_of(store)


def test_a_broker_that_is_no_redis_says_which_setting_helps(url):
    app = Celery("duties", broker="memory://", backend=url, set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="cystore_redis_url"):
        redis_of(app)


def test_a_backend_of_another_kind_is_refused(redis):
    app = Celery("duties", broker=redis.broker_url, backend="cache+memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="cystore:///path"):
        reput(app)
