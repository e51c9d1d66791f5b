"""Goal: a consumer of a broker in a store goes on whatever happens beside it: another one is killed under steady
traffic or under the same name, a message is damaged, a callback raises, the process has many files open. Method:
kombu's connections on one store, in this process and in others that are killed."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from cystore import MessageIllegalError, StoreFormatError
from cystore.clock import monotonic_s
from tests.celery.conftest import PATIENCE_S
from tests.celery.transport.test_channel import connect, got, put, url  # noqa: F401 - fixtures
from tests.support.process import Process

NEWS = Exchange("news", type="fanout")
HOLDS = """
import kombu_cystore
from kombu import Connection
connection = Connection(url)
message = connection.SimpleQueue("q").get(timeout=60)
"""
LISTENS = """
import kombu_cystore
from kombu import Connection, Consumer, Exchange, Queue
connection = Connection(url)
queue = Queue("w.pidbox", Exchange("news", type="fanout"), exclusive=True)
consumer = Consumer(connection, queue, no_ack=True, callbacks=[print])
consumer.consume()
"""


def killed_after(source: str, url: str) -> None:  # noqa: F811
    with Process() as other:
        other.do(source, url=url)


def listen(connection: Connection, name: str, heard: list) -> Consumer:
    consumer = Consumer(connection, Queue(name, NEWS, exclusive=True), no_ack=True,
                        callbacks=[lambda body, _: heard.append(body)])  # fmt: skip
    consumer.consume()
    return consumer


def drain_until(connection: Connection, wanted) -> None:
    until_s = monotonic_s() + PATIENCE_S
    while not wanted():
        assert monotonic_s() < until_s, "it did not come"
        try:
            connection.drain_events(timeout=0.1)
        except TimeoutError:
            continue


def test_a_killed_owners_message_comes_back_under_steady_traffic(url, connect):  # noqa: F811
    """The bell asks who lives in an idle worker alone."""
    mine, seen = connect(), []
    put(mine, "the killed one's")
    killed_after(HOLDS, url)

    def take(body, message) -> None:
        seen.append(body)
        message.ack()
        put(mine, len(seen))  # so it is never idle

    with Consumer(mine, Queue("q"), callbacks=[take]):
        put(mine, "first")
        drain_until(mine, lambda: "the killed one's" in seen)


def test_a_program_without_a_bell_gets_a_killed_owners_message(url, connect):  # noqa: F811
    """At most a second later: so often it asks who lives."""
    mine = connect()
    put(mine, "a")
    killed_after(HOLDS, url)
    until_s = monotonic_s() + PATIENCE_S
    while not (found := got(mine)) and monotonic_s() < until_s:
        pass
    assert found == ["a"]


def test_a_listener_takes_the_name_of_a_killed_one(url, connect):  # noqa: F811
    """It hears nothing of what was said before, and the next declaration by anybody does not remove it."""
    speaker, heard = connect(), []
    with Process() as other:
        other.do(LISTENS, url=url)
        Producer(speaker, NEWS).publish("shutdown")
    mine = connect()
    with listen(mine, "w.pidbox", heard), listen(connect(), "v.pidbox", []):
        Producer(speaker, NEWS).publish("ping")
        drain_until(mine, lambda: heard)
    assert heard == ["ping"]


def test_a_listener_leaves_out_a_damaged_message(url, connect, tmp_path, caplog):  # noqa: F811
    mine, speaker, heard = connect(), connect(), []
    with listen(mine, "a", heard):
        for number in range(5):
            Producer(speaker, NEWS).publish(f"message {number}")
        speaker.transport.store.catch_up()
        with open(tmp_path / "store" / "commitlog" / f"{0:020}", "r+b") as log:
            log.seek(log.read(1 << 16).index(b"message 2"))
            log.write(b"damaged!!")
        drain_until(mine, lambda: len(heard) == 4)
    assert heard == [f"message {number}" for number in (0, 1, 3, 4)]
    assert "is left out" in caplog.text


@pytest.mark.parametrize("everybody", [True, False], ids=["to all", "to one"])
def test_a_callback_that_raises_keeps_no_message_from_the_next_turn(url, connect, everybody):  # noqa: F811
    mine, speaker, seen = connect(), connect(), []

    def take(body, message) -> None:
        seen.append(body)
        message.ack()
        if body == 1:
            raise RuntimeError("mine")

    queue = Queue("a", NEWS, exclusive=True) if everybody else Queue("q")
    with Consumer(mine, queue, callbacks=[take]):
        for number in range(5):
            if everybody:
                Producer(speaker, NEWS).publish(number)
            else:
                put(speaker, number)
        with pytest.raises(RuntimeError, match="mine"):
            drain_until(mine, lambda: False)
        drain_until(mine, lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4]


def test_a_process_with_many_files_listens(url, connect):  # noqa: F811
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048
    if hard < wanted:
        pytest.fail(f"this test needs a limit of {wanted} open files, not {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        mine, seen = connect(), []
        with Consumer(mine, Queue("q"), no_ack=True, callbacks=[lambda body, _: seen.append(body)]):
            assert mine.transport.bell.fd > 1023
            with pytest.raises(TimeoutError):
                mine.drain_events(timeout=0.01)
            put(mine, 1)
            drain_until(mine, lambda: seen)


@pytest.mark.parametrize("expiration", ["abc", "", float("inf")])
def test_an_odd_expiration_is_refused(connect, expiration):  # noqa: F811
    mine = connect()
    message = {"body": "", "headers": {}, "properties": {"expiration": expiration, "delivery_info": {}}}
    with pytest.raises(MessageIllegalError, match="expiration is a number of milliseconds"):
        mine.default_channel._put("q", message)
    put(mine, 1)
    assert got(mine) == [1]


GARBAGE = [
    '{"bindings": [1]}',
    '{"bindings": [["e", "k", "p"]]}',
    '{"bindings": [["e", "k", "p", 1]]}',
    '{"passing": {"q": 1}}',
    '{"passing": {"q": {"begin": [0], "owner": 1}}}',
    '{"passing": {"q": {"begin": ["a", 0, 0, 0, 0, 0, 0, 0, 0, 0], "owner": 1}}}',
    '{"exchanges": {"e": 1}}',
    '{"exchanges": {"e": {}}}',
    '{"lasting": [1]}',
    "[" * 100_000,
    "[]",
    "\udcff",
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_the_directory_is_told(connect, tmp_path, text):  # noqa: F811
    directory = connect().default_channel.connection.directory
    (tmp_path / "store" / "config" / "celery_broker.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreFormatError, match="remove the file"):
        directory.read()


def test_an_unknown_type_of_exchange_is_refused(connect):  # noqa: F811
    channel = connect().default_channel
    with pytest.raises(MessageIllegalError, match="no type 'nonsense', but direct"):
        channel.exchange_declare("e", "nonsense")
    assert channel.connection.directory.exchange("e") is None
