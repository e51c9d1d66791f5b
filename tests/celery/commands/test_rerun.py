"""Goal: what a real worker did is told by the commands, and a task is sent again with exactly what it had. Method:
one worker of two processes on a store whose app keeps messages; celery's own program in this process. Redaction and
limits on a broker in memory."""

from __future__ import annotations

import json

import pytest
from celery import Celery, chain, group, shared_task, states
from celery.exceptions import ImproperlyConfigured

from cystore import Message
from cystore.celery import history
from cystore.celery.base import events, records
from cystore.celery.commands.tasks import rerun
from cystore.celery.lifecycle import payload
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import lifecycle_tasks, work
from tests.support.celery.logs import event_message

KEEP = {payload.SETTING: payload.MESSAGE}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A worker whose app, as the one here, keeps messages."""
    with fleet_in(tmp_path_factory.mktemp("rerun"), **KEEP) as fleet:
        assert fleet.backend
        fleet.start("--concurrency=2", "--include", lifecycle_tasks.__name__)
        yield fleet


@pytest.fixture
def ask(run, fleet):
    """`ask("diff", ...)`: a command for the fleet's app, and its JSON objects."""

    def call(*words, code=0):
        return [
            json.loads(line) for line in run(*words, "--json", code=code, app=fleet.app).stdout.splitlines()
        ]

    return call


def ended(fleet, task_id: str, kind: str = events.SUCCEEDED):
    """Waits for the end of a task, as the log tells it."""
    store = fleet.backend.store
    wait_until(
        lambda: any(history.events(store, task_id=task_id, states=(kind,))), f"{task_id} {kind}", PATIENCE_S
    )


def message_of(store, task_id):
    (sent,) = history.events(store, task_id=task_id, states=(events.SENT,))
    return sent.details


def test_rerun_with_the_same_arguments_and_options(fleet, ask, run):
    """Huge arguments too: what the log keeps of them as text is cut, the message is not."""
    text = "größe \U0001f9ca " * 2000
    task = fleet.task(work.same)
    first = task.apply_async(
        ([text, {"n": 1.5}],), priority=3, expires=3600, link=fleet.task(lifecycle_tasks.forgettable).s()
    )
    assert first.get(timeout=PATIENCE_S) == [text, {"n": 1.5}]
    ended(fleet, first.id)
    done = run("rerun", first.id, code=2, app=fleet.app)
    assert "has succeeded" in done.stderr and "give --yes" in done.stderr
    (told,) = ask("rerun", first.id, "--yes")
    assert told["rerun_of"] == first.id != told["task_id"]
    again = fleet.app.AsyncResult(told["task_id"])
    assert again.get(timeout=PATIENCE_S) == [text, {"n": 1.5}]
    ended(fleet, again.id)
    store = fleet.backend.store
    before, after = message_of(store, first.id), message_of(store, again.id)
    assert after["rerun_of"] == first.id
    same = ("body", "content_type", "content_encoding", "routing_key", "exchange")
    assert [after["message"][name] for name in same] == [before["message"][name] for name in same]
    assert after["message"]["properties"]["priority"] == 3
    (difference,) = ask("diff", first.id, again.id)
    assert not set(difference) & {"args", "kwargs", "name", "outcome", "queue"}
    assert difference["rerun_of"] == [None, first.id]


def test_rerun_of_a_failure_and_of_its_rerun(fleet, ask, run):
    first = fleet.task(work.fail).delay("broken pipe 17")
    ended(fleet, first.id, events.FAILED)
    (told,) = ask("rerun", first.id)  # nothing to ask about
    ended(fleet, told["task_id"], events.FAILED)
    shown = run("rerun", told["task_id"], "--same-id", app=fleet.app).stdout
    assert "sent again under the same id" in shown
    store = fleet.backend.store
    wait_until(
        lambda: len(list(history.events(store, task_id=told["task_id"], states=(events.FAILED,)))) == 2,
        "the second run", PATIENCE_S,
    )  # fmt: skip
    found = ask("find", "--args", "pipe 17", "--error", "SpecialError")
    assert {row["task_id"] for row in found} == {first.id, told["task_id"]}
    assert ask("unfinished", "--older-than", "0s", "--task", work.fail.name, code=1) == []


