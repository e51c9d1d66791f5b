"""Goal: a broker in a store keeps its messages for whoever lives, and gives each to one consumer. Method: kombu's
connections on one store, in this process and in others that are killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

import cystore
from cystore import MessageIllegalError
from cystore.celery.stores import close_shared
from cystore.celery.transport.channel import PASSING_TOPIC, topic_of
from cystore.consumers.claims import FOLDER
from tests.celery.conftest import PATIENCE_S
from tests.support.child import in_child
from tools.processes import ends_with_us

HOLDER = """
import sys
import kombu_cystore
from kombu import Connection
connection = Connection(sys.argv[1])
queue = connection.SimpleQueue("q")
queue.consumer.qos(prefetch_count=int(sys.argv[2]))
for _ in range(int(sys.argv[2])):
    queue.get(timeout=60)
print("has them", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path):
    yield f"cystore://{tmp_path}/store"
    close_shared()


@pytest.fixture
def connect(url):
    made = []

    def make() -> Connection:
        made.append(Connection(url))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def put(connection, *bodies, queue="q", **options) -> None:
    with connection.SimpleQueue(queue) as simple:
        for body in bodies:
            simple.put(body, **options)


def got(connection, queue="q", most=100) -> list:
    """The bodies of the messages that are there, in their order; each is acknowledged."""
    found = []
    with connection.SimpleQueue(queue) as simple:
        while len(found) < most:
            try:
                message = simple.get_nowait()
            except simple.Empty:
                return found
            message.ack()
            found.append(message.payload)
    return found


def size(connection, queue="q") -> int:
    return connection.default_channel.queue_declare(queue, passive=True).message_count


def test_messages_come_once_and_in_their_order(connect):
    put(connect(), *range(50))
    first, second = connect(), connect()
    assert size(first) == 50
    assert got(first, most=20) + got(second) == list(range(50))
    assert size(second) == 0 and got(connect()) == []


def test_a_higher_priority_comes_first(connect):
    connection = connect()
    for priority in (0, 9, 3, 9):
        put(connection, priority, priority=priority)
    assert got(connection) == [9, 9, 3, 0]


def test_bodies_of_all_kinds_come_as_they_were(connect):
    connection = connect()
    for body, options in (
        ("text ä", {"serializer": "json"}),
        (b"\x00\xff", {}),
        ({"a": [1, None]}, {"compression": "zlib"}),
        ("x" * 200_000, {"headers": {"x": "y"}}),
    ):
        put(connection, body, **options)
    assert got(connection) == ["text ä", b"\x00\xff", {"a": [1, None]}, "x" * 200_000]


def test_a_rejected_message_is_the_next_one_and_says_so(connect):
    connection = connect()
    put(connection, 1, 2, 3)
    with connection.SimpleQueue("q") as simple:
        message = simple.get_nowait()
        assert "redelivered" not in message.headers
        message.reject(requeue=True)
        message = simple.get_nowait()
        assert message.payload == 1 and message.headers["redelivered"] is True
        message.reject()
    assert got(connect()) == [2, 3]


def test_a_closed_connection_gives_its_messages_back(connect):
    put(connect(), 1, 2)
    first = connect()
    simple = first.SimpleQueue("q")
    assert simple.get_nowait().payload == 1
    assert got(connect(), most=1) == [2]
    first.close()
    assert got(connect()) == [1]


