"""Goal: delayed messages that RocketMQ wrote, and in part delivered, reach their topic once. Method: its stores with
delay levels, whose delayOffset.json is behind what was delivered (or missing, after a halt), opened and delivered by
cystore."""

from __future__ import annotations

import shutil

import pytest

import cystore
from cystore.services.delay.waiting import WaitingQueues
from tests.property.test_due_run import content_of
from tests.support.checks import everything
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import unpack_or_skip

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture(params=["c_delay", "c2_delay_crash"])
def delayed(request, tmp_path):
    return unpack_or_skip(request.param, tmp_path)


def bodies(store, waiting):
    return sorted(
        bytes(m.body)
        for (topic, _), found in everything(store).items()
        for m in found
        if (topic == SCHEDULE) == waiting and "REAL_TOPIC" in m.properties
    )


@pytest.mark.parametrize("table", ["as it is", "removed"])
def test_i9_each_delayed_message_reaches_its_topic_once(delayed, table):
    """All of them are due by now; what RocketMQ delivered is recognised by what it holds."""
    if table == "removed":
        shutil.rmtree(delayed.store / "config", ignore_errors=True)
    settings = {**cystore_config(delayed.spec), "services": "none"}
    with cystore.open(delayed.store, **settings) as store:
        waited, before = bodies(store, waiting=True), bodies(store, waiting=False)
        assert 0 < len(before) < len(waited)
        assert store.deliver() == len(waited) - len(before)
        assert bodies(store, waiting=False) == waited
        assert store.stats()["delayed"] == {}
    with cystore.open(delayed.store, **settings) as store:
        assert store.deliver() == 0


def test_i9_runs_deliver_what_steps_deliver(delayed, monkeypatch):
    other = shutil.copytree(delayed.store, delayed.store.with_name("other"))
    settings = {**cystore_config(delayed.spec), "services": "none"}
    found = []
    for path in (delayed.store, other):
        with cystore.open(path, **settings) as store:
            end = store.wrote_position
            assert store.deliver() > 0
            found.append([content_of(message) for message in store.scan(end)])
        monkeypatch.setattr(WaitingQueues, "run", lambda self, runs, queue, begin, *_: ([], 0, begin, None))
    assert found[0] == found[1]


def test_i9_with_a_wrong_table_nothing_is_lost(delayed):
    """RocketMQ's table has no checksum: one that knows more than the queues have is not believed."""
    (delayed.store / "config").mkdir(exist_ok=True)
    (delayed.store / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{1:600,2:5,18:3\n\t}\n}')
    with cystore.open(delayed.store, **cystore_config(delayed.spec), services="none") as store:
        store.deliver()
        assert bodies(store, waiting=False) == bodies(store, waiting=True)
