"""Goal: each kind of event is told once, by whom and with the ids that the table in `events.KINDS` says. Method: one
prefork worker and tasks that end in every way; the log is read back, each event is awaited."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from celery import chain, group
from celery.exceptions import Reject

from cystore.celery import history
from cystore.celery.base import events, reading
from cystore.celery.base.events import Event
from tests.celery.conftest import PATIENCE_S, fleet_in
from tests.support.celery import lifecycle_tasks as tasks
from tests.support.celery import work


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A worker that has all the tasks, on a store that it opens by itself."""
    light = {"cystore_lifecycle_light_queues": "worker,workflow"}
    with fleet_in(tmp_path_factory.mktemp("lifecycle"), **light) as fleet:
        assert (
            fleet.backend
        )  # a publisher that had not used it would not tell of its first message without a result
        fleet.start("--concurrency=2", "--include", tasks.__name__)
        yield fleet


def life(fleet, task_id: str) -> list[Event]:
    """A task's events, oldest first."""
    return list(history.events(fleet.backend.store, task_id=task_id))[::-1]


def told(found: list[Event]) -> list[str | None]:
    return [event.event for event in found]


def awaited(fleet, task_id: str, is_whole: Callable[[list[Event]], bool]) -> list[Event]:
    """A task's events, once they are what is waited for."""
    store = fleet.backend.store
    while True:
        position = store.wrote_position
        found = life(fleet, task_id)
        if is_whole(found):
            return found
        assert store.wait_log(position, PATIENCE_S), list(told(found))


def until(*wanted: str) -> Callable[[list[Event]], bool]:
    """True for events in which these are, in any order, and no more."""
    return lambda found: sorted(map(str, told(found))) == sorted(wanted)


def ended_with(fleet, result, *wanted: str) -> list[Event]:
    """The events of a task; a publisher and a worker write at the same time, so those two come in any order."""
    found = awaited(fleet, result.id, until(*wanted))
    assert {event.task_id for event in found} == {result.id}
    return found


def the(found: list[Event], kind: str) -> Event:
    (event,) = (event for event in found if event.event == kind)
    return event


def children(fleet) -> set[int]:
    """The pool processes that ever told something."""
    return {e.details["pid"] for e in history.events(fleet.backend.store, states=[events.STARTED])}


def test_a_task_whose_result_nobody_wants(fleet):
    result = fleet.task(tasks.forgettable).delay(7, colour="red")
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED)
    assert list(history.transitions(fleet.backend.store, task_id=result.id)) == []
    assert {event.name for event in found} == {tasks.forgettable.name}
    assert {event.root_id for event in found} == {result.id}
    sent, received = the(found, events.SENT).details, the(found, events.RECEIVED).details
    for details in (sent, received):
        assert (details["args"], details["kwargs"], details["queue"]) == (
            "(7,)",
            "{'colour': 'red'}",
            work.QUEUE,
        )
    assert str(os.getpid()) in sent["origin"]
    assert received["worker"] == "worker0@test"
    succeeded = the(found, events.SUCCEEDED).details
    assert 0 < succeeded["runtime"] < PATIENCE_S
    assert succeeded["pid"] == the(found, events.STARTED).details["pid"] != os.getpid()
    assert set(succeeded) == {"v", "worker", "pid", "runtime"}


def test_a_failure(fleet):
    result = fleet.task(work.fail).delay("broken")
    failed = the(
        ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.FAILED), events.FAILED
    )
    details = failed.details
    assert (details["exception"], details["args"]) == ("SpecialError('broken')", "('broken',)")
    assert "raise SpecialError(text)" in failed.traceback
    assert details["runtime"] > 0
    assert details["pid"] in children(fleet)


def test_retries(fleet):
    result = fleet.task(work.third_time_lucky).delay()
    tries = [events.SENT, events.RECEIVED, events.STARTED]
    found = ended_with(fleet, result, *tries * 3, events.RETRIED, events.RETRIED, events.SUCCEEDED)
    retried = [event.details for event in found if event.event == events.RETRIED]
    assert [(details.get("retries"), details["countdown"]) for details in retried] == [(None, 0), (1, 0)]
    assert retried[0]["exception"] == "SpecialError('not yet')"
    sent = [event.details for event in found if event.event == events.SENT]
    # A sender logs its message after sending it, so a quick worker's next one may be logged before.
    assert sorted(details.get("retries", 0) for details in sent) == [0, 1, 2]


@pytest.mark.parametrize(
    "how",
    [
        events.SUCCEEDED, events.FAILED, events.IGNORED, events.REJECTED, events.CHILD_LOST, events.TIMED_OUT,
    ],
)  # fmt: skip
def test_each_end_says_which_try_it_ends_and_who_sent_it(fleet, how):
    """Readers join on these fields. Some ends are told by the main process, which does not run the task."""
    result = chain(fleet.task(work.add).s(1, 1), fleet.task(tasks.retries_and).si(how))()
    found = awaited(fleet, result.id, lambda found: how in told(found))
    end = the(found, how).details
    assert (end.get("retries"), end.get("parent_id")) == (1, result.parent.id)
    begun = [event.details for event in found if event.event == events.STARTED]
    assert [(details.get("retries"), details["parent_id"]) for details in begun] == [
        (None, result.parent.id),
        (1, result.parent.id),
    ]


