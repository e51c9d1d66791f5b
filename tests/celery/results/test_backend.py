"""Goal: what the backend writes is what it and others read. Method: the backend of a real app on a real store, no
worker."""

from __future__ import annotations

import json
import pickle
from datetime import datetime

import celery
import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import Backend
from celery.exceptions import ImproperlyConfigured
from celery.result import AsyncResult, GroupResult
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.exceptions import ContentDisallowed

import cystore
from cystore.celery.base import records
from cystore.celery.stores import DEFAULTS, SERVER, Location, close_shared, open_shared
from tests.support.isolated import fresh

MODEST = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_task_nobody_heard_of_is_pending(backend):
    assert backend.get_task_meta("unknown") == {"status": states.PENDING, "result": None}
    assert not backend.task_result_exists("unknown")


def test_every_transition_is_one_record(backend):
    backend.store_result("id", {"pid": 1}, states.STARTED)
    backend.store_result("id", ValueError("later"), states.RETRY, traceback="Traceback 1")
    backend.store_result("id", 42, states.SUCCESS)
    found = records.records_of(backend.store, records.RESULTS, "id")
    assert [message.tags for message in found] == [states.SUCCESS, states.RETRY, states.STARTED]
    assert found[0].keys == ("id",)
    assert found[0].properties["content_type"] == "application/json"
    assert json.loads(bytes(found[0].body))["result"] == 42
    assert len(list(backend.store.scan())) == 3


def test_a_late_failure_of_a_duplicate_changes_nothing(backend):
    backend.store_result("id", "first", states.SUCCESS)
    backend.store_result("id", None, states.STARTED)
    backend.store_result("id", RuntimeError("lost"), states.FAILURE)
    backend.store_result("id", "second", states.SUCCESS)
    assert backend.get_result("id") == "first"
    assert AsyncResult("id", backend=backend).get(timeout=0) == "first"


def test_a_forgotten_task_may_come_again(backend):
    backend.store_result("id", "old", states.SUCCESS)
    assert backend.get_result("id") == "old"
    backend.forget("id")
    assert backend.get_state("id") == states.PENDING
    backend.store_result("id", None, states.STARTED)
    assert backend.get_state("id") == states.STARTED


def test_a_failure_comes_back_as_an_exception(backend):
    backend.store_result("id", ZeroDivisionError("by zero"), states.FAILURE, traceback="Traceback 2")
    meta = backend.get_task_meta("id")
    assert isinstance(meta["result"], ZeroDivisionError)
    assert meta["traceback"] == "Traceback 2"
    with pytest.raises(ZeroDivisionError, match="by zero"):
        AsyncResult("id", backend=backend).get(timeout=0)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_serializers_and_compression(make_backend, serializer, compression):
    backend = make_backend(
        result_serializer=serializer, result_compression=compression, accept_content=["json", "pickle"]
    )
    value = {"text": "ä" * 100, "numbers": [1, 2.5, None]} | (
        {"raw": b"\x00\xff"} if serializer == "pickle" else {}
    )
    backend.store_result("id", value, states.SUCCESS)
    assert backend.get_task_meta("id", cache=False)["result"] == value


def test_a_reader_with_another_serializer_reads_it_too(make_backend):
    make_backend(result_serializer="pickle", accept_content=["json", "pickle"]).store_result(
        "id", {1}, states.SUCCESS
    )
    assert make_backend(accept_content=["json", "pickle"]).get_result("id") == {1}


def test_pickle_is_read_only_where_the_app_accepts_it(make_backend):
    make_backend(result_serializer="pickle", accept_content=["pickle"]).store_result("id", 1, states.SUCCESS)
    with pytest.raises(ContentDisallowed):
        make_backend(accept_content=["json"]).get_result("id")