def test_a_task_that_ignores_its_result(fleet, ask):
    """Its message is kept like any other, its end is in the log, and there is no result of it or of its rerun."""
    assert fleet.backend  # a publisher whose first message has no result makes no backend by itself
    first = fleet.task(work.same).apply_async((7,), ignore_result=True)
    ended(fleet, first.id)
    (told,) = ask("rerun", first.id, "--yes")
    ended(fleet, told["task_id"])
    (difference,) = ask("diff", first.id, told["task_id"])
    assert not set(difference) & {"args", "kwargs", "name", "outcome", "queue"}
    (again,) = ask("rerun", first.id, "--yes", "--same-id")
    assert again["task_id"] == first.id
    wait_until(
        lambda: (
            len(list(history.events(fleet.backend.store, task_id=first.id, states=(events.SUCCEEDED,)))) == 2
        ),
        "it ran again under its own id",
    )
    for task_id in (first.id, told["task_id"]):
        assert fleet.app.AsyncResult(task_id).state == states.PENDING


def test_a_retried_task_begins_anew(fleet, ask):
    first = fleet.task(work.third_time_lucky).delay()
    assert first.get(timeout=PATIENCE_S) == 2
    ended(fleet, first.id)
    (told,) = ask("rerun", first.id, "--yes")
    assert fleet.app.AsyncResult(told["task_id"]).get(timeout=PATIENCE_S) == 2
    rows = ask("timeline", first.id)
    assert (rows[0]["task_id"], rows[0]["retries"]) == (first.id, 2)


def test_a_workflow_and_a_part_of_a_chord(fleet, ask):
    """A part under a new id does not count for the chord; the chord of the first one is shown."""
    parts = group([fleet.task(work.add).s(n, n) for n in range(3)])
    result = chain(parts, fleet.task(work.total).s()).apply_async()
    assert result.get(timeout=PATIENCE_S) == 6
    ended(fleet, result.id)
    part = result.parent.results[1].id
    ended(fleet, part)
    rows = ask("timeline", part)
    assert {row["task_id"] for row in rows if row["kind"] == "task"} >= {part}
    (chord,) = [row for row in rows if row["kind"] == "chord"]
    assert (chord["parts"], chord["size"], chord["outcome"]) == (3, 3, "sent")
    (told,) = ask("rerun", part, "--yes")
    assert "not part of its old group" in told["notes"][0]
    assert fleet.app.AsyncResult(told["task_id"]).get(timeout=PATIENCE_S) == 2
    ended(fleet, told["task_id"])
    assert [row for row in ask("timeline", part) if row["kind"] == "chord"] == [chord]
    assert ask("slow", "--task", work.add.name)[0]["run_s"] > 0


# ------------------------------------------------------------------------------------ without a worker


@pytest.fixture
def make_app(url):
    """`make_app(setting=value)`: an app that keeps messages, and sends them to a broker in memory."""
    made = []

    def make(**settings):
        app = Celery("shop", broker="memory://", backend=url)
        app.conf.update(**{**KEEP, **settings})
        made.append(app)
        assert app.backend
        with app.connection_for_write() as connection:  # whatever used the broker in memory before
            connection.default_channel.queue_purge("celery")
        return app

    yield make
    for app in made:
        app.set_default()
        app.close()


@shared_task(name="till.pay")
def pay(*args, **kwargs):
    return None


