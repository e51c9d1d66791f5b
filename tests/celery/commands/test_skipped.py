"""Goal: a task that did not run says why: the rest of a failed chain, the body of a failed chord, and a task that only
its result tells of. And ids may be cut. Method: real chains and chords of a worker on a real Redis; written logs for
what earlier versions and other hosts leave."""

from __future__ import annotations

import json

import pytest
from celery import chain, chord, group, states

from cystore import Message
from cystore.celery import history
from cystore.celery.base import events, records
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import work
from tests.support.celery.logs import event_message, runs, write


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A worker whose failures the tests look at."""
    with fleet_in(tmp_path_factory.mktemp("skipped")) as fleet:
        assert fleet.backend
        fleet.start("--concurrency=2")
        yield fleet


@pytest.fixture
def ask(run, fleet):
    """`ask("history", ...)`: a command for the fleet's app, and its JSON objects."""
    return lambda *words, code=0: [
        json.loads(line) for line in run(*words, "--json", code=code, app=fleet.app).stdout.splitlines()
    ]


def events_of(fleet, task_id, kind):
    store = fleet.backend.store
    found = []
    wait_until(
        lambda: found or found.extend(history.events(store, task_id=task_id, states=(kind,))),
        f"{task_id} {kind}",
    )
    return found


def failed(result):
    with pytest.raises(Exception, match="broken pipe"):
        result.get(timeout=PATIENCE_S)


def test_the_rest_of_a_failed_chain(fleet, ask, run):
    """With a chord in it: its parts and its body do not run either."""
    add, fail = fleet.task(work.add), fleet.task(work.fail)
    parts = group(add.s(n) for n in range(2))
    result = chain(add.si(1, 1), fail.si("broken pipe 1"), add.s(2), parts, fleet.task(work.total).s())()
    failed(result)
    root = result
    while root.parent is not None:
        root = root.parent
    store = fleet.backend.store
    wait_until(lambda: any(history.events(store, root_id=root.id, states=(events.FAILED,))), "the failure")
    (broken,) = history.events(store, root_id=root.id, states=(events.FAILED,))
    skipped = list(history.events(store, root_id=root.id, states=(events.SKIPPED,)))[::-1]
    assert [event.name for event in skipped] == [work.add.name] * 3 + [work.total.name]
    assert skipped[-1].task_id == result.id
    assert {event.details["cause"] for event in skipped} == {broken.task_id}
    assert skipped[0].details["parent_id"] == broken.task_id
    rows = ask("timeline", root.id)
    tasks = {row["task_id"]: row for row in rows if row["kind"] == "task"}
    assert {event.task_id for event in skipped} < set(tasks)
    assert tasks[result.id]["outcome"] == events.SKIPPED
    assert "broken pipe 1" in tasks[result.id]["exception"] and tasks[result.id]["cause"] == broken.task_id
    shown = run("timeline", result.id, app=fleet.app).stdout
    assert shown.count("SKIPPED") == 4 and f"because of  FAILED      {broken.task_id}" in shown
    told = ask("history", result.id)
    assert {row["name"] for row in told} == {work.total.name, work.fail.name}
    assert (told[-1]["kind"], told[-1]["task_id"]) == ("cause", broken.task_id)
    found = ask("failures", result.id)
    assert [(row["state"], row["task_id"]) for row in found] == [
        (events.SKIPPED, result.id),
        (events.FAILED, broken.task_id),
    ]
    assert "broken pipe 1" in run("failures", result.id, "--traceback", app=fleet.app).stdout
    assert ask("unfinished", "--older-than", "0s", "--name", work.total.name, code=1) == []