@MODEST
@given(st.text(min_size=1), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_id_and_any_value(backend, task_id, value):
    backend.forget(task_id)
    backend.store_result(task_id, value, states.SUCCESS)
    assert backend.get_task_meta(task_id, cache=False)["result"] == value
    assert backend.get_task_meta(task_id, cache=False)["task_id"] == task_id


def test_groups(backend):
    group = GroupResult("g", [AsyncResult(f"t{n}", backend=backend, app=backend.app) for n in range(3)])
    group._app = backend.app
    assert backend.restore_group("g") is None
    backend.save_group("g", group)
    assert backend.restore_group("g", cache=False) == group
    backend.delete_group("g")
    assert backend.restore_group("g") is None


def test_many_at_once(backend):
    for number in range(10):
        backend.store_result(f"t{number}", number, states.SUCCESS)
    backend.store_result("failed", ValueError("x"), states.FAILURE)
    wanted = [f"t{number}" for number in range(10)]
    got = dict(backend.get_many([*wanted, "failed", "unknown"], max_iterations=1))
    assert got.keys() == {*wanted, "failed"}
    assert [got[task_id]["result"] for task_id in wanted] == list(range(10))


def test_a_backend_travels_by_its_url(make_backend, backend):
    backend.app.set_current()
    backend.store_result("id", 7, states.SUCCESS)
    again = pickle.loads(pickle.dumps(AsyncResult("id", backend=backend)))
    assert again.backend.url == backend.url
    assert again.get(timeout=0) == 7


# -------------------------------------------------------------------------------------------- URLs and stores


def test_the_url_names_path_and_settings():
    location = Location.parse(
        "cystore:///var/lib/my%20app/store?flush=sync&max_queues=100&services=flush&group=app"
    )
    assert location.path == "/var/lib/my app/store"
    assert location.settings == {
        "flush_disk_type": "sync",
        "max_queues": 100,
        "services": ("flush",),
        "group": "app",
    }


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("cystore://relative/path", "three slashes"),
        ("cystore://?flush=sync", "three slashes"),
        ("cystore:///", "three slashes"),
        ("cystore://host1,host2:no/store", "must be HOST:PORT"),
        ("cystore://host1,host2", "three slashes"),
        ("cystore://[::1/store", "is not a URL"),
        ("cystore:///store?flush=maybe", "flush_disk_type must be one of"),
        ("cystore:///store?max_queue=1", "did you mean max_queues"),
        ("cystore:///store?max_queues=none", "whole number"),
        ("cystore:///store?max_queues", "bad query field"),
        ("redis:///store", "must look like"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url, named):
    with pytest.raises(ImproperlyConfigured, match=named):
        Location.parse(url)


def test_a_password_before_a_host_is_not_told(tmp_path):
    """Seen: the URL of a Redis with the scheme of a store."""
    with pytest.raises(ImproperlyConfigured, match="cystore\\+remote://") as refused:
        Location.parse(f"cystore://me:secret@host:1{tmp_path}")
    told: BaseException | None = refused.value
    while told is not None:
        assert "secret" not in str(told)
        told = told.__cause__


def test_two_places_of_a_store_with_other_hosts_are_told_apart(tmp_path):
    refused = pytest.raises(cystore.StoreConfigError, match="and the hosts host1:1,host2:2")
    with open_shared(Location.parse(f"cystore://{tmp_path}/store?services=none")), refused:
        open_shared(Location.parse(f"cystore://host1:1,host2:2{tmp_path}/store?services=none"))


def test_hosts_in_the_url_make_a_replica_that_knows_its_masters(tmp_path):
    location = Location.parse(f"cystore://host1,host2:7{tmp_path}/my%20store?services=none")
    assert location.path == f"{tmp_path}/my store"
    with (
        open_shared(location) as store,
        pytest.raises(cystore.StoreIsSlaveError, match="host1:10912,host2:7"),
    ):
        store.put("T", b"x")


def test_nothing_is_opened_before_it_is_used(backend, tmp_path):
    assert not (tmp_path / "store").exists()
    backend.store_result("id", 1, states.SUCCESS)
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_one_store_for_each_path(backend, make_backend, tmp_path):
    assert make_backend().store is backend.store is open_shared(Location(str(tmp_path / "store")))
    with pytest.raises(cystore.StoreConfigError, match="open with the options"):
        open_shared(Location(str(tmp_path / "store"), {"flush_disk_type": "sync"}))


def test_a_pool_of_buffers_is_refused(tmp_path):
    """The steps of a chord, for example, have to be readable as soon as they are acknowledged."""
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 1}
    path = tmp_path / "store"
    with pytest.raises(cystore.StoreConfigError, match="transient_store_pool_enable"):
        open_shared(Location(str(path), pool))
    assert not path.exists()
    cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20, **pool).close()
    with pytest.raises(cystore.StoreConfigError, match="transient_store_pool_enable"):
        open_shared(Location(str(path)))


