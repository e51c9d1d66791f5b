"""Goal: what the plugin adds to Celery's own work for a result stays as small as it is. Method: counts the calls, of
Python and of C functions, beside those of Celery's own base class over a dict in the same process. Counts, unlike
times, are the same on a busy machine."""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from celery import Celery, states, uuid

from benchmarks.celery.calls import OPERATIONS, RUNS, TASK, OverADict, calls_of, handlers_of
from cystore.celery.base import events, records
from cystore.celery.lifecycle import recorder
from cystore.celery.stores import close_shared
from tools.redis_server import redis_server

# The most calls more than Celery's base class over a dict makes for the same. Lower them when the plugin gets lighter.
MORE = {"store_result": -40, "get_task_meta": 0, "unknown id": 8}
MORE_WITH_REDIS = 4
# The most calls of a handler of the lifecycle log. Lower them when it gets lighter.
HANDLERS = {"sent": 64, "received": 66, "started": 40, "succeeded": 38, "ended": 15}


def test_calls_beside_the_base_class(backend):
    """Seen: an unknown id was looked for twice more in the store, and cost more than ten times the base class's
    time."""
    base, ids = OverADict(backend.app), [uuid() for _ in range(RUNS)]
    for name, operation in OPERATIONS.items():  # in this order: a result that is stored is known
        ours, least = (calls_of(partial(operation, one), ids) for one in (backend, base))
        assert ours - least <= MORE[name], f"{name}: {ours} calls, Celery's base class {least}"
    assert backend.get_task_meta(ids[0])["status"] == states.SUCCESS


def test_an_unknown_id_with_a_redis_and_no_other_home(tmp_path):
    with redis_server(own=True) as redis:
        url = f"cystore://{tmp_path}/store"
        app = Celery("test", broker=redis.broker_url, backend=url, set_as_current=False)
        look, ids = OPERATIONS["unknown id"], [uuid() for _ in range(RUNS)]
        ours, least = (calls_of(partial(look, one), ids) for one in (app.backend, OverADict(app)))
        assert app.backend.get_task_meta(uuid())["status"] == states.PENDING
        close_shared()
    assert ours - least <= MORE["unknown id"] + MORE_WITH_REDIS, f"{ours} calls, Celery's base class {least}"


def test_calls_of_the_lifecycle_logs_handlers(monkeypatch, make_backend):
    """Seen: STARTED took 65 calls."""
    # SENT goes to a process's only log: those of apps of other tests are left out.
    monkeypatch.setattr(recorder, "_logs", WeakKeyDictionary())
    backend = make_backend()
    found = {name: calls_of(handler, range(RUNS)) for name, handler in handlers_of(backend.app).items()}
    log = recorder.log_of(backend.app)
    assert log is not None
    assert log.lost == 0
    written = backend.store.next_queue_offset(events.EVENTS, records.queue_of(TASK))
    assert written == 4 * RUNS, "`ended` writes nothing for a success"
    assert {name: count for name, count in found.items() if count > HANDLERS[name]} == {}, found
