"""Goal: a service goes on whatever its store says. Method: a thread that is over before it is assigned."""

from __future__ import annotations

import logging

from cystore.errors import StoreClosedError, StoreFullError
from cystore.services.threads import ServiceThread


def test_a_service_whose_first_run_fails_goes_on(caplog):
    """A thread may run before whoever starts it knows it."""

    class Inline:
        def __init__(self, target, name):
            target()

    runs = []

    def run_once():
        runs.append(len(runs))
        raise StoreFullError("no space") if len(runs) == 1 else StoreClosedError("closed")

    caplog.set_level(logging.ERROR, "cystore")
    ServiceThread("flush", run_once, 0.0, thread=Inline)
    assert runs == [0, 1]
    assert "cystore-flush" in caplog.text
