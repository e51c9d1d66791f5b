"""Goal: unfinished, find, slow, diff and timeline tell what the log tells, whatever is in it: retries, late and
repeated events, crafted records, ids of other homes, cleaned logs, huge and foreign text. Method: celery's own
program in this process on a written log."""

from __future__ import annotations

import dataclasses
import json

import pytest
from celery import states

import cystore
from cystore import Message
from cystore.celery.base import events, records
from cystore.celery.commands.tasks import unfinished
from cystore.celery.lifecycle import searches, task_lives
from cystore.clock import now_ms
from tests.support.celery.logs import event_message, runs, write
from tests.support.clock import turn

HOUR_MS = 3_600_000
MIB = 1 << 20
NAME = "app.task0"


@pytest.fixture
def later(monkeypatch, backend):
    """`later(ms)`: the commands find what is put from now on so much later; puts themselves have the real clock."""
    steps = [(0, 0)]
    real = events.Event.of.__func__

    def of(cls, message):
        event = real(cls, message)
        ahead = max(ms for place, ms in steps if place <= event.physical_offset)
        return dataclasses.replace(event, time_ms=event.time_ms + ahead)

    monkeypatch.setattr(events.Event, "of", classmethod(of))
    monkeypatch.setattr(unfinished, "now_ms", lambda: now_ms() + steps[-1][1])
    return lambda ms: steps.append((backend.store.wrote_position, steps[-1][1] + ms))


def rows_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def put(backend, kind, task_id, name=NAME, root=None, group=None, **details):
    backend.store.put_many([event_message(kind, task_id, name, root, group, **details)])


def ids(found):
    return [row["task_id"] for row in found]


# ------------------------------------------------------------------------------------------- unfinished


def test_unfinished(backend, rows, run):
    write(backend.store, runs(20))
    put(backend, events.SENT, "sent", queue="mail")
    put(backend, events.SENT, "begun")
    put(backend, events.STARTED, "begun", worker="w@h")
    put(backend, events.SENT, "again")
    put(backend, events.RETRIED, "again", countdown=0)
    put(backend, events.SENT, "given-back")
    put(backend, events.CHILD_LOST, "given-back", requeue=True)
    found = rows("unfinished", "--older-than", "0s")
    assert ids(found) == ["given-back", "again", "begun", "sent"]
    assert [row["stage"] for row in found] == ["CHILD_LOST", "RETRIED", "STARTED", "SENT"]
    assert found[-1]["queue"] == "mail" and found[-1]["age_s"] >= 0
    assert ids(rows("unfinished", "--older-than", "0s", "--limit", "1")) == ["given-back"]
    assert len(run("unfinished", "--older-than", "0s").stdout.splitlines()) == 4
    assert "no unfinished task" in run("unfinished", code=1).stderr
    assert "90s, 15m, 2h" in run("unfinished", "--older-than", "soon", code=2).output


def test_what_counts_as_unfinished(backend, rows):
    """A publisher tells of its message when it is out: a quick task has ended by then. A result is an end, too:
    events may be lost. What is due later than now waits, and is not stuck."""
    put(backend, events.STARTED, "quick")
    put(backend, events.SUCCEEDED, "quick")
    put(backend, events.SENT, "quick")
    put(backend, events.STARTED, "result-alone")
    backend.store_result("result-alone", 1, states.SUCCESS)
    put(backend, events.SENT, "due-later", eta="2999-01-01T00:00:00+00:00")
    put(backend, events.SENT, "was-due", eta="2020-01-01T00:00:00+00:00")
    put(backend, events.SENT, "tries-later")
    put(backend, events.RETRIED, "tries-later", countdown=7200)
    put(backend, events.STARTED, "twice")
    put(backend, events.SUCCEEDED, "twice")
    put(backend, events.REDELIVERED, "twice")
    put(backend, events.STARTED, "twice")
    assert ids(rows("unfinished", "--older-than", "0s")) == ["twice", "was-due"]


def test_retry_that_is_told_late(backend, rows):
    """Seen: a child sends the next message, and tells of its RETRIED when another child has done the next try."""
    for kind, tries in (
        (events.SENT, 0), (events.STARTED, 0), (events.SENT, 1), (events.STARTED, 1), (events.SUCCEEDED, 0),
        (events.RETRIED, 0),
    ):  # fmt: skip
        put(backend, kind, "t", retries=tries or None)
    put(backend, events.SENT, "open")
    put(backend, events.SENT, "open", retries=1)
    put(backend, events.RETRIED, "open")
    found = rows("unfinished", "--older-than", "0s")
    assert [(row["task_id"], row["stage"], row["retries"]) for row in found] == [("open", events.SENT, 1)]


