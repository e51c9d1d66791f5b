"""Goal: cleaning never takes a result that has not expired. Method: real stores, whose clock is moved on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from cystore.celery.chords.chord_steps import expires_ms
from cystore.celery.duties import duty_runs
from cystore.celery.stores import Location, close_shared
from cystore.config import FOREVER_H
from tests.support.clock import turn

HOUR_MS = 3_600_000
ANY_HOUR = "%3B".join(map(str, range(24)))


def app_on(url: str, result_expires: object) -> Celery:
    app = Celery("retention", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, result_expires=result_expires)
    return app


@pytest.mark.parametrize(
    ("options", "result_expires", "hours"),
    [
        ("", 3600, 1),
        ("", timedelta(days=1), 72),
        ("", timedelta(days=7), 168),
        ("?file_reserved_time_h=200", timedelta(days=7), 200),
        ("?file_reserved_time_h=0", 3601, 2),
        ("?file_reserved_time_h=0", 1, 1),
        ("", None, FOREVER_H),
        ("", 0, FOREVER_H),
        ("", -1, FOREVER_H),
        ("", "never", FOREVER_H),
        ("", timedelta(days=10**6), FOREVER_H),
        ("?file_reserved_time_h=-1", 3600, FOREVER_H),
        ("?file_reserved_time_h=never", timedelta(days=7), FOREVER_H),
    ],
)
def test_records_are_kept_for_the_longer_time(url, options, result_expires, hours):
    backend = app_on(url + options, result_expires).backend
    assert backend.store.config.file_reserved_time_h == hours


def test_never_in_the_url_is_never_in_the_options(url):
    name = "file_reserved_time_h"
    location = Location.parse(f"{url}?{name}=never", {name: -1})
    assert location == Location.parse(f"{url}?{name}=-1", {name: "never"})
    assert location.config().file_reserved_time_h == FOREVER_H


@pytest.mark.parametrize("name", ["result_expires", "result_failure_expires", "result_chord_expires"])
@pytest.mark.parametrize("value", [-2, -0.5, timedelta(days=-1), "soon", float("nan")])
def test_a_lifetime_that_makes_no_sense_is_refused(url, name, value):
    """Seen: a negative `result_expires` made a store that keeps nothing."""
    app = app_on(url, 3600)
    app.conf[name] = value
    with pytest.raises(ImproperlyConfigured, match=f"{name} must be seconds, or 0, -1, None or 'never'"):
        expires_ms(app) if name == "result_chord_expires" else app.backend


@pytest.mark.parametrize("never", [0, -1, "never"])
def test_failures_may_be_kept_for_ever_beside_results_that_are_not(url, never):
    app = app_on(url, 3600)
    app.conf.result_failure_expires = never
    assert app.backend.expiry.until_ms("FAILURE") is None
    assert app.backend.expiry.until_ms("SUCCESS") is not None


def test_a_url_wins_over_the_environment_and_that_over_the_plugins_own(url, monkeypatch):
    monkeypatch.setenv("CYSTORE_FILE_RESERVED_TIME_H", "200")
    monkeypatch.setenv("CYSTORE_ALLOCATE_AHEAD_BYTES", "8192")
    location = Location.parse(url + "?file_reserved_time_h=100")
    assert location.settings == {"file_reserved_time_h": 100, "allocate_ahead_bytes": 8192}
    assert Location.parse(url).keeping(3600).file_reserved_time_h == 200
    assert Location.parse(url).config().allocate_ahead_bytes == 8192
    monkeypatch.setenv("CYSTORE_ALLOCATE_AHEAD_BYTES", "1")
    with pytest.raises(
        ImproperlyConfigured, match="CYSTORE_ALLOCATE_AHEAD_BYTES: allocate_ahead_bytes must be 4096 to"
    ):
        Location.parse(url)


def test_two_apps_with_other_times_share_a_store(url):
    first, second = app_on(url, 3600).backend, app_on(url, None).backend
    assert first.store is second.store
    assert first.location == second.location == Location.parse(url)


@pytest.mark.parametrize("result_expires", [7_200, None])
def test_the_duty_removes_what_has_expired_and_nothing_else(url, monkeypatch, result_expires):
    small = "mapped_file_size_commit_log_bytes=65536&mapped_file_size_consume_queue_bytes=2000"
    small += "&services=none&roll_interval_h=24"
    app = app_on(f"{url}?{small}&file_reserved_time_h=0&delete_when={ANY_HOUR}", result_expires)
    store, later_ms = app.backend.store, 0
    turn(monkeypatch, lambda: later_ms)
    for number in range(600):
        app.backend.store_result(f"id-{number}", "x" * 100, "SUCCESS")
    store.dispatch()
    store.flush()
    later_ms = int(1.9 * HOUR_MS)
    assert duty_runs.run(app, duty_runs.CLEAN_EXPIRED) == 0
    state = app.AsyncResult("id-0").state
    assert state == "SUCCESS"
    later_ms = int(2.1 * HOUR_MS)
    removed = duty_runs.run(app, duty_runs.CLEAN_EXPIRED)
    assert (removed > 0) == (result_expires is not None)
    states = [app.backend.get_task_meta(f"id-{number}")["status"] for number in (0, 599)]
    assert states == ["SUCCESS" if result_expires is None else "PENDING", "SUCCESS"]
    close_shared()
