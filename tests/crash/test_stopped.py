"""Goal: who stands still inside a lock for 30 s is waited for and told of, never robbed. Method: a process stops
inside each lock that all share, for 30 real seconds with the settings as they are by default."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import cystore
from cystore.layout import LOCK_NAMES
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

STOPPED_S = 30.0
HOLD = """
import cystore, signal, threading
store = cystore.open(path, **settings)
def hold(lock):
    with store._attached().control.held(lock):
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops at once
"""


def wait_for(store: cystore.MessageStore, lock: str, order: list[str]) -> None:
    if lock == "append":
        store.put("T", b"waited")
    else:
        with store._attached().control.held(lock):
            pass
    order.append("got in")


@pytest.mark.slow
@pytest.mark.parametrize("lock", LOCK_NAMES)
def test_a_holder_that_is_stopped_for_30_s(in_memory, caplog, lock):
    path, order = in_memory / "store", []
    with (
        open_small(path) as hasty,
        open_small(path, os_page_cache_busy_timeout_ms=120_000) as patient,
        Process() as holder,
    ):
        hasty.put("T", b"before", flush="sync")
        hasty.dispatch()  # behind a stopped dispatcher a read gives what is dispatched
        holder.do(HOLD, path=str(path), settings=SETTINGS)
        holder.send("hold(lock)", lock=lock)
        holder.wait_stopped()
        until = time.monotonic() + STOPPED_S
        waiting = threading.Thread(target=wait_for, args=(patient, lock, order))
        with caplog.at_level(logging.WARNING, "cystore"):
            waiting.start()
            while time.monotonic() < until:
                if lock == "append":
                    with pytest.raises(cystore.PageCacheBusyError, match=f"thread {holder.pid} has held"):
                        hasty.put("T", b"refused")
                else:
                    waiting.join(1)
                assert hasty.get("T", 0, 0, 1).messages[0].body == b"before"
            order.append("went on")
            holder.go_on()
            holder.answer()
            waiting.join(60)
        assert order == ["went on", "got in"]
        told = [r.getMessage() for r in caplog.records if f"waiting for the {lock} lock" in r.getMessage()]
        assert told  # every 5 s; less often on a busy machine
        assert all(f"thread {holder.pid} holds it" in text for text in told)
        hasty.put("T", b"after", flush="sync")
        assert [bytes(m.body) for m in hasty.scan()] == [
            b"before",
            *([b"waited"] if lock == "append" else []),
            b"after",
        ]