def test_tasks_of_other_homes_are_counted_apart(backend, run):
    put(backend, events.SENT, "elsewhere", home="6c5ab5a3-7a8c-4c8e-9d0f-3b1f6a1f8f44")
    done = run("unfinished", "--older-than", "0s", code=1)
    assert done.stdout == ""
    assert "1 more tasks have their results in other stores" in done.stderr


def test_age_is_that_of_the_last_sign(backend, rows, run, later):
    put(backend, events.SENT, "old")
    put(backend, events.SENT, "old-but-begun")
    later(2 * HOUR_MS)
    put(backend, events.STARTED, "old-but-begun")
    put(backend, events.SENT, "new")
    assert ids(rows("unfinished")) == ["old"]
    run("unfinished", "--older-than", "3h", code=1)


def test_few_ids_are_remembered(backend, rows, monkeypatch):
    """A long log: what a pass does not remember any more it looks up."""
    monkeypatch.setattr(task_lives, "IDS_KEPT", 3)
    write(backend.store, runs(10))
    put(backend, events.SENT, "open")
    write(backend.store, runs(10, first=10))
    write(backend.store, [event_message(events.SENT, f"t{n}", NAME) for n in range(5)])
    assert ids(rows("unfinished", "--older-than", "0s")) == ["open"]
    assert ids(rows("slow", "--by", "wait", "--limit", "3")) != []


# ------------------------------------------------------------------------------------------------- find


def test_find(backend, rows, run):
    write(backend.store, runs(40))
    assert ids(rows("find", "--args", "(17,)")) == ["t17"]
    assert ids(rows("find", "--error", "ValueError(2")) == ["t29"]
    assert ids(rows("find", "--error", "Traceback", "--limit", "2")) == ["t39", "t29"]
    assert ids(rows("find", "--error", "valueerror", "-i", "--task", "app.task1")) == ["t29", "t9"]
    assert ids(rows("find", "--args", "39", "--error", "39")) == ["t39"]
    run("find", "--args", "38", "--error", "39", code=1)
    assert "give --args TEXT" in run("find", code=2).output
    (line,) = run("find", "--error", "ValueError(39)").stdout.splitlines()
    assert "FAILED" in line and "(39)" in line and "ValueError(39)" in line


def test_find_in_results_and_foreign_text(backend, rows):
    backend.store_result("r", ValueError("Straße ist zu"), states.FAILURE, traceback="Zeile 7")
    put(backend, events.SENT, "u", args="('größe', '\U0001f9ca')")
    assert ids(rows("find", "--error", "STRASSE", "-i")) == ["r"]
    assert ids(rows("find", "--error", "Zeile 7")) == ["r"]
    assert ids(rows("find", "--args", "größe', '\U0001f9ca")) == ["u"]


LARGE = (10**400, 1e308, float("inf"))
ODD = [
    *({field: value} for field in ("runtime", "pid", "retries", "countdown") for value in LARGE),
    {"parent_id": "\ud800"},
    {"exception": "No such file: '/tmp/\udcff'"},
    {"eta": "9999-12-31T23:59:59+00:00"},
]


@pytest.mark.parametrize("details", ODD, ids=lambda details: "".join(details))
def test_an_odd_detail_of_one_event_ends_no_command(backend, run, details):
    """Seen: OverflowError in `timeline` and `top` for a number, and a timeline that was refused for a parent's id."""
    write(backend.store, runs(10))
    for kind in (events.SENT, events.STARTED, events.RETRIED, events.STARTED, events.FAILED):
        put(backend, kind, "odd", **details)
    assert "odd" in run("timeline", "odd").stdout
    for command in ("history", "failures", "top", "slow"):
        assert NAME in run(command).stdout


# ------------------------------------------------------------------------------------------------- slow


