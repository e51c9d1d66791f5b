"""Goal: RocketMQ reads the offsets of our groups and we read its. Method: its own ConsumerOffsetManager reads our
file and writes it again; the bytes are compared but for the order of topics, which is that of a hash map there."""

from __future__ import annotations

import cystore
from cystore.consumers.offset_file import path_of, read_consumer_offsets, render


def entries(text: str) -> list[str]:
    """The file cut at each topic and group, in order."""
    begin, *rest = text.removesuffix("\n\t}\n}").split('\n\t\t"')
    return [begin, *sorted(one.rstrip(",") for one in rest)]


def test_rocketmq_reads_our_file_and_writes_the_same_bytes(rocketmq, tmp_path):
    with cystore.open(tmp_path / "s") as store:
        for number in range(40):
            store.put("orders", b"", queue_id=number % 12)
        for queue_id in (0, 3, 10, 11):
            store.groups.commit("billing", "orders", queue_id, 1 + queue_id % 3)
        with store.consumer("audit", "orders") as consumer:
            consumer.ack(*consumer.poll(timeout_s=60))
        store.groups.save()
        ours = path_of(tmp_path / "s").read_text()
    theirs = rocketmq.consumer_offsets(ours)
    assert entries(theirs) == entries(ours)
    assert len(entries(ours)) == 4
    before = read_consumer_offsets(tmp_path / "s")
    path_of(tmp_path / "s").write_text(theirs)
    assert read_consumer_offsets(tmp_path / "s") == before
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.names() == ["audit", "billing"]
        assert store.groups.offsets("billing")["orders", 10] == 2


def test_an_empty_file_is_the_same(rocketmq):
    empty = render({}, {}).decode()
    assert rocketmq.consumer_offsets(empty) == empty