def test_ignored(fleet):
    result = fleet.task(tasks.ignored).delay()
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.IGNORED)
    assert "not worth it" in the(found, events.IGNORED).details["exception"]
    assert the(found, events.IGNORED).details["pid"] in children(fleet)


def test_rejected_for_good(fleet):
    """The child tells it; the failure that the main process signals besides is the same thing."""
    result = fleet.task(tasks.rejected).delay()
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.REJECTED)
    details = the(found, events.REJECTED).details
    assert "not mine" in details["exception"]
    assert "requeue" not in details
    with pytest.raises(Reject):
        result.get(
            timeout=PATIENCE_S
        )  # the main process stores it and gives its signal, before it takes anything else
    assert fleet.task(work.add).delay(1, 1).get(timeout=PATIENCE_S) == 2
    assert told(life(fleet, result.id)) == told(found)


def test_rejected_to_run_again(fleet):
    result = fleet.task(tasks.requeued).delay()
    found = ended_with(
        fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.REJECTED, events.REDELIVERED,
        events.STARTED, events.SUCCEEDED,
    )  # fmt: skip
    assert the(found, events.REJECTED).details["requeue"] is True
    in_order = [event for event in told(found) if event != events.SENT]
    assert in_order[-4:] == [events.REJECTED, events.REDELIVERED, events.STARTED, events.SUCCEEDED]


def test_a_soft_time_limit(fleet):
    result = fleet.task(tasks.too_long).delay()
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.TIMED_OUT)
    details = the(found, events.TIMED_OUT).details
    assert details["soft"] is True
    assert details["runtime"] > 0
    assert details["pid"] in children(fleet)


def test_a_soft_time_limit_that_the_task_heeds(fleet):
    result = fleet.task(tasks.in_time_after_all).delay()
    ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED)


def test_a_hard_time_limit_counts_once(fleet):
    result = fleet.task(tasks.much_too_long).delay()
    found = awaited(fleet, result.id, lambda found: events.TIMED_OUT in told(found))
    # The second signal comes before the worker can take anything else.
    after = fleet.task(work.add).delay(1, 1)
    assert after.get(timeout=PATIENCE_S) == 2
    found = life(fleet, result.id)
    assert sorted(map(str, told(found))) == sorted(
        [events.SENT, events.RECEIVED, events.STARTED, events.TIMED_OUT]
    )
    details = the(found, events.TIMED_OUT).details
    assert "TimeLimitExceeded" in details["exception"]
    assert "soft" not in details
    assert details["pid"] not in children(fleet)


@pytest.mark.parametrize(("task", "how"), [(tasks.dies, "SIGKILL"), (tasks.leaves, "exitcode 3")])
def test_a_lost_child(fleet, task, how):
    result = fleet.task(task).delay()
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.CHILD_LOST)
    details = the(found, events.CHILD_LOST).details
    assert how in details["exception"]
    assert "requeue" not in details


def test_a_lost_child_whose_message_goes_back(fleet):
    """No signal fires there: the request says it when it gives the message back."""
    result = fleet.task(tasks.dies_once).delay()
    found = ended_with(
        fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.CHILD_LOST, events.REDELIVERED,
        events.STARTED, events.SUCCEEDED,
    )  # fmt: skip
    lost = the(found, events.CHILD_LOST).details
    first = next(event for event in found if event.event == events.STARTED)
    assert lost["requeue"] is True
    assert lost["pid"] == first.details["pid"]
    assert "SIGKILL" in lost["exception"]


def test_an_error_outside_of_the_task(fleet):
    result = fleet.task(tasks.fails_twice).delay()
    found = ended_with(
        fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.INTERNAL_ERROR, events.FAILED
    )
    internal = the(found, events.INTERNAL_ERROR)
    assert internal.details["exception"] == "HandlerError('in the handler')"
    assert "on_failure" in internal.traceback
    assert internal.details["pid"] in children(fleet)


def test_an_unknown_task(fleet):
    result = fleet.app.send_task("no.such.task", (1, 2))
    found = ended_with(fleet, result, events.SENT, events.UNKNOWN)
    details = the(found, events.UNKNOWN).details
    assert (details["worker"], details["args"]) == ("worker0@test", "(1, 2)")
    assert the(found, events.UNKNOWN).name == "no.such.task"


def test_a_message_that_makes_no_sense(fleet):
    result = fleet.app.send_task(work.add.name, (1, 2), headers={"eta": "tomorrow, perhaps"})
    found = ended_with(fleet, result, events.SENT, events.REJECTED)
    assert "invalid ETA" in the(found, events.REJECTED).details["exception"]