def test_slow(backend, rows, run, later):
    write(backend.store, runs(40))
    found = rows("slow", "--limit", "3")
    assert [(row["task_id"], row["run_s"]) for row in found] == [
        ("t39", 0.04),
        ("t38", 0.039),
        ("t37", 0.038),
    ]
    assert [row["name"] for row in rows("slow", "--each-name")] == [f"app.task{n}" for n in (3, 2, 1, 0)]
    for task_id, wait_ms in (("w1", 5000), ("w2", 9000)):
        put(backend, events.SENT, task_id)
        later(wait_ms)
        put(backend, events.STARTED, task_id)
    waits = rows("slow", "--by", "wait", "--limit", "2")
    assert ids(waits) == ["w2", "w1"]
    assert 9 <= waits[0]["wait_s"] < 300
    assert "w2" in run("slow", "--by", "wait", "--limit", "1").stdout.splitlines()[1]
    assert "--limit" in run("slow", "--limit", "0", code=2).output
    assert rows_of(run("slow", "--task", "none", "--json", code=1)) == []


def once(backend, later, *, end, name=NAME, runtime=None, wait_ms=0, pid=7, tries=None, **details):
    """One delivery of a message under one id, from its sending to its end."""
    put(backend, events.SENT, "again", name, args=f"({runtime},)", retries=tries)
    later(wait_ms)
    for kind in (events.RECEIVED, events.STARTED):
        put(backend, kind, "again", name, worker="w@h", pid=pid, retries=tries)
    put(backend, end, "again", name, worker="w@h", pid=pid, runtime=runtime, **details)


FACTS = ("name", "outcome", "args", "retries", "exception")


def test_slow_shows_each_run_of_an_id_that_is_used_again(backend, rows, run, later):
    """Seen: each row had the name, state, arguments and begin of the last run, and waits like "5.68 s" for 0.12."""
    once(backend, later, end=events.FAILED, runtime=0.5, wait_ms=3_000, exception="E(1)", pid=1)
    later(60_000)
    once(backend, later, end=events.RETRIED, runtime=0.7, wait_ms=9_000, pid=2)
    once(backend, later, end=events.FAILED, runtime=1.5, wait_ms=1_000, exception="E(2)", pid=3, tries=1)
    later(120_000)
    once(backend, later, end=events.SUCCEEDED, runtime=2.5, wait_ms=6_000, name="app.other", pid=4)
    found = rows("slow")
    assert [tuple(row.get(fact) for fact in FACTS) for row in found] == [
        ("app.other", "SUCCEEDED", "(2.5,)", 0, None),
        (NAME, "FAILED", "(1.5,)", 1, "E(2)"),
        (NAME, "FAILED", "(0.5,)", 0, "E(1)"),
    ]
    assert [row["pid"] for row in found] == [4, 3, 1]
    for row, wait_s in zip(found, (6, 1, 3), strict=True):
        assert wait_s <= row["wait_s"] < wait_s + 1
        assert row["sent_ms"] <= row["received_ms"] <= row["started_ms"] <= row["ended_ms"]
    assert len({row["started_ms"] for row in found}) == 3
    waits = rows("slow", "--by", "wait")
    assert [int(row["wait_s"]) for row in waits] == [9, 6, 3, 1]
    assert [row["pid"] for row in waits] == [2, 4, 1, 3]
    assert "app.other" in run("slow", "--limit", "1").stdout
    (shown,) = rows("timeline", "again")
    assert (shown["name"], shown["outcome"], shown["pid"]) == ("app.other", "SUCCEEDED", 4)
    assert 6 <= shown["wait_s"] < 7


def test_a_message_that_comes_again_does_not_wait_since_it_was_sent(backend, rows, later):
    """Its code had begun. What it waited for then is known: since its message went back, or since it came again."""
    put(backend, events.SENT, "back")
    put(backend, events.STARTED, "back", worker="w@h", pid=1)
    later(60_000)
    put(backend, events.CHILD_LOST, "back", worker="w@h", pid=1, requeue=True)
    later(2_000)
    put(backend, events.REDELIVERED, "back", worker="w@h")
    put(backend, events.STARTED, "back", worker="w@h", pid=2)
    put(backend, events.SUCCEEDED, "back", worker="w@h", pid=2, runtime=1)
    put(backend, events.SENT, "prefetched")
    put(backend, events.RECEIVED, "prefetched", worker="w@h")
    later(5_000)
    put(backend, events.REDELIVERED, "prefetched", worker="v@h")
    put(backend, events.STARTED, "prefetched", worker="v@h", pid=3)
    put(backend, events.SUCCEEDED, "prefetched", worker="v@h", pid=3, runtime=0.5)
    assert [(row["task_id"], int(row["wait_s"])) for row in rows("slow")] == [("back", 2), ("prefetched", 5)]
    assert [(row["task_id"], int(row["wait_s"])) for row in rows("slow", "--by", "wait")] == [
        ("prefetched", 5), ("back", 2), ("back", 0),
    ]  # fmt: skip
    (shown,) = rows("timeline", "back")
    assert int(shown["wait_s"]) == 2 and shown["retries"] == 0
    (found,) = rows("diff", "back", "prefetched")
    assert [int(one) for one in found["wait_s"]] == [2, 5] and found["whole_s"][0] < 3


