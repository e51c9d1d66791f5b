"""Goal: a fleet without Redis does all duties, one holder at a time, and another process takes a killed holder's duty
over at once. Method: real workers and beat on a store that is their broker; holders that die at each duty's place."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from cystore.celery.duties.duty_runs import ALL, run
from cystore.celery.stores import close_shared
from cystore.services.duty_table import Outcome
from tests.celery.chords.test_chord_steps import Steps, left_complete
from tests.celery.conftest import PATIENCE_S, Fleet, wait_until
from tests.celery.duties.test_duty_fleet import (
    HOLDER,
    HOURS,
    LATER_MS,
    LEASE_S,
    PLACES,
    SMALL,
    WITH_DUTIES,
    fill,
    is_dispatched,
    runs,
)
from tests.support.celery import work
from tests.support.checks import check_chain
from tests.support.clock import turn
from tests.support.process import Process


@pytest.fixture
def fleet(tmp_path):
    url = f"cystore://{tmp_path}/store"
    fleet = Fleet(tmp_path, url, settings={"cystore_host_reput": True})
    try:
        yield fleet
    finally:
        fleet.stop()


def test_all_duties_are_done_and_a_killed_holder_is_replaced_at_once(fleet, run):
    """The host of dispatch keeps its lease as long as it lives, so it has it when it is killed."""
    workers = [fleet.start("--concurrency=1", **WITH_DUTIES) for _ in range(2)]
    fleet.start_beat()
    store = fleet.backend.store
    wait_until(lambda: all(runs(store, duty) for duty in ALL), "every duty has run")
    for _ in range(2):
        wait_until(lambda: store.duties.lease("reput"), "dispatch is hosted")
        shown = {one["duty"]: one for one in map(json.loads, run("duties", "--json").stdout.splitlines())}
        (holder,) = [one for one in workers if one.process.pid == shown["reput"]["lease"]["pid"]]
        assert f"process {holder.process.pid} (" in shown["reput"]["holder"]
        assert f"process {holder.process.pid} (" in run("status").stdout
        assert f"process {holder.process.pid} has the lease of reput" in run("doctor", code=None).stdout
        token = store.duties.highest_token("reput")
        holder.kill()
        wait_until(lambda token=token: store.duties.highest_token("reput") > token, "it is taken over")
        workers.remove(holder)
        workers.append(fleet.start("--concurrency=1", **WITH_DUTIES))
    fill(store)
    wait_until(lambda: is_dispatched(store), "what was appended is dispatched")
    assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
    shown = run("duties").stdout
    assert "in the store: no Redis is configured" in shown
    assert "leases of duties are in the store" in run("status").stdout
    assert "leases of duties are in the store" in run("doctor", code=None).stdout


@pytest.fixture
def dead_holder(tmp_path, build_environment, monkeypatch) -> Callable[..., tuple]:
    """`dead_holder(duty, fill)`: a process died in the middle of the duty; its lease would last an hour."""
    url = f"cystore://{tmp_path}/store?{SMALL}{HOURS.replace(';', '%3B')}"
    app = work.make_app("memory://", url)
    app.conf.result_expires = 1
    turn(monkeypatch, LATER_MS)
    names = {"broker": "memory://", "backend": url, "lease_s": LEASE_S, "later_ms": LATER_MS}

    def kill(name: str, fill: Callable[..., object]):
        with Process(build_environment("failpoints")) as holder:
            holder.do(HOLDER, name=name, **names)
            fill(app)
            holder.send(
                "os.environ['CYSTORE_FAILPOINT'] = place\nwhile True: duty_runs.run(app, duty)",
                place=PLACES[name],
            )
            assert holder.wait() == -signal.SIGKILL
        return app

    yield kill
    close_shared()


def _fill(app, name: str) -> None:
    store = app.backend.store
    if name == "chord_sweep":
        left_complete(Steps(app.backend))
        return
    for number in range(3000):
        store.put(
            "T", b"x" * 500, keys=(f"k{number}",), **({"delay_level": 1} if name == "deliver_delayed" else {})
        )
    if name in ("clean_expired", "scrub", "checkpoint"):
        store.dispatch()
    if name == "clean_expired":
        store.flush()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(ALL))
def test_a_duty_whose_holder_was_killed_inside_is_free_at_once(dead_holder, name):
    app = dead_holder(name, lambda app: _fill(app, name))
    store, token = app.backend.store, app.backend.store.duties.highest_token(name)
    assert run(app, ALL[name]) is not None, "the lease ended with its holder"
    assert store.duties.last(name).outcome is Outcome.DONE
    assert store.duties.highest_token(name) == token + 1
    store.dispatch()
    check_chain(store)
    assert not store.scrub(1 << 30).damage


def test_a_lease_of_a_process_that_lives_is_nobody_elses(tmp_path):
    app = work.make_app("memory://", f"cystore://{tmp_path}/store")
    with Process() as holder:
        holder.do("import cystore\nstore = cystore.open(path)", path=str(tmp_path / "store"))
        store = app.backend.store
        assert holder.do("store.duties.acquire('scrub', 3_600_000)") == 1
        holder.stop()
        assert run(app, ALL["scrub"]) is None
        holder.kill()
        assert run(app, ALL["scrub"]) is not None
        assert store.duties.last("scrub").outcome is Outcome.DONE
    close_shared()
