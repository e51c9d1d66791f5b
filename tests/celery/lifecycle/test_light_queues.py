"""Goal: each event is written once and is in the light queues of its worker and of its workflow; every answer is the
same with and without these queues; no event is lost because of one. Method: events as the handlers write them, read by
the queue and compared with all events of the log; the commands, with the store's settings on and off."""

from __future__ import annotations

import itertools

import pytest
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore.celery import history
from cystore.celery.base import events, reading
from cystore.celery.lifecycle import light_queues, recorder
from cystore.celery.stores import DEFAULTS, LIGHT_QUEUES, close_shared
from cystore.layout import LMQ_PREFIX
from tests.support.celery.logs import event_message, runs, write
from tests.support.small_stores import open_small

WORKER = "w1@host.example"
BOTH = "worker,workflow"
OFF = {"enable_lmq": False, "enable_multi_dispatch": False}
ON = {"enable_lmq": True, "enable_multi_dispatch": True}


def put(backend, kind, task_id, worker=WORKER, root=None, group=None, name="shop.pay", **details):
    log = recorder.log_of(backend.app)
    log.append(kind, task_id, name, root or task_id, group, worker=worker, **details)
    assert log.lost == 0


def light(store) -> dict[str, int]:
    """The light queues, with the number of their messages."""
    found = {name: queues[0] for name, queues in store.topics().items() if name.startswith(LMQ_PREFIX)}
    return {name: high - low for name, (low, high) in found.items()}


def offsets(found) -> list[int]:
    return [event.physical_offset for event in found]


def searched(store, worker, **conditions):
    """Events of a worker, out of all events."""
    found = history.events(store, **conditions)
    return offsets(event for event in found if event.details.get("worker") == worker)


# ------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("worker", "name"),
    [
        ("celery@host-1", "%LMQ%worker-celery%40host-1"),
        ("a_b@web.example", "%LMQ%worker-a_b%40web%2Eexample"),
        ("a,b c~@ü", "%LMQ%worker-a%2Cb%20c%7E%40%C3%BC"),
        ("50%@h|x", "%LMQ%worker-50%25%40h|x"),
    ],
)
def test_name_of_a_workers_queue(worker, name):
    assert events.worker_queue(worker) == name


def test_every_name_is_a_topic(tmp_path):
    workers = [
        "w" * 300 + "@a",
        "w" * 300 + "@b",
        "\ud800@h",
        *(f"{'.' * count}@" for count in range(36, 42)),
    ]
    names = [events.worker_queue(worker) for worker in workers]
    assert len(set(names)) == len(names) and max(map(len, names)) == 127
    names += [events.workflow_queue(root) for root in ("a b", "\ud800", "x" * 5000)]
    with open_small(tmp_path / "s", **ON) as store:
        store.put("T", b"", properties={events.LIGHT: ",".join(names)})
        assert set(light(store)) == set(names)


def test_workflows_share_a_fixed_number_of_queues():
    names = {events.workflow_queue(f"root-{number}") for number in range(20_000)}
    assert len(names) == events.WORKFLOW_QUEUES


@pytest.mark.parametrize("value", ["", "workers", "worker,off", "worker,", 7, None])
def test_other_values_of_the_setting_are_refused(make_backend, value):
    with pytest.raises(ImproperlyConfigured, match=light_queues.SETTING):
        make_backend(cystore_lifecycle_light_queues=value)


# ------------------------------------------------------------------------------------------- in the queues


def test_an_event_is_one_record_in_the_queue_of_its_worker(backend):
    put(backend, events.STARTED, "t")
    put(backend, events.STARTED, "u", worker="w2@host")
    put(backend, events.SUCCEEDED, "t")
    put(backend, events.SENT, "v", worker=None)
    store = backend.store
    assert light(store) == {events.worker_queue(WORKER): 2, events.worker_queue("w2@host"): 1}
    assert len([message for message in store.scan() if message.topic == events.EVENTS]) == 4
    read = store.get(events.worker_queue(WORKER), 0, 0).messages
    assert [message.tags for message in read] == [events.STARTED, events.SUCCEEDED]
    assert [message.physical_offset for message in read] == offsets(history.events(store, task_id="t"))[::-1]


