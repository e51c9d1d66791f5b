"""Goal: `--all-homes` reads the stores of a fleet on one host as one: each task once, with what any store knows of it.
Method: celery's own program in this process; logs written into the app's store and two stores of a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from celery import Celery, states

import cystore
from cystore.celery.base import events
from cystore.celery.base.identity import known_home_of, store_id_of
from cystore.celery.stores import close_shared
from cystore.ha.status import ReplicationStatus, write_status
from tests.support.celery.logs import event_message, runs, write
from tests.support.ha.ha_pair import free_port, masters, slaves, wait_log, wrote

NAME = "app.task0"
SPAN = ("--limit", "0")


@pytest.fixture
def places(tmp_path, backend):
    """The app's store, and two replicas in a folder, by name."""
    folder = tmp_path / "replicas"
    found = {"own": backend.store.path, "a": folder / "a", "b": folder / "b"}
    for name in "ab":
        with cystore.open(found[name], services="none") as store:
            store_id_of(store)
    write(backend.store, runs(20))
    yield found
    close_shared()


@pytest.fixture
def fleet(url, tmp_path, run, rows):
    """`fleet("history")`: the rows of a command for an app with a folder of replicas."""
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    app.conf.cystore_replicas = str(tmp_path / "replicas")
    import json

    def call(*words: str) -> list[dict]:
        done = run(*words, "--all-homes", "--json", app=app)
        return [json.loads(line) for line in done.stdout.splitlines()]

    call.run = partial(run, app=app)
    return call


def put(path: Path, *messages: cystore.Message) -> None:
    with cystore.open(path, services="none") as store:
        store.put_many(list(messages))


def test_history_names_the_store_of_each_entry(places, fleet, rows):
    put(places["a"], event_message(events.SENT, "elsewhere", NAME))
    put(places["b"], event_message(events.FAILED, "elsewhere", NAME, exception="KeyError(1)"))
    found = fleet("history", "--task-id", "elsewhere")
    assert [(row["state"], row["store"]) for row in found] == [
        (events.FAILED, str(places["b"])),
        (events.SENT, str(places["a"])),
    ]
    assert len(fleet("history", *SPAN)) == 20 * 4 + 2
    assert len(rows("history", *SPAN)) == 20 * 4
    times = [row["time_ms"] for row in fleet("history", *SPAN)]
    assert times == sorted(times, reverse=True)
    assert {row["task_id"] for row in fleet("failures")} == {"elsewhere", "t9", "t19"}
    line = fleet.run("history", "--task-id", "elsewhere", "--limit", "1", "--all-homes").stdout
    assert line.rstrip().endswith(f"store={places['b']}")


def test_a_task_is_unfinished_if_no_store_knows_its_end(places, fleet, rows, backend):
    """Its home is one store, and another host ran it: each log alone has a half."""
    home = known_home_of(backend.store)
    for task_id in ("ended", "hangs", "far"):
        backend.store.put_many([event_message(events.SENT, task_id, NAME)])
        put(places["a"], event_message(events.STARTED, task_id, NAME, home=home))
    put(places["b"], event_message(events.SUCCEEDED, "ended", NAME, home=home))
    put(places["a"], event_message(events.STARTED, "lost", NAME, home="11111111-2222-3333-4444-555555555555"))
    backend.store_result("far", 1, states.SUCCESS)
    words = ("unfinished", "--older-than", "0s")
    assert [row["task_id"] for row in rows(*words)] == ["hangs", "ended"]
    assert [row["task_id"] for row in fleet(*words)] == ["hangs"]
    assert "1 more tasks have their results in other stores" in fleet.run(*words, "--all-homes").stderr


def test_the_other_commands_read_all_stores_too(places, fleet):
    message = partial(event_message, task_id="one", name="app.other", root_id="one")
    put(places["a"], message(events.SENT, args="('order-17',)"), message(events.STARTED))
    put(places["b"], message(events.SUCCEEDED, runtime=30.0, worker="w@b"))
    (found,) = fleet("find", "--args", "order-17")
    assert (found["task_id"], found["outcome"], found["worker"]) == ("one", events.SUCCEEDED, "w@b")
    assert fleet("slow", "--limit", "1")[0]["task_id"] == "one"
    assert {row["name"]: row["count"] for row in fleet("top")}["app.other"] == 1
    (task,) = fleet("timeline", "one")
    assert (task["outcome"], task["wait_s"] >= 0) == (events.SUCCEEDED, True)


def test_each_replica_says_how_fresh_it_is(tmp_path, places, fleet):
    port = free_port()
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "replicas" / "c", **slaves(port)) as slave,
    ):
        master.put_many([event_message(events.SENT, "shipped", NAME)])
        wait_log(slave, wrote(master))
        assert [row["task_id"] for row in fleet("history", "--task-id", "shipped")] == ["shipped"]
    told = f"{slave.path}: not connected to its master; its newest record is of 20"
    assert told in fleet.run("history", "--task-id", "shipped", "--all-homes").stderr
    # Seen: for 10 s after a kill the last status of the killed process was believed.
    write_status(slave.path, ReplicationStatus(master=f"127.0.0.1:{port}", connected=True))
    assert told in fleet.run("history", "--task-id", "shipped", "--all-homes").stderr


def test_each_store_that_is_left_out_is_named(tmp_path, places, fleet):
    folder = tmp_path / "replicas"
    with cystore.open(folder / "no-home", services="none"):
        pass
    (places["b"] / "config" / "storeId").write_text("nonsense")
    with cystore.open(folder / "z-copy", services="none"):
        (folder / "z-copy" / "config" / "storeId").write_text(known_home_of_path(places["a"]))
    put(places["a"], event_message(events.SENT, "there", NAME))
    done = fleet.run("history", "--task-id", "there", "--all-homes")
    assert f"{folder / 'no-home'} is left out: its home is not known yet" in done.stderr
    assert f"{places['b']} is left out: its home is not known yet" in done.stderr
    assert f"{folder / 'z-copy'} is left out: {places['a']} has the same home" in done.stderr


def test_the_own_store_is_left_out_if_it_cannot_be_read(tmp_path, places, fleet):
    """Seen: the command ended, although the replicas could be read."""
    put(places["a"], event_message(events.SENT, "there", NAME))
    close_shared()
    with cystore.open(places["own"], services="none", exclusive=True):
        done = fleet.run("history", "--task-id", "there", "--all-homes")
    assert f"{places['own']} is left out: the app's own store: " in done.stderr
    assert "there" in done.stdout


def test_what_is_missing_is_named(url, run, fleet, tmp_path, places):
    bare = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    assert "cystore_replicas names it" in run("history", "--all-homes", app=bare, code=2).output
    bare.conf.cystore_replicas = "here"
    assert "must be the absolute path" in run("history", "--all-homes", app=bare, code=2).output
    (places["a"] / "config" / "storeId").write_text(known_home_of_path(places["own"]))
    assert "is left out: the app's store keeps the same home" in fleet.run("history", "--all-homes").stderr
    web = Celery("web", broker="memory://", backend="cystore+remote://", set_as_current=False)
    web.conf.cystore_replicas = str(tmp_path / "none")
    assert "there is no store in" in run("history", "--all-homes", app=web, code=2).output
    web.conf.cystore_replicas = str(tmp_path / "replicas")
    assert run("history", "--all-homes", app=web, code=1).stdout == ""


def known_home_of_path(path: Path) -> str:
    with cystore.open(path, read_only=True) as store:
        return known_home_of(store)