def test_a_closed_store_is_opened_again(backend):
    backend.store_result("id", 1, states.SUCCESS)
    close_shared()
    assert backend.get_task_meta("id", cache=False)["result"] == 1


def test_flush_by_option_makes_every_result_durable(url):
    store = open_shared(Location.parse(f"{url}?flush=sync"))
    result = store.put(records.RESULTS, b"{}", keys=("id",))
    assert store.stats()["flushed"] >= result.physical_offset + result.size_bytes


def test_an_empty_store_is_small(backend):
    backend.store_result("id", 1, states.SUCCESS)
    backend.get_task_meta("id", cache=False)
    blocks = sum(path.stat().st_blocks for path in backend.store.path.rglob("*"))
    assert blocks * 512 <= 16_000_000


def test_a_path_that_is_no_store(make_backend, tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(cystore.StoreFormatError, match="not a directory"):
        make_backend().store_result("id", 1, states.SUCCESS)


def parent_and_child(url: str) -> list:
    """A child forked while its parent has the store open stores a result; the parent, which waits for it, is woken."""
    import os

    from celery import Celery

    app = Celery("test", broker="memory://", backend=url)
    app.backend.store_result("before", 1, "SUCCESS")
    waiting = app.AsyncResult("from the child")
    app.backend.add_pending_result(waiting)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert not app.backend._pending_results.concrete
            assert app.AsyncResult("before").get(timeout=0) == 1
            app.backend.store_result("from the child", os.getpid(), "SUCCESS")
            code = 0
        finally:
            os._exit(code)
    got = waiting.get(timeout=60)
    _, status = os.waitpid(pid, 0)
    return [os.waitstatus_to_exitcode(status), got == pid]


def test_a_forked_child_needs_to_know_nothing(url):
    assert fresh.run(parent_and_child, url) == [0, True]


# ------------------------------------------------------------------------------------- options, expiry, trouble


def test_options_may_stand_in_the_transport_options_too(make_backend):
    backend = make_backend(
        result_backend_transport_options={"flush": "sync", "max_queues": 100, "roll_interval_h": "12"}
    )
    assert backend.store.config.flush_disk_type == "sync"
    assert (backend.store.config.max_queues, backend.store.config.roll_interval_h) == (100, 12)


def test_the_options_for_servers(make_backend):
    backend = make_backend(result_backend_transport_options={**SERVER, "min_free_bytes": 0, "create": True})
    backend.store_result("id", 1, states.SUCCESS)
    assert backend.get_task_meta("id", cache=False)["result"] == 1
    assert next(path.stat().st_size for path in (backend.store.path / "commitlog").iterdir()) == 1 << 30


def test_an_option_that_stands_in_both_places_must_be_the_same():
    assert Location.parse("cystore:///s?flush=sync", {"flush_disk_type": "sync"}).settings == {
        "flush_disk_type": "sync"
    }
    with pytest.raises(
        ImproperlyConfigured, match=r"transport_options: flush_disk_type is 'async' here and 'sync'"
    ):
        Location.parse("cystore:///s?flush=sync", {"flush": "async"})
    with pytest.raises(ImproperlyConfigured, match="flush_disk_type has two values"):
        Location.parse("cystore:///s?flush=sync&flush_disk_type=async")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_queue": 1}, "did you mean max_queues"),
        ({"max_queues": 1.5}, "max_queues must be a whole number"),
        ({"max_queues": "many"}, "max_queues must be a whole number"),
        ({1: 2}, "there is no setting 1"),
    ],
)
def test_a_wrong_transport_option_says_what_is_wrong(options, named):
    with pytest.raises(ImproperlyConfigured, match=f"result_backend_transport_options: .*{named}"):
        Location.parse("cystore:///store", options)


