"""Goal: `cystore dispatchers` says what the library does. Method: the command beside the library."""

from __future__ import annotations

import cystore
from tests.support.cli import stores


def test_each_dispatcher_with_its_lag(command, store_path):
    stores.write(store_path, 20)
    with cystore.open(store_path) as store:
        with store.dispatchers.add("search", lambda messages: None, hold=True) as search:
            assert search.wait(60)
            (row,) = command.json_lines("dispatchers", store_path)
            assert row["runs"] and row["holds"] and not row["lag_bytes"]
        store.put("alpha", b"more")
        (state,) = store.dispatchers.states()
        assert command.json_lines("dispatchers", store_path) == [state._asdict()]
    assert state.lag_bytes > 0
    assert "search" in command.run("dispatchers", store_path).stdout


def test_a_store_without_dispatchers(command, store_path):
    stores.write(store_path, 20)
    done = command.run("dispatchers", store_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cystore: there is no dispatcher\n"
