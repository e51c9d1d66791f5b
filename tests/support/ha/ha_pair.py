"""A master and its slave, and the members of a group, as the tests of replication open them."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from tests.support.small_stores import LOG_BYTES, SETTINGS

TIMEOUT_S = 120.0
SLICE_S = 0.01
QUICK: dict[str, Any] = {"ha_send_heartbeat_interval_ms": 200}


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def masters(port: int, **more: Any) -> dict[str, Any]:
    """Settings of a master with small files."""
    return {
        **SETTINGS,
        **QUICK,
        "services": "all",
        "broker_role": "async_master",
        "ha_listen_port": port,
        "ha_allow_plain": True,
        **more,
    }


def members(etcd_url: str, name: str, **more: Any) -> dict[str, Any]:
    """Settings of a member of a group whose master is elected."""
    return {
        **SETTINGS,
        **QUICK,
        "services": "all",
        "broker_role": "elected",
        "ha_group": "g",
        "ha_member": name,
        "ha_listen_port": free_port(),
        "ha_allow_plain": True,
        "ha_etcd_endpoints": etcd_url,
        **more,
    }


def slaves(port: int, **more: Any) -> dict[str, Any]:
    """Settings of its slave."""
    address = f"127.0.0.1:{port}"
    return {
        **SETTINGS,
        **QUICK,
        "services": "all",
        "broker_role": "slave",
        "ha_master_address": address,
        **more,
    }


def fill(store: cystore.MessageStore, count: int, start: int = 0) -> None:
    """Messages of three queues of two topics, with keys; now and then a batch."""
    for number in range(start, start + count):
        topic, body = f"T{number % 2}", bytes([number % 251]) * (number * 37 % 700)
        if number % 10 == 9:
            store.put_many(
                [cystore.Message(topic=topic, body=body, queue_id=number % 3, keys=(f"k{number}",))]
            )
        else:
            store.put(topic, body, queue_id=number % 3, keys=(f"k{number}",), tags="t")


def until(wanted: Callable[[], Any], pause: Callable[[float], Any] | None = None) -> Any:
    """The first true value of `wanted`."""
    end = time.monotonic() + TIMEOUT_S
    event = cystore.system.threads.os_threads.Flag() if pause is None else None
    for _ in itertools.count():
        value = wanted()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {TIMEOUT_S:.0f} s")
        (event.wait if event is not None else pause)(SLICE_S)


def wait_log(store: cystore.MessageStore, position: int) -> None:
    """Returns when the log of the store goes up to `position`."""
    assert store.wait_log(position - 1, TIMEOUT_S), (store.stats()["wrote"], position)


def wrote(store: cystore.MessageStore) -> int:
    return int(store.stats()["wrote"])


def clean_segments(store: cystore.MessageStore, count: int) -> None:
    """Returns when so many segments of a log that began at 0 are gone. The store's own service may clean first."""
    until(lambda: store.clean() and store.stats()["min_physical_offset"] >= count * LOG_BYTES)


def log_bytes(path: Path, begin: int, end: int) -> bytes:
    """The bytes of a log, as the files have them."""
    pieces = []
    for file in sorted((path / "commitlog").glob("0*")):
        base, data = int(file.name), file.read_bytes()
        pieces.append(data[max(begin - base, 0) : max(end - base, 0)])
    return b"".join(pieces)


def check_equal(master: cystore.MessageStore, slave: cystore.MessageStore) -> None:
    """The slave's log, queues and index are those of the master, as far as the slave's log goes."""
    begin, end = slave.stats()["min_physical_offset"], wrote(slave)
    assert end == wrote(master)
    until(
        lambda: slave.wrote_position == master.wrote_position == end
    )  # in a group reads show what is confirmed
    ours = log_bytes(slave.path, begin, end)
    assert len(ours) == end - begin
    assert ours == log_bytes(master.path, begin, end)
    mine, theirs = slave.topics(), master.topics()
    assert {t: set(q) for t, q in mine.items()} == {t: set(q) for t, q in theirs.items()}
    for topic, queues in mine.items():
        for queue_id, there in queues.items():
            assert there.max_offset == theirs[topic][queue_id].max_offset
            found = [m.physical_offset for m in every(slave, topic, queue_id, there.min_offset)]
            expected = [m.physical_offset for m in every(master, topic, queue_id, there.min_offset)]
            assert found == [offset for offset in expected if offset >= begin]
    for message in itertools.islice(slave.scan(), 0, None, 7):
        for key in message.keys:
            assert message.physical_offset in [m.physical_offset for m in slave.query(message.topic, key)]


def every(store: cystore.MessageStore, topic: str, queue_id: int, offset: int) -> list[cystore.Message]:
    """All messages of a queue from an offset on."""
    found: list[cystore.Message] = []
    while True:
        result = store.get(topic, queue_id, offset, 1000)
        if not result.messages:
            return found
        found += result.messages
        offset = result.next_offset


def put_delayed(store: cystore.MessageStore, count: int) -> None:
    """Messages that are due in a second."""
    for number in range(count):
        store.put("D", b"%d" % number, delay_level=1)
