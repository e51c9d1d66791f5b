"""Goal: a fleet comes from Redis, or from SQL, to a store as docs/production.md says, and goes back. Method: the page's
own function; real workers with the old backend, then with the new one, on one broker."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery, chord, states

from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in
from tests.celery.production.test_page import PAGE
from tests.structure.test_docs import blocks
from tests.support.celery import work


def old_backends(fleet: Fleet, folder: Path) -> dict[str, str]:
    """URLs of the backends that a fleet may come from; Redis with a database of its own."""
    return {
        "redis": fleet.environment[work.BROKER] + "?virtual_host=1",
        "sql": f"db+sqlite:///{folder}/results.sqlite",
    }


def result_of_the_page(app: Celery, old: Celery):
    """The function that the page tells to use until old results have expired."""
    (block,) = (b for b in blocks(PAGE.read_text()) if "def result_of" in b.source)
    source = block.source[block.source.index("def result_of") :].partition("\nassert")[0]
    names = SimpleNamespace(app=app, old=old)
    exec(source, vars(names))
    return names.result_of


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["redis", "sql"])
def test_there_and_back(tmp_path, kind):
    with fleet_in(tmp_path) as fleet:
        before = old_backends(fleet, tmp_path)[kind]
        old = work.make_app(fleet.environment[work.BROKER], before)
        first = fleet.start("--concurrency=1", **{work.BACKEND: before})
        kept = old.tasks[work.add.name].delay(1, 2)
        assert kept.get(timeout=PATIENCE_S) == 3
        failed = old.tasks[work.fail.name].delay("long ago")
        with pytest.raises(Exception, match="long ago"):
            failed.get(timeout=PATIENCE_S)
        if kind == "redis":
            body = chord([old.tasks[work.add.name].s(n, n) for n in range(3)])(old.tasks[work.total.name].s())
            assert body.get(timeout=PATIENCE_S) == 6, "step 2: running chords end in the old backend"
        assert first.stop() == 0
        between = old.tasks[work.add.name].delay(2, 3).id  # sent before, runs after

        fleet.app.set_current()
        second = fleet.start("--concurrency=1")
        assert fleet.app.AsyncResult(between).get(timeout=PATIENCE_S) == 5
        body = chord([fleet.task(work.add).s(n, n) for n in range(3)])(fleet.task(work.total).s())
        assert body.get(timeout=PATIENCE_S) == 6
        result_of = None
        if hasattr(fleet.app.AsyncResult("any"), "exists"):
            result_of = result_of_the_page(fleet.app, old)
            assert result_of(between).get(timeout=PATIENCE_S) == 5
            assert (result_of(kept.id).state, result_of(kept.id).result) == (states.SUCCESS, 3)
            assert result_of(failed.id).state == states.FAILURE
            assert result_of("never sent").state == states.PENDING
        new = fleet.task(work.add).delay(4, 4)
        assert new.get(timeout=PATIENCE_S) == 8
        assert second.stop() == 0

        # The way back: the same steps with the roles exchanged.
        close_shared()
        fleet.start("--concurrency=1", **{work.BACKEND: before})
        old.set_current()
        assert old.tasks[work.add.name].delay(5, 5).get(timeout=PATIENCE_S) == 10
        assert fleet.app.AsyncResult(new.id).get(timeout=PATIENCE_S) == 8, "the store is still readable"
        fleet.app.set_current()
        del result_of, kept, failed, body
        gc.collect()  # results of the old backend, while its Redis is there