def test_events_of_a_canvas_are_in_the_queue_of_their_workflow(make_backend):
    backend = make_backend(cystore_lifecycle_light_queues=BOTH)
    put(backend, events.SENT, "alone", worker=None)
    put(backend, events.SENT, "r", worker=None)
    assert light(backend.store) == {}
    put(backend, events.SENT, "a", worker=None, root="r", parent_id="r")
    put(backend, events.STARTED, "a", root="r", parent_id="r")
    put(backend, events.STARTED, "part", worker=None, group="g")
    assert light(backend.store) == {
        events.workflow_queue("r"): 2, events.workflow_queue("part"): 1, events.worker_queue(WORKER): 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kinds"), [("off", 0), ("worker", 1), ("workflow", 1), (BOTH, 2), (" workflow , worker", 2)]
)
def test_the_app_chooses(make_backend, value, kinds):
    backend = make_backend(cystore_lifecycle_light_queues=value)
    put(backend, events.STARTED, "t", root="r")
    assert len(light(backend.store)) == kinds


# ---------------------------------------------------------------------------------- the same with and without


def test_a_worker_is_read_by_its_queue_with_any_conditions(make_backend):
    backend = make_backend()
    store = backend.store
    write(store, runs(5))  # written without light queues, of the worker w@h
    for number in range(60):
        worker, kind = ("w@h", "w2@h")[number % 2], (events.STARTED, events.FAILED)[number % 3 == 0]
        put(backend, kind, f"n{number}", worker=worker, name=f"app.task{number % 4}")
        if number == 30:
            middle_ms = next(history.events(store)).time_ms
    assert light(store) == {events.worker_queue("w@h"): 30, events.worker_queue("w2@h"): 30}
    cases = itertools.product(
        ("w@h", "w2@h", "none@h"),
        (None, "app.task1"),
        ((), (events.FAILED,)),
        (0, middle_ms),
        (None, middle_ms),
    )
    for worker, name, states, begin_ms, end_ms in cases:
        conditions = {"name": name, "states": states, "begin_ms": begin_ms, "end_ms": end_ms}
        found = offsets(history.events(store, worker=worker, **conditions))
        assert found == searched(store, worker, **conditions), (worker, conditions)
    assert len(offsets(history.events(store, worker="w@h"))) == 45
    assert offsets(history.events(store, worker="w2@h", task_id="n1")) == offsets(
        history.events(store, task_id="n1")
    )
    assert offsets(history.events(store, worker="w@h", task_id="n1")) == []


def test_the_queue_spares_reading_the_others(backend):
    for number in range(400):
        put(backend, events.STARTED, f"t{number}", worker=("w1@h" if number % 100 == 0 else "w2@h"))
    before = backend.store.stats()["get_messages"]
    found = itertools.islice(history.events(backend.store, worker="w1@h"), 3)
    assert [event.task_id for event in found] == ["t300", "t200", "t100"]
    assert backend.store.stats()["get_messages"] - before <= 10


def test_what_is_not_dispatched_is_read(backend, tmp_path):
    put(backend, events.STARTED, "t")
    assert len(offsets(history.events(backend.store, worker=WORKER))) == 1
    put(backend, events.SUCCEEDED, "t")
    put(backend, events.SUCCEEDED, "u", worker="new@h")
    with cystore.open(tmp_path / "store", read_only=True) as reader:
        assert [event.state for event in history.events(reader, worker=WORKER)] == ["SUCCEEDED", "STARTED"]
        assert [event.task_id for event in history.events(reader, worker="new@h")] == ["u"]


@pytest.mark.parametrize(("states", "count"), [((), 100), ((events.FAILED,), 25)])
def test_more_events_than_one_read(backend, states, count):
    for number in range(100):
        put(backend, events.FAILED if number % 4 == 0 else events.STARTED, f"t{number}")
        put(backend, events.FAILED, f"t{number}", worker="w2@h")
    found = offsets(history.events(backend.store, worker=WORKER, states=states))
    assert found == searched(backend.store, WORKER, states=states) and len(found) == count


def test_a_dispatch_that_stands_still(backend, monkeypatch):
    for number in range(6):
        put(backend, events.STARTED, f"t{number}", worker=("w1@h" if number % 2 else "w2@h"))
        if number == 3:
            position = backend.store.wrote_position
    store = backend.store
    monkeypatch.setattr(cystore.MessageStore, "catch_up", lambda self: position)
    assert [event.task_id for event in history.events(store, worker="w1@h")] == ["t5", "t3", "t1"]


def test_a_damaged_event_does_not_hide_newer_ones(backend, tmp_path):
    for number in range(history.BATCH + 2):
        put(backend, events.STARTED, f"t{number}")
    backend.store.dispatch()
    damaged = next(backend.store.scan()).physical_offset
    with open(min((tmp_path / "store" / "commitlog").iterdir()), "r+b") as file:
        file.seek(damaged + 100)
        file.write(b"\xff")
    newest = itertools.islice(history.events(backend.store, worker=WORKER), 2)
    assert [event.task_id for event in newest] == [f"t{history.BATCH + 1}", f"t{history.BATCH}"]