def test_messages_of_a_killed_process_come_at_once_and_those_of_a_slow_one_never(connect, url):
    put(connect(), *range(6))
    holders = [
        subprocess.Popen(
            ends_with_us([sys.executable, "-c", HOLDER, url, "2"]), cwd=Path.cwd(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [holder.stdout.readline() for holder in holders] == ["has them\n"] * 2
    reader = connect()
    assert len(got(reader)) == 2
    holders[0].kill()
    holders[0].wait()
    with reader.SimpleQueue("q") as simple:
        again = [simple.get(timeout=PATIENCE_S) for _ in range(2)]  # the bell rings, though nobody puts
        assert all(message.headers["redelivered"] for message in again)
        for message in again:
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get_nowait()
    assert size(reader) == 0
    holders[1].stdin.close()
    holders[1].wait()


def test_a_forked_child_leaves_its_parents_messages_alone(connect):
    put(connect(), 1)
    connection = connect()
    simple = connection.SimpleQueue("q")
    message = simple.get_nowait()
    assert in_child(connection.close) == 0
    assert got(connect()) == []
    message.ack()
    assert size(connection) == 0


def test_a_settled_message_stays_settled_without_the_file_of_claims(connect, url):
    """The file does not survive a power cut; the log does."""
    connection = connect()
    put(connection, *range(5))
    with connection.SimpleQueue("q") as simple:
        first = [simple.get_nowait() for _ in range(4)]
        first[1].ack()
        first[3].ack()
        simple.close()
    connection.release()
    close_shared()
    shutil.rmtree(Path(url.removeprefix("cystore://")) / FOLDER)
    assert got(connect()) == [0, 2, 4]


def test_a_message_that_has_expired_does_not_come(connect):
    connection = connect()
    put(connection, "old", expiration=0.001)
    put(connection, "new")
    threading.Event().wait(0.01)  # the message's own time
    assert got(connection) == ["new"]


def test_a_message_that_is_none_of_a_broker_is_left_out(connect, url, caplog):
    connection = connect()
    put(connection, 1)
    with cystore.open(url.removeprefix("cystore://")) as store:
        store.put(topic_of("q"), b"nonsense", queue_id=0)
    put(connection, 2)
    assert got(connection) == [1, 2]
    assert "is left out: this is no message of the broker" in caplog.text


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_damaged_message_is_left_out_and_stops_no_other(connect, url, caplog, dispatched):
    connection = connect()
    put(connection, *(f"message {number}" for number in range(5)))
    if dispatched:
        connection.transport.store.catch_up()
    path = Path(url.removeprefix("cystore://"))
    with open(path / "commitlog" / f"{0:020}", "r+b") as log:
        data = log.read(1 << 16)
        log.seek(data.index(b"message 2"))
        log.write(b"damaged!!")
    assert got(connection) == [f"message {number}" for number in (0, 1, 3, 4)]
    assert ("is left out" if dispatched else "no records for queue offsets 2 to 2") in caplog.text
    assert size(connection) == 0


def test_a_consumer_that_is_cancelled_by_a_callback_keeps_no_message(connect):
    put(connect(), 1, 2, 3)
    connection = connect()
    seen = []

    def first(body, message):
        seen.append(body)
        message.ack()
        consumer.cancel()

    consumer = Consumer(connection, Queue("q"), callbacks=[first])
    consumer.consume()
    connection.drain_events(timeout=PATIENCE_S)
    assert seen == [1]
    assert got(connect()) == [2, 3]


def test_everybody_who_listens_gets_what_is_said_to_all(connect):
    exchange = Exchange("news", type="fanout")
    heard: dict[str, list] = {"a": [], "b": []}
    connections = {name: connect() for name in heard}
    consumers = [
        Consumer(
            connection, Queue(name, exchange, exclusive=True), no_ack=True,
            callbacks=[lambda body, _, name=name: heard[name].append(body)],
        )
        for name, connection in connections.items()
    ]  # fmt: skip
    for consumer in consumers:
        consumer.consume()
    sender = connect()
    kept = Queue("kept", exchange, durable=True)
    kept(sender.default_channel).declare()
    for number in range(3):
        Producer(sender, exchange).publish(number)
    for name, connection in connections.items():
        while len(heard[name]) < 3:
            connection.drain_events(timeout=PATIENCE_S)
    assert heard == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert got(connect(), "kept") == [0, 1, 2], "a queue that lasts has them without a consumer"


def test_a_topic_exchange_is_known_to_processes_that_did_not_declare_it(connect):
    exchange = Exchange("logs", type="topic")
    Queue("errors", exchange, routing_key="*.error")(connect().default_channel).declare()
    producer = Producer(connect())
    for key in ("shop.error", "shop.info"):
        producer.publish(key, exchange="logs", routing_key=key)
    assert got(connect(), "errors") == ["shop.error"]


def test_purge_and_delete_settle_what_waits(connect):
    connection = connect()
    put(connection, *range(5))
    assert connection.default_channel.queue_purge("q") == 5
    assert size(connection) == 0
    put(connection, "later")
    Queue("q")(connection.default_channel).delete()
    assert got(connect()) == []


def test_bad_names_and_headers_are_refused_and_nothing_is_put(connect, url):
    connection = connect()
    with pytest.raises((MessageIllegalError, OperationalError), match="is longer than 127 bytes"):
        put(connection, 1, queue="q" * 200)
    with pytest.raises(TypeError, match="not JSON serializable"):
        put(connection, 1, headers={"x": object()})
    assert size(connection) == 0
    with pytest.raises(cystore.StoreConfigError, match="must name a store of this host"):
        Connection("cystore://").connect()


@pytest.mark.parametrize("name", ["a.b@host.celery.pidbox", "ä ö/%", "x|y~z"])
def test_any_name_is_a_queue(connect, name):
    put(connect(), name, queue=name)
    assert got(connect(), name) == [name]


def test_a_store_that_cannot_be_opened_is_an_error_of_the_connection(connect):
    connection = Connection("cystore:///proc/no/store")
    with pytest.raises(connection.connection_errors, match="/proc/no"):
        connection.connect()


def test_a_queue_with_messages_keeps_them_from_a_clean(connect, url):
    put(connect(), 1)
    with cystore.open(url.removeprefix("cystore://")) as store:
        assert any(name.startswith("claims-") for name in store.holds())
        assert PASSING_TOPIC not in store.topics()


def test_celery_knows_the_url_without_an_import(url):
    """The package's entry point makes it known."""
    program = (
        "import sys; from celery import Celery; app = Celery(broker=sys.argv[1]); "
        "app.send_task('t'); print(app.connection().connect().driver_type, 'cystore.celery' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True)
    assert done.stdout == "cystore True\n"
    program = "import sys; import kombu.serialization; print('cystore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", "a program with another broker does not load it"