def test_the_body_of_a_failed_chord(fleet, ask, run):
    header = [fleet.task(work.add).s(1, 1), fleet.task(work.fail).s("broken pipe 2")]
    body = chord(header)(chain(fleet.task(work.total).s(), fleet.task(work.same).s()))
    failed(body)
    (after,) = events_of(fleet, body.id, events.SKIPPED)
    cause = after.details["cause"]
    (part,) = events_of(fleet, cause, events.FAILED)
    assert part.name == work.fail.name and after.name == work.same.name
    rows = ask("timeline", body.id)
    names = [(row["name"], row.get("outcome")) for row in rows if row["kind"] == "task"]
    assert sorted(names) == sorted(
        [
            (work.add.name, events.SUCCEEDED),
            (work.fail.name, events.FAILED),
            (work.total.name, events.SKIPPED),
            (work.same.name, events.SKIPPED),
        ]
    )
    (told,) = (row for row in rows if row["kind"] == "chord")
    assert (told["parts"], told["size"], told["outcome"]) == (2, 2, "failed")
    shown = run("timeline", body.id, app=fleet.app).stdout.splitlines()
    assert "because of" in shown[-1] and cause in shown[-1] and "broken pipe 2" in shown[-1]
    assert [row["task_id"] for row in ask("failures", body.id)] == [body.id, cause]


def result_alone(backend, task_id, error, name=None, **more):
    """A failure without any event, as earlier versions and other hosts leave it."""
    meta = {
        "status": "FAILURE",
        "result": error,
        "traceback": None,
        "children": [],
        "task_id": task_id,
        **more,
    }
    properties = {"content_type": "application/json", "content_encoding": "utf-8"}
    backend.store.put(
        records.RESULTS, json.dumps(meta).encode(), keys=(task_id,), tags=states.FAILURE,
        queue_id=records.queue_of(name), properties=properties | ({"task": name} if name else {}),
    )  # fmt: skip


def test_results_that_earlier_versions_left_of_a_chord(backend, rows, run):
    """The result of the body names the part that failed; the chord knows the name of the body."""
    for number, end in enumerate((events.SUCCEEDED, events.FAILED)):
        exception = "ValueError('broken')" if end == events.FAILED else None
        backend.store.put_many(
            [
                event_message(events.SENT, f"p{number}", "shop.part", None, "g"),
                event_message(end, f"p{number}", "shop.part", None, "g", exception=exception),
            ]
        )
    opened = {"body": {"task": "shop.total", "options": {"task_id": "body"}}, "header": None}
    properties = {"run": "run", "content_type": "application/json", "content_encoding": "utf-8"}
    backend.store.put_many(
        [
            Message(topic=records.CHORDS, body=json.dumps(opened).encode(), keys=("g", "run"), tags="OPEN",
                    properties=properties),
            Message(topic=records.CHORDS, body=b"", keys=("g", "run"), tags="SIZE",
                    properties={"run": "run", "size": "2"}),
        ]
    )  # fmt: skip
    message = ["Dependency p1 raised ValueError('broken')"]
    result_alone(backend, "body", {"exc_type": "ChordError", "exc_message": message, "exc_module": "celery"})
    found = rows("timeline", "body")
    assert sorted((row["task_id"], row["name"]) for row in found[:-1]) == [
        ("body", "shop.total"), ("p0", "shop.part"), ("p1", "shop.part"),
    ]  # fmt: skip
    body = next(row for row in found if row["task_id"] == "body")
    assert (body["outcome"], body["cause"]) == ("FAILURE", "p1") and "Dependency p1" in body["exception"]
    assert (found[-1]["body_id"], found[-1]["body_name"]) == ("body", "shop.total")
    assert "shop.total body" in run("timeline", "p0").stdout
    told = rows("history", "body")
    assert [(row["kind"], row["name"]) for row in told] == [("result", "shop.total"), ("cause", "shop.part")]
    line, why = run("history", "body").stdout.splitlines()
    assert "shop.total" in line and "Dependency p1 raised" in line
    assert "because of  FAILED      p1  shop.part  ValueError('broken')" in why
    assert [(row["task_id"], row["name"]) for row in rows("failures", "body")] == [
        ("body", "shop.total"), ("p1", "shop.part"),
    ]  # fmt: skip


def test_a_task_that_another_host_ran(backend, rows, run):
    error = {"exc_type": "ValueError", "exc_message": ["no"], "exc_module": "builtins"}
    result_alone(backend, "elsewhere", error, "shop.charge", parent_id="p", group_id="g")
    (row,) = rows("timeline", "elsewhere")
    assert (row["name"], row["outcome"], row["exception"]) == ("shop.charge", "FAILURE", "ValueError('no')")
    assert (row["parent_id"], row["group_id"]) == ("p", "g")
    assert "ValueError('no')" in run("timeline", "elsewhere").stdout
    assert [one["name"] for one in rows("failures", "elsewhere")] == ["shop.charge"]
    assert "exception=ValueError('no')" in run("failures", "elsewhere").stdout