def sent(app, *args, **options):
    return app.tasks["till.pay"].apply_async(args, **options).id


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_every_serializer_is_kept_as_it_was_sent(make_app, run, serializer):
    app = make_app(accept_content=["json", "pickle", "yaml"])
    first = sent(
        app, "ключ", 7, serializer=serializer, compression="zlib" if serializer == "pickle" else None
    )
    store = app.backend.store
    kept = payload.LoggedMessage.of(message_of(store, first)["message"])
    with app.connection_for_read() as connection:
        out = connection.default_channel.basic_get("celery", no_ack=True)
        run("rerun", first, "--yes", app=app)
        again = connection.default_channel.basic_get("celery", no_ack=True)
    assert kept.content_type == out.content_type == again.content_type
    assert again.body == out.body and again.headers["id"] != out.headers["id"]
    assert again.headers["argsrepr"] == out.headers["argsrepr"]
    close_shared()


def test_tasks_that_cannot_be_sent_again(make_app, run, backend):
    """None is sent when one cannot be."""
    app = make_app()
    good = sent(app, 1)
    backend.store.put_many([event_message(events.SENT, "old", "till.pay", args="(1,)")])
    damaged = {"message": {"headers": {}, "body": 7}}
    backend.store.put_many([event_message(events.SENT, "damaged", "till.pay", **damaged)])
    end = backend.store.wrote_position
    done = run("rerun", good, "old", "damaged", "--yes", code=2, app=app)
    assert 'sent without cystore_lifecycle_payload = "message"' in done.stderr
    assert "the message in the log is damaged: its headers" in done.stderr or "its properties" in done.stderr
    assert "2 of 3 tasks cannot be sent again; nothing was sent" in done.stderr
    assert "the store knows no task 'none'" in run("rerun", good, "none", code=1, app=app).stderr
    assert "it may still run" in run("rerun", good, code=2, app=app).stderr
    assert backend.store.wrote_position == end


def test_a_person_is_asked(make_app, run, monkeypatch):
    app = make_app()
    task_id = sent(app, 1)
    monkeypatch.setattr(rerun, "_somebody_answers", lambda: True)
    done = run("rerun", task_id, code=2, app=app, answer="n\n")
    assert "has not ended (SENT): it may still run" in done.stderr and "nothing was sent" in done.stderr
    assert "sent again as" in run("rerun", task_id, app=app, answer="y\n").stdout


def happened(app, task_id, *kinds):
    """A worker's records of one delivery of a task's message: events, and states of its result."""
    for kind in kinds:
        if kind in states.ALL_STATES:
            app.backend.store_result(task_id, ValueError("again") if kind == states.FAILURE else 1, kind)
        else:
            app.backend.store.put_many([event_message(kind, task_id, "till.pay")])


DUPLICATES = {
    "failed": (events.REDELIVERED, events.STARTED, states.STARTED, states.FAILURE, events.FAILED),
    "dropped by Once": (events.REDELIVERED, events.STARTED, states.STARTED, events.IGNORED),
    "killed": (events.REDELIVERED, events.STARTED, states.STARTED),
}


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_a_duplicate_does_not_hide_a_success(make_app, run, rows, duplicate):
    """Seen: the message of a task that had succeeded came again. The task was then sent again without a question,
    though its state was SUCCESS; timeline and diff showed the state of the duplicate, and unfinished listed the
    task."""
    app = make_app()
    task_id, other = sent(app, 1), sent(app, 2)
    for one in (task_id, other):
        happened(app, one, events.STARTED, states.STARTED, states.SUCCESS, events.SUCCEEDED)
    happened(app, task_id, *duplicate)
    assert app.AsyncResult(task_id).state == states.SUCCESS
    end = app.backend.store.wrote_position
    done = run("rerun", task_id, code=2, app=app)
    assert "has succeeded" in done.stderr and "give --yes" in done.stderr
    assert app.backend.store.wrote_position == end
    (row,) = rows("timeline", task_id)
    assert row["result_state"] == states.SUCCESS
    (difference,) = rows("diff", task_id, other)
    assert not set(difference) & {"result_state", "result_type"}
    assert run("unfinished", "--older-than", "0s", "--json", code=1, app=app).stdout == ""