def test_an_end_belongs_to_the_run_of_its_process(backend, rows):
    """Two workers run one message at the same time, because the visibility timeout is too short."""
    put(backend, events.SENT, "twice")
    put(backend, events.RECEIVED, "twice", worker="a@h")
    put(backend, events.STARTED, "twice", worker="a@h", pid=1)
    put(backend, events.REDELIVERED, "twice", worker="b@h")
    put(backend, events.STARTED, "twice", worker="b@h", pid=2)
    put(backend, events.SUCCEEDED, "twice", worker="a@h", pid=1, runtime=3)
    put(backend, events.FAILED, "twice", worker="b@h", pid=2, runtime=2, exception="E()")
    found = [(row["run_s"], row["worker"], row["pid"], row["outcome"]) for row in rows("slow")]
    assert found == [(3, "a@h", 1, "SUCCEEDED"), (2, "b@h", 2, "FAILED")]


def test_a_success_that_names_no_try_ends_the_newest_started_one(backend, rows):
    """As versions before this one wrote it."""
    for tries in (None, 1, 2):
        for kind in (events.SENT, events.RECEIVED, events.STARTED):
            put(backend, kind, "t", retries=tries, worker="w@h", pid=7)
        if tries != 2:
            put(backend, events.RETRIED, "t", retries=tries, worker="w@h", pid=7, runtime=1)
    put(backend, events.SUCCEEDED, "t", worker="w@h", pid=7, runtime=2)
    (found,) = rows("slow")
    assert (found["retries"], found["outcome"], found["run_s"]) == (2, "SUCCEEDED", 2)
    assert rows("timeline", "t")[0]["retries"] == 2
    assert rows("top")[0]["retried"] == 2


def test_a_run_before_very_many_others_is_found(backend, rows, monkeypatch):
    monkeypatch.setattr(task_lives, "ENTRIES_KEPT", 8)
    for number in range(6):
        write(backend.store, [
            event_message(kind, "t", NAME, pid=number, args=f"({number},)", runtime=runtime)
            for kind, runtime in ((events.SENT, None), (events.STARTED, None), (events.FAILED, 10 - number))
        ])  # fmt: skip
    assert [(row["run_s"], row["pid"], row["args"]) for row in rows("slow")] == [
        (10 - number, number, f"({number},)") for number in range(6)
    ]


def test_wait_of_a_task_that_was_due_later(backend, rows, later):
    put(backend, events.SENT, "due", eta="2020-01-01T00:00:00+00:00")
    later(1000)
    put(backend, events.STARTED, "due")
    assert rows("slow", "--by", "wait")[0]["wait_s"] >= 1


# ------------------------------------------------------------------------------------------------- diff


def test_diff(backend, rows, run):
    write(backend.store, runs(40))
    (found,) = rows("diff", "t38", "t39")
    assert found["args"] == ["(38,)", "(39,)"]
    assert found["outcome"] == ["SUCCEEDED", "FAILED"]
    assert found["runtime_s"] == [0.039, 0.04]
    assert "worker" not in found
    assert rows("diff", "t38", "t39", "--all")[0]["worker"] == ["w@h", "w@h"]
    lines = run("diff", "t38", "t39").stdout.splitlines()
    assert lines[2].startswith("args ") and lines[2].endswith("- (38,)") and lines[3].endswith("+ (39,)")
    assert "the store knows no task 'none'" in run("diff", "t1", "none", code=1).stderr


def test_diff_of_huge_arguments_shows_where_they_differ(backend, run):
    for task_id, end in (("a", "red"), ("b", "blue")):
        put(backend, events.SENT, task_id, args="x" * 100_000 + end)
    lines = run("diff", "a", "b").stdout.splitlines()
    assert lines[-2].endswith("xred") and lines[-1].endswith("xblue")
    assert max(map(len, lines)) < 200