CAUSES = (
    {"exc_type": "ChordError"},
    {"exc_type": 7, "exc_message": []},
    {"exc_message": [{}]},
    [1],
    "x",
    None,
)


@pytest.mark.parametrize("error", CAUSES)
def test_crafted_failures(backend, run, error):
    """Circles of causes end, and foreign results are shown as they are."""
    for one, other in (("a", "b"), ("b", "a")):
        text = [f"Dependency {other} raised E()"]
        result_alone(backend, one, {"exc_type": "ChordError", "exc_message": text})
    result_alone(backend, "crafted", error)
    for command in ("history", "timeline", "failures"):
        assert "crafted" in run(command, "crafted").stdout
        assert "because of" in run(command, "a").stdout or command == "failures"


# ------------------------------------------------------------------------------------------------- ids


def test_the_beginning_of_an_id_is_enough(backend, rows, run):
    write(backend.store, runs(3))
    backend.store.put_many([event_message(events.SENT, "child", "app.x", "a-root", "a-group")])
    backend.store_result("result-alone", 7, states.SUCCESS)
    write(backend.store, [event_message(events.SENT, f"same-{n:02}", "app.y") for n in range(30)])
    for words in (
        ["timeline", "chi"],
        ["history", "chi"],
        ["history", "--task-id", "chi"],
        ["diff", "chi", "t1"],
    ):
        assert "child" in run(*words).stdout or words[0] == "diff"
    assert rows("history", "result")[0]["task_id"] == "result-alone"
    assert [row["task_id"] for row in rows("history", "--root-id", "a-r")] == ["child"]
    assert [row["task_id"] for row in rows("history", "--group-id", "a-g")] == ["child"]
    assert "message is not kept" in run("rerun", "chi", code=2).stderr
    done = run("timeline", "t", code=2)
    assert "3 tasks have an id that begins with 't'" in done.stderr
    assert all(f"t{n}  app.task{n}" in done.stderr for n in range(3))
    done = run("history", "same-", code=2)
    assert "more than 20 tasks" in done.stderr and done.stderr.count("app.y") == 20
    for words in (["timeline", "x"], ["history", "x"], ["history", "--root-id", "x"], ["failures", "x"]):
        assert "'x'" in run(*words, code=1).stderr
    assert "give the id once" in run("history", "t1", "--task-id", "t1", code=2).output
    assert "must not be empty" in run("history", "", code=2).output


def test_a_whole_id_is_not_searched_for(backend, run):
    """An id that is the beginning of others is itself."""
    write(backend.store, [event_message(events.SENT, task_id, "app.x") for task_id in ("ab", "abc")])
    assert len(run("timeline", "ab").stdout.splitlines()) == 2


# --------------------------------------------------------------------------------- arguments and results


def test_history_shows_arguments_and_results(backend, run, rows):
    text = "x" * 500
    put = event_message(events.SENT, "t", "app.x", args=f"('{text}',)", kwargs="{'n': 7}")
    backend.store.put_many([put, event_message(events.SENT, "bare", "app.x", args="()", kwargs="{}")])
    backend.store_result("t", {"total": 7, "name": "grüße"}, states.SUCCESS)
    result, sent = run("history", "t").stdout.splitlines()
    assert 'result={"total": 7, "name": "grüße"}' in result
    assert f"args=('{'x' * 118}..." in sent and "kwargs={'n': 7}" in sent
    assert f"args=('{text}',)" in run("history", "t", "--full").stdout.splitlines()[1]
    assert "args" not in run("history", "bare").stdout
    assert rows("history", "t")[0]["result"] == {"total": 7, "name": "grüße"}


def test_unfinished_says_what_counts(backend, run):
    write(backend.store, runs(1))
    done = run("unfinished", "--older-than", "90s", code=1)
    assert "without a new event for 1 min 30 s (--older-than), since 20" in done.stderr
    assert "whose worker was killed counts from its last event" in done.stderr
