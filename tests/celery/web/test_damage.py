"""Goal: the page shows what can be read of a damaged store, and never says "none" where damage hides the answer.
Method: the real server; files are overwritten before it starts, and while it is asked."""

from __future__ import annotations

import contextlib

import pytest

import cystore
from cystore.web.answers import store_health
from cystore.web.app import create_app
from cystore.web.problems import TYPE
from tests.support.celery.logs import runs, write
from tests.support.celery.web import WebServer, status_of

RUNS = 20
GARBAGE = b"\xa5"
ADDRESSES = ("api/tasks", "api/tasks/t5", "api/workflows/t5", "api/stats", "api/failures", "api/workers")


@pytest.fixture
def path(tmp_path):
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(RUNS))
    return tmp_path / "store"


@contextlib.contextmanager
def served(path, is_open, damage):
    """A server whose store is damaged while it is open, or before it starts."""
    if not is_open:
        damage()
    with WebServer(path) as server:
        if is_open:
            assert server.get("api/tasks").status == 200
            damage()
        yield server


def overwrite(file, begin, end):
    with open(file, "r+b") as opened:
        opened.seek(begin)
        opened.write(GARBAGE * (end - begin))


def log_of(path):
    (segment,) = (path / "commitlog").glob("0*")
    return segment


def end_of(path):
    with cystore.open(path, read_only=True) as store:
        return store.wrote_position


def is_unavailable(answer):
    return (
        answer.status == 503
        and answer.headers["content-type"] == TYPE
        and answer.headers["retry-after"] == "1"
        and answer.json["status"] == 503
    )


@pytest.mark.parametrize("is_open", [True, False])
def test_a_damaged_manifest_hides_no_task(path, is_open):
    """The log says all that the page shows."""
    manifest = path / "manifest"
    with served(path, is_open, lambda: overwrite(manifest, 0, manifest.stat().st_size)) as server:
        assert len(server.ids()) == RUNS and server.get("healthz").status == 200
        assert server.json("api/tasks/t5")["state"] == "SUCCESS"


def test_a_log_that_cannot_be_read_is_not_an_empty_one(path):
    with WebServer(path) as server:
        assert len(server.ids()) == RUNS
        overwrite(log_of(path), 0, end_of(path))
        for address in ADDRESSES:
            answer = server.get(address)
            assert is_unavailable(answer), (address, answer.status, answer.body)
        assert f'cystore_store_away{{store="{path}"}} 1' in server.get("metrics").body.decode()


def test_no_page_begins_with_a_log_that_cannot_be_read(path):
    """An app in another server answers 503, until a writer has cut the log off and written anew."""
    overwrite(log_of(path), 0, end_of(path))
    with pytest.raises(AssertionError, match=f"no record of the log can be read.*{path}"):
        WebServer(path)
    app = create_app(path)
    assert all(status_of(app, f"/{address}") == 503 for address in (*ADDRESSES, "healthz"))
    (found,) = store_health.healths(app.state.stores)
    assert found["status"] == "damaged" and str(path) in found["error"]
    with cystore.open(path) as store:
        write(store, runs(1, first=100))
    assert {status_of(app, f"/{address}") for address in ("api/tasks", "api/tasks/t100", "healthz")} == {200}
    app.state.stores.close()


def test_a_writer_shows_what_it_wrote_over_a_lost_log(path):
    """Its handle recovered the store, and knows for ever what was lost then."""
    overwrite(log_of(path), 0, end_of(path))
    with cystore.open(path) as store:
        app = create_app(store)
        assert status_of(app, "/api/tasks") == 503
        write(store, runs(1, first=100))
        assert status_of(app, "/api/tasks") == 200
        (found,) = store_health.healths(app.state.stores)
        assert found["status"] == "ok" and found["lost"] is None


def test_a_lost_end_is_shown(path):
    """The page has what is before it."""
    end = end_of(path)
    overwrite(log_of(path), end - 2000, end)
    with WebServer(path) as server:
        assert 0 < len(server.ids()) <= RUNS
        (found,) = server.json("api/stores")["stores"]
        begin, lost_end = found["lost"]
        assert found["status"] == "damaged" and begin == found["wrote"] <= end - 2000 and lost_end == end
        with cystore.open(path) as store:  # it cuts the end off, and gives its place away
            write(store, runs(1, first=100))
        assert server.ids()[0] == "t100"
        (found,) = server.json("api/stores")["stores"]
        assert found["lost"] is None and found["quarantine"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_task_in_a_damaged_range(path, is_open):
    """Other tasks are shown. The index of an open store knows that the task was there; recovery makes another."""
    with cystore.open(path, read_only=True) as store:
        places = [message.physical_offset for message in store.scan()]
        of_t5 = [message.physical_offset for message in store.query("celery_events", "t5", 100)]
    begin, end = min(of_t5), next(place for place in places if place > max(of_t5))
    with served(path, is_open, lambda: overwrite(log_of(path), begin, end)) as server:
        lost, unknown = server.get("api/tasks/t5"), server.get("api/tasks/nobody")
        assert unknown.status == 404 and server.get("api/tasks/t19").status == 200
        if is_open:
            assert is_unavailable(lost) and is_unavailable(server.get("api/tasks"))
        else:
            assert lost.status == 404 and server.ids() == [f"t{n}" for n in range(19, -1, -1) if n != 5]
            (found,) = server.json("api/stores")["stores"]
            assert found["status"] == "damaged" and found["holes"] == [[begin, end]]
