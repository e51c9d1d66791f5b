"""Goal: root reads results of another user's store, as it reads every file, and writes nothing into it. Method: a
store that is given to another user, whose process has it open or not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from celery import Celery, states

import cystore
from cystore.celery.stores import close_shared
from tests.support.users import ALICE, User, common_place, needs_root

pytestmark = needs_root


def app_on(path: Path) -> Celery:
    app = Celery("shop", broker="memory://", backend=f"cystore://{path}", set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


@pytest.mark.parametrize("in_use", [False, True])
def test_root_reads_results_of_another_users_store(in_use):
    """Seen: StorePermissionError for `celery result ID` and `AsyncResult(ID).get()`, for they open the store to
    write."""
    with common_place() as place, User(ALICE) as alice:
        path = place / "store"
        app_on(path).backend.store_result("t", 7, states.SUCCESS)
        close_shared()
        for found in (path, *path.rglob("*")):
            os.chown(found, ALICE, ALICE)
        if in_use:
            alice.do("store = cystore.open(root)", root=str(path))
        before = {found: found.stat().st_uid for found in path.rglob("*")}
        app = app_on(path)
        assert app.AsyncResult("t").get(timeout=60) == 7
        assert app.AsyncResult("u").state == states.PENDING
        for _ in range(2):
            with pytest.raises(cystore.StorePermissionError, match=f"it belongs to user {ALICE}"):
                app.backend.store_result("u", 1, states.SUCCESS)
        close_shared()
        assert {found: found.stat().st_uid for found in path.rglob("*")} == before