def test_a_forgotten_success_is_none(make_app, rows):
    """A state before a `forget` is not the task's any more, and a late state never was."""
    app = make_app()
    task_id = sent(app, 1)
    happened(app, task_id, states.SUCCESS)
    app.backend.forget(task_id)
    assert "result_state" not in rows("timeline", task_id)[0]
    happened(app, task_id, states.FAILURE)
    late = Message(
        topic=records.RESULTS,
        body=b"{}",
        keys=(task_id,),
        tags=states.STARTED,
        properties={records.LATE: "1"},
    )
    app.backend.store.put_many([late])
    assert app.AsyncResult(task_id).state == states.FAILURE == rows("timeline", task_id)[0]["result_state"]


def test_diff_of_what_is_cut_in_the_log(make_app, run):
    """The texts of the arguments are equal, as far as they are kept; the messages are not."""
    app = make_app(cystore_lifecycle_args_chars=10)
    ids = [sent(app, "x" * 50_000 + end) for end in ("red", "blue")]
    (told,) = [json.loads(line) for line in run("diff", *ids, "--json", app=app).stdout.splitlines()]
    assert "args" not in told and all("x" * 50_000 in body for body in told["message"])
    lines = [line for line in run("diff", *ids, app=app).stdout.splitlines() if "..." in line]
    assert "xred" in lines[0] and "xblue" in lines[1]


def test_what_is_over_is_left_out(make_app, run, rows):
    app = make_app()
    task_id = sent(app, 1, expires="2020-01-01T00:00:00+00:00", eta=None)
    assert "its expires is over and was removed" in run("rerun", task_id, "--yes", app=app).stdout


def test_redaction_forbids_a_rerun(make_app, run):
    """Where it hides a part in the arguments, or in a callback's."""
    app = make_app(cystore_lifecycle_redact=["card"])
    hidden = [sent(app, kwargs={"card": "4242"}), sent(app, {"deep": [{"card": "4242"}]})]
    hidden.append(sent(app, 1, link=app.tasks["till.pay"].s(card="4242")))
    open_one = sent(app, 1)
    store = app.backend.store
    for task_id in hidden:
        assert "message" not in message_of(store, task_id)
        assert (
            "cystore_lifecycle_redact hides a part of it"
            in run("rerun", task_id, "--yes", code=2, app=app).stderr
        )
    assert "4242" not in "".join(bytes(m.body).decode() for m in store.scan() if m.topic == events.EVENTS)
    run("rerun", open_one, "--yes", app=app)


def test_redaction_by_a_function(make_app):
    def redact(name, args, kwargs):
        if args and args[0] == "raise":
            raise ValueError("secret")
        return args[:1], kwargs

    app = make_app(cystore_lifecycle_redact=redact)
    store = app.backend.store
    whole, cut, broken = sent(app, 1), sent(app, 1, 2), sent(app, "raise")
    linked = sent(app, 1, link=app.tasks["till.pay"].s())
    assert "message" in message_of(store, whole)
    for task_id, reason in (
        (cut, "hides a part"),
        (linked, "hides a part"),
        (broken, "failed (ValueError)"),
    ):
        told = message_of(store, task_id)
        assert "message" not in told and reason in told["message_left_out"]


def test_a_message_that_is_too_large(make_app, run):
    """The event is there all the same."""
    app = make_app(result_backend_transport_options={"max_message_size_bytes": 200_000})
    task_id = sent(app, "x" * 300_000)
    told = message_of(app.backend.store, task_id)
    assert "a record at most 200000" in told["message_left_out"]
    assert "a record at most 200000" in run("rerun", task_id, "--yes", code=2, app=app).stderr


def test_messages_are_kept_where_that_is_asked_for(make_app):
    app = make_app(cystore_lifecycle_payload=None)
    assert not {"message", "message_left_out"} & set(message_of(app.backend.store, sent(app, 1)))
    with pytest.raises(ImproperlyConfigured, match='must be "message"'):
        make_app(cystore_lifecycle_payload="all")