def stored(backend, task_id: str, state: str, result: object = 1):
    """When a record was stored, ms."""
    backend.store_result(task_id, result, state)
    return records.records_of(backend.store, records.RESULTS, task_id)[0].store_timestamp_ms


def test_expired_results_and_groups_are_gone_for_readers(make_backend, monkeypatch):
    backend = make_backend(result_expires=60, result_failure_expires=600)
    begin_ms = stored(backend, "done", states.SUCCESS)
    stored(backend, "failed", states.FAILURE, ValueError("x"))
    group = GroupResult("g", [AsyncResult("done", backend=backend, app=backend.app)])
    group._app = backend.app
    backend.save_group("g", group)
    backend._cache.clear()

    now_ms = [begin_ms + 59_000]
    monkeypatch.setattr("cystore.celery.results.expiry.now_ms", lambda: now_ms[0])
    assert backend.get_task_meta("done", cache=False)["result"] == 1
    assert backend.restore_group("g", cache=False) == group
    now_ms[0] = begin_ms + 70_000
    assert backend.get_task_meta("done", cache=False) == {"status": states.PENDING, "result": None}
    assert not backend.task_result_exists("done")
    assert backend.restore_group("g", cache=False) is None
    assert list(backend.get_many(["done"], max_iterations=1)) == []
    assert backend.get_task_meta("failed", cache=False)["status"] == states.FAILURE
    now_ms[0] = begin_ms + 700_000
    assert not backend.task_result_exists("failed")
    assert (
        len(records.records_of(backend.store, records.RESULTS, "done")) == 1
    )  # history continues showing it


@pytest.mark.parametrize("never", [None, 0])
def test_results_that_never_expire(make_backend, monkeypatch, never):
    backend = make_backend(result_expires=never)
    begin_ms = stored(backend, "done", states.SUCCESS)
    monkeypatch.setattr("cystore.celery.results.expiry.now_ms", lambda: begin_ms + 10**12)
    assert backend.get_task_meta("done", cache=False)["result"] == 1


def test_pending_is_told_apart_from_never_heard_of(backend):
    backend.store_result("heard of", None, states.PENDING)
    assert backend.get_state("heard of") == backend.get_state("never") == states.PENDING
    assert AsyncResult("heard of", app=backend.app).exists()
    assert not AsyncResult("never", app=backend.app).exists()


def test_a_store_that_refuses_writes_is_tried_again_where_the_app_wants_it(make_backend):
    patient = make_backend(result_backend_always_retry=True)
    patient.store.set_writable(False)
    with pytest.raises(cystore.StoreNotWritableError):
        make_backend().store_result("id", 1, states.SUCCESS)
    tries = []

    def on_error(error: Exception) -> None:
        tries.append(error)
        if len(tries) == 3:
            patient.store.set_writable(True)

    patient.on_backend_retryable_error = on_error
    patient.store_result("id", 1, states.SUCCESS)
    assert [type(error) for error in tries] == [cystore.StoreNotWritableError] * 3
    assert len(records.records_of(patient.store, records.RESULTS, "id")) == 1


@pytest.mark.parametrize(
    ("error", "safe"),
    [
        (cystore.StoreFullError("full"), True),
        (cystore.PageCacheBusyError("busy"), True),
        (cystore.StoreNotWritableError("switched off"), True),
        (cystore.MessageIllegalError("topic"), False),
        (cystore.FlushFailedError("the disk failed"), False),
        (cystore.StoreFormatError("other version"), False),
        (ValueError("x"), False),
    ],
)
def test_which_errors_are_safe_to_retry(backend, error, safe):
    assert backend.exception_safe_to_retry(error) is safe