# --------------------------------------------------------------------------------------------- timeline


def tree(backend):
    put(backend, events.SENT, "root", "shop.order")
    put(backend, events.STARTED, "root", "shop.order", worker="w@h")
    for number in range(3):
        put(backend, events.SENT, f"c{number}", "shop.item", "root", "g", parent_id="root")
        put(backend, events.STARTED, f"c{number}", "shop.item", "root", "g", parent_id="root")
        put(backend, events.SUCCEEDED, f"c{number}", "shop.item", "root", "g", runtime=0.25)
    put(backend, events.SENT, "below", "shop.mail", "root", parent_id="c1")
    put(backend, events.SUCCEEDED, "root", "shop.order", runtime=2)


def test_timeline(backend, rows, run):
    tree(backend)
    found = rows("timeline", "c1")
    assert [(row["depth"], row["task_id"]) for row in found] == [
        (0, "root"), (1, "c0"), (1, "c1"), (2, "below"), (1, "c2"),
    ]  # fmt: skip
    assert found[0]["outcome"] == "SUCCEEDED" and found[3]["stage"] == "SENT"
    lines = run("timeline", "c1").stdout.splitlines()
    assert [line[0] for line in lines[1:]] == [" ", " ", "*", " ", " "]
    assert "waited" in lines[2] and "ran 250 ms" in lines[2] and "group g" in lines[2]
    done = run("timeline", "c1", "--limit", "3")
    assert len(done.stdout.splitlines()) == 4 and "more than 3 tasks" in done.stderr


def step(tag, **properties):
    return Message(
        topic=records.CHORDS, body=b"1" if tag == "PART" else b"", keys=("g", "run"), tags=tag,
        properties={"run": "run", **properties},
    )  # fmt: skip


def steps_of_a_chord(parts):
    steps = [step("PART", task_id=part, index=str(n), state="SUCCESS") for n, part in enumerate(parts)]
    return [step("SIZE", size=str(len(parts))), *steps]


def test_chord_of_a_timeline(backend, rows, run):
    tree(backend)
    backend.store.put_many(steps_of_a_chord([f"c{n}" for n in range(3)]))
    assert (
        "3 of 3 parts" in run("timeline", "root").stdout and "body not sent" in run("timeline", "root").stdout
    )
    backend.store.put_many([step("DONE", claim="x", outcome="sent"), step("SIZE", size="no number")])
    chord = rows("timeline", "below")[-1]
    assert (chord["kind"], chord["parts"], chord["size"], chord["outcome"]) == ("chord", 3, 3, "sent")


def test_parts_of_a_chord_that_a_program_sent(backend, rows):
    """Each part has a root of its own there; the parts of a plain group are not shown."""
    for number in range(3):
        put(backend, events.SENT, f"p{number}", "shop.item", f"p{number}", "g")
        put(backend, events.SENT, f"sub{number}", "shop.mail", f"p{number}", parent_id=f"p{number}")
        put(backend, events.SENT, f"plain{number}", "shop.item", f"plain{number}", "other group")
    backend.store.put_many(steps_of_a_chord([f"p{n}" for n in range(3)]))
    found = rows("timeline", "p1")
    assert sorted(ids(found[:-1])) == ["p0", "p1", "p2", "sub0", "sub1", "sub2"]
    assert (found[0]["task_id"], found[-1]["parts"]) == ("p1", 3)
    assert ids(rows("timeline", "plain1")) == ["plain1"]


def test_deep_and_circular_workflows(backend, rows):
    """A long chain, and parents that lead in a circle, end: nothing here calls itself."""
    chain = [event_message(events.SENT, "n0", NAME)]
    chain += [event_message(events.SENT, f"n{n}", NAME, "n0", parent_id=f"n{n - 1}") for n in range(1, 1500)]
    write(backend.store, chain)
    assert rows("timeline", "n1499", "--limit", "2000")[-1]["depth"] == 1499
    put(backend, events.SENT, "x", parent_id="y")
    put(backend, events.SENT, "y", root="x", parent_id="x")
    put(backend, events.SENT, "self", parent_id="self")
    assert sorted(ids(rows("timeline", "y"))) == ["x", "y"]
    assert ids(rows("timeline", "self")) == ["self"]