def test_other_messages_in_a_light_queue_are_passed_over(backend):
    put(backend, events.STARTED, "t")
    queue = events.worker_queue(WORKER)
    body = events.body_of({"worker": WORKER})
    backend.store.put(queue, body, tags=events.STARTED)
    backend.store.put("orders", body, properties={events.LIGHT: queue})
    put(backend, events.STARTED, "u")
    assert [event.task_id for event in history.events(backend.store, worker=WORKER)] == ["u", "t"]


@pytest.mark.parametrize("most", [3, 4])
def test_a_workflow_is_found_whether_its_queue_is_short_or_long(make_backend, monkeypatch, most):
    monkeypatch.setattr(history, "SHARED_MOST", most)
    read = []
    by_queue = reading.of_light_queue
    monkeypatch.setattr(
        reading, "of_light_queue", lambda *of, **span: read.append(of[2]) or by_queue(*of, **span)
    )
    backend = make_backend(cystore_lifecycle_light_queues=BOTH)
    for number in range(4):
        put(backend, events.STARTED, f"t{number}", root="r", parent_id="r")
    found = [event.task_id for event in history.events(backend.store, root_id="r")]
    assert found == ["t3", "t2", "t1", "t0"]
    assert read == [events.workflow_queue("r")] * (most == 4)


def test_a_queue_that_exists_has_all_events_whatever_the_setting_is(make_backend):
    first = make_backend(cystore_lifecycle_light_queues=BOTH)
    put(first, events.STARTED, "t", root="r")
    second = make_backend(cystore_lifecycle_light_queues="off")
    put(second, events.SUCCEEDED, "t", root="r")
    put(second, events.SUCCEEDED, "u", worker="w2@h", root="other")
    assert light(first.store) == {events.worker_queue(WORKER): 2, events.workflow_queue("r"): 2}
    assert offsets(history.events(first.store, root_id="r")) == offsets(
        history.events(first.store, task_id="t")
    )


def test_a_store_that_had_no_light_queues(make_backend, url, run, rows):
    old = {name: value for name, value in DEFAULTS.items() if name not in LIGHT_QUEUES}
    made = cystore.open(url.removeprefix("cystore://"), **old)
    put(make_backend(), events.STARTED, "t")
    assert light(made) == {}
    assert [row["state"] for row in rows("history", "--worker", WORKER)] == ["STARTED"]
    made.configure(**ON)
    put(make_backend(), events.SUCCEEDED, "t")
    assert light(made) == {}  # this process opened it before
    made.close()
    close_shared()
    backend = make_backend()
    put(backend, events.RETRIED, "t")
    assert light(backend.store) == {events.worker_queue(WORKER): 1}
    history_of = ("history", "--worker", WORKER)
    assert [row["state"] for row in rows(*history_of)] == ["RETRIED", "SUCCEEDED", "STARTED"]
    backend.store.configure(**OFF)
    close_shared()
    put(make_backend(), events.FAILED, "t")
    assert [row["state"] for row in rows(*history_of)] == ["FAILED", "RETRIED", "SUCCEEDED", "STARTED"]


def test_options_of_the_app_count(make_backend):
    backend = make_backend(result_backend_transport_options={"enable_lmq": False})
    put(backend, events.STARTED, "t")
    assert light(backend.store) == {} and not backend.store.settings.enable_multi_dispatch


def test_a_removed_queue_comes_back(backend):
    put(backend, events.STARTED, "t")
    queue = events.worker_queue(WORKER)
    backend.store.delete_topic(queue)
    assert light(backend.store).get(queue, 0) == 0
    assert [event.state for event in history.events(backend.store, worker=WORKER)] == ["STARTED"]
    put(backend, events.SUCCEEDED, "t")
    assert backend.store.next_queue_offset(queue, 0) == 2
    assert [event.state for event in history.events(backend.store, worker=WORKER)] == ["SUCCEEDED", "STARTED"]


# ------------------------------------------------------------------------------------------------ limits


