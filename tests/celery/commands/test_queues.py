"""Goal: people see what waits in a broker in a store, and can empty, move and drain its queues; no message is lost.
Method: celery's own program on a store that is the broker; a real Redis on the other side; kills between the two."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys

import pytest
from celery import Celery
from kombu import Connection

from cystore.celery.stores import close_shared
from cystore.consumers.claims import _STATE_AT
from tests.support.process import Process


@pytest.fixture
def app(url):
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


@pytest.fixture
def call(run, app):
    return lambda *words, **more: run(*words, app=app, **more)


@pytest.fixture
def listed(call):
    return lambda: {one["name"]: one for one in map(json.loads, call("queues", "--json").stdout.splitlines())}


def send(app: Celery, count: int, queue: str = "celery", **options) -> list[str]:
    sent = []
    for number in range(count):
        sent.append(app.send_task("shop.pack", (number,), queue=queue, **options).id)
    return sent


def test_what_waits_who_has_it_and_since_when(app, call, listed, tmp_path):
    sent = send(app, 5)
    send(app, 2, "slow", priority=3)
    with Process() as worker:
        worker.do(
            "import kombu_cystore\nfrom kombu import Connection\n"
            "channel = Connection(url).channel()\n"
            "taken = [channel.basic_get('celery') for _ in range(2)]",
            url=f"cystore://{tmp_path}/store",
        )
        found = listed()
        assert {name: (one["ready"], one["claimed"]) for name, one in found.items()} == {
            "celery": (3, 2),
            "slow": (2, 0),
        }
        (holder,) = found["celery"]["holders"]
        assert (holder["pid"], holder["messages"]) == (worker.pid, 2)
        assert holder["since_ms"] > 0 and "python" in holder["command"]
        assert found["celery"]["put_rate"] > 0 and found["celery"]["settled_rate"] == 0
        assert found["celery"]["oldest_ms"] <= found["slow"]["oldest_ms"]
        shown = call("queues").stdout
        assert f"celery: 2 claimed by process {worker.pid} (" in shown
        worker.do("taken[0].ack(); taken[1].requeue()")
        assert listed()["celery"]["settled_rate"] > 0
    peeked = [json.loads(line) for line in call("queue", "peek", "celery", "--json").stdout.splitlines()]
    assert [one["task_id"] for one in peeked] == sent[1:], "the one that was given back is the next one"
    assert peeked[0]["body"][0] == [1]
    assert len(call("queue", "peek", "celery", "--limit", "2").stdout.splitlines()) == 2
    assert "shop.pack" in call("queue", "peek", "celery", "--limit", "1").stdout


def test_a_claimed_message_of_a_process_that_ended_is_told(app, call, listed, tmp_path):
    send(app, 1)
    with Process() as worker:
        worker.do(
            "import kombu_cystore\nfrom kombu import Connection\nchannel = Connection(url).channel()\n"
            "taken = channel.basic_get('celery')",
            url=f"cystore://{tmp_path}/store",
        )
        worker.kill()
    assert listed()["celery"]["holders"][0]["command"] == ""
    assert "ended since" in call("queues").stdout


def test_purge_and_move(app, call, listed):
    sent = send(app, 6)
    assert json.loads(call("queue", "move", "celery", "slow", "--limit", "4", "--json").stdout)["moved"] == 4
    assert {name: one["ready"] for name, one in listed().items()} == {"celery": 2, "slow": 4}
    peeked = [json.loads(line) for line in call("queue", "peek", "slow", "--json").stdout.splitlines()]
    assert [one["task_id"] for one in peeked] == sent[:4]
    assert peeked[0]["headers"]["task"] == "shop.pack"
    assert "2 messages were dropped" in call("queue", "purge", "celery").stdout
    assert listed()["celery"]["ready"] == 0
    assert "no message of 'celery' is ready" in call("queue", "peek", "celery", code=1).output


def test_what_cannot_be_done_is_said(app, call, run, url):
    other = Celery("other", broker="memory://", backend=url, set_as_current=False)
    other.backend.store_result("id", 1, "SUCCESS")
    assert "needs a broker in a store" in run("queues", app=other, code=2).output
    send(app, 1)
    for words in (
        ("queue", "peek", "cellery"),
        ("queue", "purge", "cellery"),
        ("queue", "move", "cellery", "a"),
    ):
        assert "no queue 'cellery'; did you mean celery?" in call(*words, code=2).output
    assert "is both queues" in call("queue", "move", "celery", "celery", code=2).output
    gone = call("move", "--to", "redis://127.0.0.1:1/0", code=2).output
    assert "does not take the messages" in gone and "The other messages stay" in gone
    assert "1 messages were dropped" in call("queue", "purge", "celery").stdout


def of_redis(redis_url: str, name: str) -> list:
    with Connection(redis_url) as connection, connection.channel() as channel:
        found = []
        while message := channel.basic_get(name):
            message.ack()
            found.append(message)
        return found


def test_a_move_into_redis_and_the_rest_after_the_worker_has_ended(app, call, listed, redis, tmp_path):
    other = Connection(redis.broker_url)
    other.channel().client.flushdb()
    app.conf.task_compression = "zlib"
    sent = send(app, 70)
    send(app, 3, "slow", priority=4, expires=3600, headers={"mine": "yes"})
    with Process() as worker:
        worker.do(
            "import kombu_cystore\nfrom kombu import Connection\nchannel = Connection(url).channel()\n"
            "taken = channel.basic_get('celery')",
            url=f"cystore://{tmp_path}/store",
        )
        done = call("move", "--to", redis.broker_url, "--json", code=1)
        assert "celery: 1 messages stay, because a worker has them" in done.output
        worker.kill()
    told = call("move", "--to", redis.broker_url).stdout
    assert "celery  1 messages moved" in told and "slow  0 messages" in told
    assert all(one["ready"] == one["claimed"] == 0 for one in listed().values())
    found = of_redis(redis.broker_url, "celery")
    assert [one.headers["id"] for one in found] == [*sent[1:], sent[0]]
    assert [one.payload[0] for one in found] == [[number] for number in (*range(1, 70), 0)]
    slow = of_redis(redis.broker_url, "slow")
    assert [one.headers["mine"] for one in slow] == ["yes"] * 3
    assert [one.properties["priority"] for one in slow] == [4] * 3
    assert all(3_000_000 < float(one.properties["expiration"]) < 3_600_000 for one in slow), (
        "what is left of an hour"
    )
    assert not any("cystore_claim" in one.properties for one in (*found, *slow))


MOVING = "from cystore.celery.move.__main__ import main\n"


def test_a_kill_at_each_place_loses_nothing(app, redis, tmp_path, build_environment):
    """Killed before and after each settlement, and between it and the publication, the move begins again; each message
    comes at most once more."""
    other = Connection(redis.broker_url)
    other.channel().client.flushdb()
    sent = send(app, 12)
    app.close()
    close_shared()
    kills = 0
    words = [str(tmp_path / "store"), "--to", redis.broker_url]
    for place in (
        "claims.emptied:3",
        "move.published:2",
        "claims.placed:1",
        "claims.emptied:1",
        "move.published:1",
    ):
        with Process(build_environment("failpoints")) as mover:
            mover.send(
                f"import os\nos.environ['CYSTORE_FAILPOINT'] = place\n{MOVING}main(words)",
                place=place,
                words=words,
            )
            assert mover.wait() == -signal.SIGKILL
            kills += 1
    done = subprocess.run(
        [sys.executable, "-m", "cystore.celery.move", *words], env=os.environ, text=True, capture_output=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["held"] == 0
    found = [one.headers["id"] for one in of_redis(redis.broker_url, "celery")]
    assert set(found) == set(sent)
    assert len(found) - len(sent) <= kills


def test_a_damaged_file_of_claims_is_not_believed(app, listed, tmp_path):
    """Its next user makes it again from the log."""
    send(app, 3)
    app.close()
    (path,) = (one for one in (tmp_path / "store" / "claims").iterdir() if one.name != "owners")
    with open(path, "r+b") as file:
        file.seek(_STATE_AT)
        file.write(struct.pack("<q", 10**12))
    assert listed()["celery"]["ready"] == 3


def test_a_move_into_the_same_store_is_refused(app, call, listed, url, tmp_path):
    send(app, 2)
    (tmp_path / "other_name").symlink_to(tmp_path / "store")
    for same in (url, f"cystore://{tmp_path}/other_name"):
        assert "both brokers are this store" in call("move", "--to", same, code=2).output
    assert listed()["celery"]["ready"] == 2


def test_a_broker_that_fails_in_the_middle_gets_the_rest_later(app, call, listed, redis, monkeypatch):
    other = Connection(redis.broker_url)
    other.channel().client.flushdb()
    sent, published = send(app, 10), []
    carrying = sys.modules["cystore.celery.move.carry"]
    publish = carrying._publish

    def fails(*arguments):
        if len(published) == 4:
            raise ConnectionResetError("the other side went away")
        published.append(arguments)
        publish(*arguments)

    monkeypatch.setattr(carrying, "_publish", fails)
    assert "the other side went away" in call("move", "--to", redis.broker_url, code=2).output
    assert (listed()["celery"]["ready"], listed()["celery"]["claimed"]) == (6, 0)
    monkeypatch.undo()
    call("move", "--to", redis.broker_url)
    assert [one.headers["id"] for one in of_redis(redis.broker_url, "celery")] == sent