def test_a_reader_that_stores_is_refused_at_once(url, make_backend):
    make_backend().store_result("id", 1, states.SUCCESS)
    close_shared()
    app = Celery("reader", broker="memory://", backend=f"{url}?read_only=true", set_as_current=False)
    app.conf.update(result_backend_always_retry=True)
    assert app.backend.get_result("id") == 1
    with pytest.raises(cystore.StoreNotWritableError, match="reading only"):
        app.backend.store_result("id", 2, states.SUCCESS)


@pytest.mark.parametrize("path", ["/proc/nobody", "/sys/kernel/store", "/dev/null/store", "/" + "x" * 300])
def test_a_place_that_cannot_hold_a_store_is_named(path):
    app = Celery("test", broker="memory://", backend=f"cystore://{path}", set_as_current=False)
    with pytest.raises(cystore.StoreError, match=path[:20]):
        app.backend.store_result("id", 1, states.SUCCESS)


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
@pytest.mark.parametrize("state", [states.FAILURE, states.RETRY, states.REVOKED])
def test_a_failure_always_fits(url, serializer, state):
    """Whatever its text, its size and the serializer: the state is stored."""
    app = Celery(
        "test", broker="memory://", backend=f"{url}?max_message_size_bytes=4096", set_as_current=False
    )
    app.conf.update(result_serializer=serializer, accept_content=[serializer])
    for error in (ValueError("x" * 10_000), ValueError("\udc80"), ValueError(object())):
        app.backend.store_result("id", error, state, traceback="\udc80" + "y" * 10_000 + "the end")
        meta = app.backend.get_task_meta("id", cache=False)
        assert meta["status"] == state
        assert meta["traceback"].endswith("the end")
        assert isinstance(meta["result"], Exception)


@pytest.mark.parametrize("serializer", ["yaml", "msgpack"])
def test_more_serializers(make_backend, serializer):
    backend = make_backend(result_serializer=serializer, accept_content=[serializer])
    value = {"text": "ä", "numbers": [1, 2.5, None]} | (
        {"raw": b"\x00\xff"} if serializer == "msgpack" else {}
    )
    backend.store_result("id", value, states.SUCCESS)
    assert backend.get_task_meta("id", cache=False)["result"] == value


def test_a_store_takes_disk_as_it_is_used(backend):
    """Allocated blocks, not lengths: an empty one below 16 MB, and then about what is in it."""

    def allocated_bytes() -> int:
        return sum(path.stat().st_blocks * 512 for path in backend.store.path.rglob("*"))

    backend.store_result("id", 1, states.SUCCESS)
    backend.get_task_meta("id", cache=False)
    empty = allocated_bytes()
    assert empty <= 16_000_000
    for number in range(40):
        backend.store_result(f"large {number}", "x" * 1_000_000, states.SUCCESS)
    grown = allocated_bytes()
    ahead = 2 * DEFAULTS["allocate_ahead_bytes"]
    assert empty + 40_000_000 - ahead <= grown <= empty + 40_000_000 + ahead


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("state", [states.SUCCESS, states.STARTED, states.FAILURE])
def test_the_meta_of_a_result_is_celerys(make_backend, state, zone, extended):
    """The backend builds it without Celery's look at the settings for each result."""
    backend = make_backend(timezone=zone, result_extended=extended)
    child = backend.app.AsyncResult("child")
    for request in (
        None,
        Context(id="t", task="shop.sum", args=(1,), kwargs={}, group="g", parent_id="p", children=[child]),
        Context(id="t"),
    ):
        before = backend.app.now()
        ours = backend._get_result_meta("result", state, "text", request)
        theirs = Backend._get_result_meta(backend, "result", state, "text", request)
        at, theirs_at = ours.pop("date_done"), theirs.pop("date_done")
        assert list(ours.items()) == list(theirs.items())
        assert (at is None) == (theirs_at is None) == (state == states.STARTED)
        if at is not None:
            done = datetime.fromisoformat(at)
            assert before <= done <= backend.app.now()
            if celery.VERSION >= (5, 5):  # 5.4 writes UTC in each zone of the app
                assert done.utcoffset() == datetime.fromisoformat(theirs_at).utcoffset()