def test_no_event_is_lost_where_no_queue_can_be_had(make_backend, monkeypatch):
    backend = make_backend(
        cystore_lifecycle_light_queues=BOTH,
        result_backend_transport_options={"max_lmq_consume_queue_num": 1, **ON},
    )
    monkeypatch.setattr(light_queues, "queues_most", lambda store: 1 << 20)  # so the store itself refuses
    put(backend, events.STARTED, "t", root="r")  # two queues at once are too many
    assert light(backend.store) == {}
    put(backend, events.STARTED, "t")
    put(backend, events.SUCCEEDED, "t", root="r")
    put(backend, events.SUCCEEDED, "u", worker="w2@h")
    assert light(backend.store) == {events.worker_queue(WORKER): 2}
    for worker, count in ((WORKER, 3), ("w2@h", 1)):
        found = offsets(history.events(backend.store, worker=worker))
        assert found == searched(backend.store, worker) and len(found) == count
    assert len(offsets(history.events(backend.store, root_id="r"))) == 2


def test_light_queues_leave_room_for_those_of_tasks(make_backend):
    backend = make_backend(result_backend_transport_options={"max_queues": 6})
    assert light_queues.queues_most(backend.store) == 3
    for number in range(5):
        put(backend, events.STARTED, f"t{number}", worker=f"w{number}@h")
    assert set(light(backend.store)) == {events.worker_queue("w0@h"), events.worker_queue("w1@h")}
    assert [event.task_id for event in history.events(backend.store, worker="w4@h")] == ["t4"]
    put(backend, events.SUCCEEDED, "t0", worker="w0@h")
    assert len(offsets(history.events(backend.store, worker="w0@h"))) == 2


def test_cleaning_removes_the_queues_of_workers_that_are_gone(make_backend, tmp_path):
    small = {
        "mapped_file_size_commit_log_bytes": 65_536,
        "max_message_size_bytes": 32_768,
        "allocate_ahead_bytes": 4096,
    }
    backend = make_backend(result_backend_transport_options=small)
    store, folder = backend.store, tmp_path / "store" / "consumequeue"
    for number in range(20):
        put(backend, events.STARTED, f"t{number}", worker=f"w{number}@h")
    put(backend, events.STARTED, "t", exception="x" * 30_000)
    while store.wrote_position < 2 * small["mapped_file_size_commit_log_bytes"]:
        put(backend, events.STARTED, "t", exception="x" * 30_000)
    store.dispatch()
    assert len(list(folder.glob("%LMQ%*"))) == 21
    store.configure(file_reserved_time_h=0)
    store.clean()
    assert [path.name for path in folder.glob("%LMQ%*")] == [events.worker_queue(WORKER)]
    put(backend, events.SUCCEEDED, "t3", worker="w3@h")
    assert store.next_queue_offset(events.worker_queue("w3@h"), 0) == 2
    assert [event.state for event in history.events(store, worker="w3@h")] == ["SUCCEEDED"]


# ---------------------------------------------------------------------------------------------- commands


def test_commands_show_the_same_with_and_without(make_backend, run):
    backend = make_backend(cystore_lifecycle_light_queues=BOTH)
    write(backend.store, [event_message(events.SENT, "old", "shop.pay", "r", worker=WORKER)])
    put(backend, events.SENT, "r", worker=None)
    put(backend, events.STARTED, "r")
    for task_id, parent in (("a", "r"), ("b", "a"), ("c", "a")):
        put(backend, events.SENT, task_id, worker=None, root="r", parent_id=parent, group="g")
        put(backend, events.STARTED, task_id, root="r", parent_id=parent, group="g", worker=f"{parent}@h")
    put(backend, events.FAILED, "b", root="r", parent_id="a", exception="E", worker="a@h")
    put(backend, events.STARTED, "part", group="g2")
    same = next(
        root for root in map(str, range(10**6)) if events.workflow_queue(root) == events.workflow_queue("r")
    )
    put(backend, events.STARTED, "stranger", root=same)  # another workflow in the same queue
    commands = [
        (*words, *extra)
        for words in (
            ("timeline", "b"), ("timeline", "r", "--limit", "2"), ("history", "--root-id", "r"),
            ("history", "--worker", WORKER), ("history", "--worker", "a@h", "--state", "FAILED", "--limit", "1"),
        )
        for extra in ((), ("--json",))
    ]  # fmt: skip
    assert len(light(backend.store)) == 5
    by_queue = [run(*words).output for words in commands]
    assert run("history", "--root-id", "part").output.count("STARTED") == 1
    backend.store.configure(**OFF)
    assert [run(*words).output for words in commands] == by_queue
    assert '"task_id":"c"' in by_queue[1] and "stranger" not in "".join(by_queue[:6])
    assert by_queue[6].count("STARTED") == 3
    assert "must not be empty" in run("history", "--worker", "", code=2).output
    run("history", "--worker", "none@h", code=1)
