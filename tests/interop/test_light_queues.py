"""Goal: light queues (LMQ) are the same in cystore and in RocketMQ 4.9.3. Method: one writes a store with messages in
several light queues, the other one reads it, with the queue files and without them; records and entries are compared
byte by byte."""

from __future__ import annotations

import base64
import shutil

import pytest

import cystore
from cystore.cli.program import main
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.cystore_side import dump_of_copy
from tests.support.interop.expect import rows_of

CONFIG = {**specs.SMALL, "enableLmq": True, "enableMultiDispatch": True}
OURS = {**cystore_config({"config": CONFIG}), "enable_lmq": True, "enable_multi_dispatch": True}
QUEUES = [f"%LMQ%{name}" for name in ("a", "b|c", "worker-1")]


def plan() -> list[tuple[bytes, int, list[str]]]:
    """Messages as (body, queue id, light queues)."""
    return [
        (b"%d" % n, n % 2, [name for step, name in enumerate(QUEUES, 1) if n % step == 0 and n % 7])
        for n in range(400)
    ]


def light(rows: list[dict]) -> dict[str, list[list[int]]]:
    """The entries of each light queue as RocketMQ sees them; it gives their messages, too."""
    found = {}
    for row in rows_of(rows, "light"):
        assert row["given"] == [entry[0] for entry in row["entries"]]
        assert row["queueId"] == 0
        found[row["topic"]] = row["entries"]
    return found


def expected(log: list[cystore.Message]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for message, (_, _, queues) in zip(log, plan(), strict=True):
        for name in queues:
            entry = [message.physical_offset, message.size_bytes, cystore_tags_code(message.tags)]
            found.setdefault(name, []).append(entry)
    return found


def cystore_tags_code(tags: str | None) -> int:
    return ord(tags) if tags else 0  # a tag of one letter


@pytest.mark.parametrize("dispatched", [True, False])
def test_rocketmq_reads_light_queues(rocketmq, dispatched, tmp_path):
    path = tmp_path / "store"
    with cystore.open(path, **OURS) as store:
        for body, queue_id, queues in plan():
            properties = {"INNER_MULTI_DISPATCH": ",".join(queues)} if queues else None
            store.put("T", body, queue_id=queue_id, tags="x", properties=properties)
        store.dispatch()
        log = list(store.scan())
    if not dispatched:
        shutil.rmtree(path / "consumequeue")
    assert light(dump_of_copy(rocketmq, path, {"config": CONFIG}, tmp_path)) == expected(log)


def written(rocketmq, path) -> None:
    messages = []
    for body, queue_id, queues in plan():
        one = {"topic": "T", "queueId": queue_id, "bodyB64": base64.b64encode(body).decode(), "tags": "x"}
        if queues:
            one["properties"] = {"INNER_MULTI_DISPATCH": ",".join(queues)}
        messages.append(one)
    rocketmq.write({"config": CONFIG, "messages": messages}, path).result(120)


@pytest.mark.parametrize("queues", ["left", "removed"])
def test_we_read_light_queues(rocketmq, queues, tmp_path):
    path = tmp_path / "store"
    written(rocketmq, path)
    rows = dump_of_copy(rocketmq, path, {"config": CONFIG}, tmp_path)
    assert main(["verify", str(path), *sets()]) == 0
    theirs = {p.relative_to(path): p.read_bytes() for p in (path / "consumequeue").rglob("0*") if p.is_file()}
    if queues == "removed":
        shutil.rmtree(path / "consumequeue")
    with cystore.open(path, **OURS) as store:
        log = list(store.scan())
        assert light(rows) == expected(log)
        for name in QUEUES:
            at, given = 0, []
            while (got := store.get(name, 0, at)).status is cystore.GetStatus.FOUND:
                given += [bytes(message.body) for message in got.messages]
                at = got.next_offset
            assert given == [body for body, _, names in plan() if name in names]
        last = store.put("T", b"next", properties={"INNER_MULTI_DISPATCH": ",".join(QUEUES)})
        offsets = ",".join(str(len(light(rows)[name])) for name in QUEUES)
        assert store.read(last.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"] == offsets
    assert main(["verify", str(path), *sets()]) == 0
    for name, data in theirs.items():  # but for the entries of the last message
        assert (path / name).read_bytes()[: len(data.rstrip(b"\0"))] == data.rstrip(b"\0")


def test_rocketmq_counts_anew_when_it_starts(rocketmq, tmp_path):
    """It enters the first of the messages behind the others, with offset 0, and leaves the others out."""
    path, name = tmp_path / "store", QUEUES[0]
    one = {"topic": "T", "queueId": 0, "bodyB64": "eA==", "properties": {"INNER_MULTI_DISPATCH": name}}
    rocketmq.write({"config": CONFIG, "messages": [one] * 4}, path).result(120)
    with rocketmq.opened(path, CONFIG) as store:
        places = [row["physicalOffset"] for row in store.put([one] * 3)]
    entries = light(dump_of_copy(rocketmq, path, {"config": CONFIG}, tmp_path))[name]
    assert [entry[0] for entry in entries][4:] == places[:1]
    with cystore.open(path, **OURS) as store:
        offsets = [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in store.scan()]
        assert offsets == ["0", "1", "2", "3", "0", "1", "2"]
        store.put("T", b"next", properties={"INNER_MULTI_DISPATCH": name})
        assert bytes(store.get(name, 0, 4).messages[0].body) == b"next"
    assert main(["verify", str(path), *sets()]) == 0


def sets() -> list[str]:
    shapes = cystore_config({"config": CONFIG})
    return [word for name, value in shapes.items() for word in ("--set", f"{name}={value}")]


def test_records_have_the_same_bytes(rocketmq, tmp_path):
    """But for the order of properties, which is that of a hash map there, and times."""
    written(rocketmq, tmp_path / "theirs")
    with cystore.open(tmp_path / "theirs", **OURS) as store:
        theirs = list(store.scan())
    with cystore.open(tmp_path / "ours", **OURS) as store:
        for body, queue_id, queues in plan():
            properties = {"INNER_MULTI_DISPATCH": ",".join(queues)} if queues else None
            store.put("T", body, queue_id=queue_id, tags="x", properties=properties)
        ours = list(store.scan())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.physical_offset, one.size_bytes, one.queue_offset, one.queue_id, one.sys_flag) == (
            other.physical_offset, other.size_bytes, other.queue_offset, other.queue_id, other.sys_flag,
        )  # fmt: skip
        assert dict(one.properties) == dict(other.properties)
        assert sorted(one.properties_bytes.split(b"\x02")) == sorted(
            part for part in other.properties_bytes.split(b"\x02") if part
        )