def test_parent_that_the_log_has_no_more(backend, run):
    put(backend, events.SENT, "child", root="gone", parent_id="gone")
    assert "sent by gone, which this store does not know" in run("timeline", "child").stdout


# ---------------------------------------------------------------------------------------------- cleaned


def test_a_log_whose_beginning_was_cleaned(backend, run, rows, monkeypatch):
    """Of most tasks the first events are gone with their segments; of some all but the end, or all."""
    put(backend, events.SENT, "whole-gone", parent_id="root")
    put(backend, events.SENT, "half-gone")
    with cystore.open(backend.store.path) as other:
        end = other.wrote_position
        while other.wrote_position < end + 70 * MIB:
            other.put("filler", bytes(3 * MIB))
        other.dispatch()
        other.flush()
        put(backend, events.STARTED, "half-gone", runtime=1)
        put(backend, events.SENT, "after", root="whole-gone", parent_id="whole-gone")
        turn(monkeypatch, 10_000 * HOUR_MS)
        assert other.clean().segments
        monkeypatch.undo()
    assert ids(rows("unfinished", "--older-than", "0s")) == ["after", "half-gone"]
    assert [row["task_id"] for row in rows("timeline", "after")] == ["after"]
    assert rows("diff", "half-gone", "after")[0]["stage"] == [events.STARTED, events.SENT]
    run("timeline", "whole-gone", code=1)
    run("find", "--args", "x", code=1)
    assert rows_of(run("slow", "--by", "wait", "--json", code=1)) == []


# ---------------------------------------------------------------------------------------------- crafted


CRAFTED = (
    b"", b"null", b"[1]", b"{", b"\xff\xfe", b'{"v":1}' + b" " * 10, b"[" * 100_000,
    json.dumps({"args": 7, "kwargs": [1], "runtime": "x", "retries": -3, "pid": {}, "eta": "x",
                "worker": None}).encode(),
    b'{"runtime":NaN,"retries":1e999,"countdown":1e308,"eta":7,"parent_id":["a"],"exception":{"a":1},"home":0}',
    b'{"args":"\\ud800 \\u0000 \\u001b[2J","exception":"\\udfff","worker":"\\ud800","parent_id":"\\ud800"}',
    b'{"runtime":true,"requeue":"yes","eta":"9999-12-31T23:59:59+00:00","countdown":123456789012345678901234567890}',
)  # fmt: skip


def test_crafted_records(backend, run, rows):
    """Anybody who may write to the store may write anything under these topics."""
    kinds = (*task_lives.BEGINS, *task_lives.ENDS, "STRANGE", None)
    backend.store.put_many(
        [
            Message(
                topic=events.EVENTS, body=body, queue_id=records.queue_of(NAME), tags=kind,
                keys=(f"k{number}",) if number % 3 else (), properties={"task": NAME} if number % 2 else {},
            )
            for number, body in enumerate(CRAFTED)
            for kind in kinds
        ]
    )  # fmt: skip
    backend.store.put_many(
        [Message(topic=records.RESULTS, body=body, keys=("k1",), tags="FAILURE",
                 properties={"content_type": "application/json",
                             "content_encoding": "utf-8"}) for body in CRAFTED if body]
    )  # fmt: skip
    for words in (
        ["unfinished", "--older-than", "0s", "--limit", "0"], ["find", "--args", "x"], ["find", "--error", "x"],
        ["slow"],
        ["slow", "--by", "wait"], ["diff", "k1", "k8"], ["diff", "k1", "k10", "--all"], ["timeline", "k8"],
        ["timeline", "k10"],
    ):  # fmt: skip
        for more in ([], ["--json"]):
            done = run(*words, *more, code=None)
            assert done.exit_code in (0, 1)
            assert "\x1b" not in done.stdout


def test_strange_ids(backend, rows):
    for task_id in ("a b", "100%", "ключ", "x" * 5000, "a\x01b"):
        put(backend, events.SENT, task_id)
        assert ids(rows("timeline", task_id)) == [task_id]
    assert len(rows("unfinished", "--older-than", "0s")) == 5


def test_limits_of_the_slowest():
    slowest = searches.Slowest(2, by_name=False)
    for number in range(1000):
        slowest.add(number % 7, number, f"t{number}", "n")
    assert [seconds for seconds, _ in slowest.found()] == [6, 6]