def test_an_expired_task(fleet):
    result = fleet.task(work.add).apply_async((1, 1), expires=-1)
    found = ended_with(fleet, result, events.SENT, events.REVOKED)
    assert the(found, events.REVOKED).details["expired"] is True


def test_a_task_that_is_terminated(fleet):
    marker = fleet.folder / "terminated"
    result = fleet.task(tasks.blocks).delay(str(marker))
    started = the(
        awaited(fleet, result.id, until(events.SENT, events.RECEIVED, events.STARTED)), events.STARTED
    )
    result.revoke(terminate=True, signal="SIGKILL")
    found = ended_with(fleet, result, events.SENT, events.RECEIVED, events.STARTED, events.REVOKED)
    details = the(found, events.REVOKED).details
    assert (details["terminated"], details["signal"]) == (True, "SIGKILL")
    assert "pid" not in details and started.details["pid"] in children(fleet)


def test_a_task_that_is_revoked_before_it_begins(fleet):
    found: list[Event] = []
    for countdown_s in (1, 10, 60):  # a busy machine may begin it before it is revoked
        result = fleet.task(tasks.forgettable).apply_async(eta=None, countdown=countdown_s)
        awaited(fleet, result.id, lambda found: {events.SENT, events.RECEIVED} <= set(told(found)))
        fleet.app.control.revoke(result.id)
        found = awaited(fleet, result.id, lambda found: {events.REVOKED, events.STARTED} & set(told(found)))
        if events.STARTED not in told(found):
            break
    details = the(found, events.REVOKED).details
    assert "terminated" not in details and "expired" not in details
    assert the(found, events.SENT).details["eta"] == the(found, events.RECEIVED).details["eta"]


def test_a_workflow_is_found_by_its_root(fleet):
    first = fleet.task(work.add).s(1, 1).set(task_id="the-root")
    result = chain(first, fleet.task(work.add).s(10), group(fleet.task(work.add).s(n) for n in range(3)))()
    assert result.get(timeout=PATIENCE_S) == [12, 13, 14]
    store = fleet.backend.store
    while True:
        position = store.wrote_position
        found = list(history.events(store, root_id="the-root"))
        if [event.event for event in found].count(events.SUCCEEDED) == 5:
            break
        assert store.wait_log(position, PATIENCE_S)
    assert [event.physical_offset for event in found] == sorted(
        (e.physical_offset for e in found), reverse=True
    )
    assert len({event.task_id for event in found}) == 5
    assert {event.root_id for event in found} == {"the-root"}
    parts = list(history.events(store, group_id=result.id))
    assert {event.task_id for event in parts} == {child.id for child in result}
    second = result.parent.id
    assert {e.details["parent_id"] for e in parts if e.event == events.SENT} == {second}
    # The process of the first task sent its tasks.
    (sent,) = history.events(store, task_id=second, states=[events.SENT])
    assert str(os.getpid()) not in sent.details["origin"]
    assert {event.task_id for event in history.events(store, task_id="the-root")} == {"the-root"}


def test_light_queues_have_all_events_of_their_worker_and_workflow(fleet):
    add = fleet.task(work.add)
    result = chain(add.s(1, 1), add.s(1))()
    awaited(fleet, result.id, until(events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED))
    store = fleet.backend.store
    end = store.wrote_position
    wanted: dict[str, list[int]] = {}
    for event in history.events(store):
        if event.physical_offset >= end:
            continue
        details, names = event.details, []
        if "worker" in details:
            names.append(events.worker_queue(details["worker"]))
        if event.task_id and events.is_in_canvas(
            event.task_id, event.root_id, details.get("parent_id"), event.group_id
        ):
            names.append(events.workflow_queue(event.root_id or event.task_id))
        for name in names:
            wanted.setdefault(name, []).append(event.physical_offset)
    assert events.worker_queue("worker0@test") in wanted
    assert events.workflow_queue(result.parent.id) in wanted
    for name, offsets in wanted.items():
        found = reading.of_light_queue(store, events.EVENTS, name)
        assert [message.physical_offset for message in found if message.physical_offset < end] == offsets
    by_worker = history.events(store, worker="worker0@test")
    assert [event.physical_offset for event in by_worker if event.physical_offset < end] == wanted[
        events.worker_queue("worker0@test")
    ]


def test_the_whole_life_of_a_task_is_one_stream(fleet):
    result = fleet.task(work.add).delay(2, 2)
    assert result.get(timeout=PATIENCE_S) == 4
    awaited(fleet, result.id, until(events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED))
    found = [entry.state for entry in history.entries(fleet.backend.store, task_id=result.id)]
    found.remove(events.SENT)  # its publisher may be slower than the worker
    assert found == [events.SUCCEEDED, "SUCCESS", "STARTED", events.STARTED, events.RECEIVED]
