"""A spec's messages as cystore takes them, and the rows that RocketMQ's dump must then have."""

import base64
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import cystore
from tests.oracle import java
from tests.oracle.queue import ENTRY_BYTES
from tests.oracle.record import (
    BORN_HOST_V6,
    COMMIT,
    PLAIN,
    ROLLBACK,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    host_bytes,
)
from tests.support.golden.answers import java_host

LOCAL_BORN, LOCAL_STORE = "127.0.0.1:5000", "127.0.0.1:10911"
QUERY_MAX = 64
# These depend on the order in which an encoder takes the properties.
NOT_EXPECTED = {"propertiesRawB64"}


def singles(item: dict) -> list[dict]:
    """A spec item as single messages: the members of a batch, each with what it has from the batch."""
    if "batch" not in item:
        return [item]
    outer = {name: value for name, value in item.items() if name != "batch"}
    return [
        {**outer, **member, "properties": {**member.get("properties", {}), **outer.get("properties", {})}}
        for member in item["batch"]
    ]


def message_of(item: dict) -> cystore.Message:
    """Without empty values of properties, which RocketMQ drops and cystore refuses."""
    return cystore.Message(
        topic=item["topic"],
        queue_id=item["queueId"],
        body=base64.b64decode(item["bodyB64"]),
        keys=tuple(item.get("keys", "").split()),
        tags=item.get("tags"),
        properties={n: v for n, v in item.get("properties", {}).items() if v},
        unique_key=item.get("uniqKey"),
        flag=item.get("flag", 0),
        sys_flag=item.get("sysFlag", 0),
        born_timestamp_ms=item["bornTimestamp"],
        born_host=item.get("bornHost", LOCAL_BORN),
        store_host=item.get("storeHost", LOCAL_STORE),
        reconsume_times=item.get("reconsumeTimes", 0),
        prepared_transaction_offset=item.get("preparedTransactionOffset", 0),
    )


def one_space(item: dict) -> dict:
    """cystore takes keys one by one and joins them with a space each."""
    return {**item, "keys": " ".join(item["keys"].split())} if "keys" in item else item


@dataclass(frozen=True)
class Stored:
    """A message of a spec and where it was put."""

    item: dict
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int

    @classmethod
    def by_cystore(cls, item: dict, put: cystore.PutResult) -> "Stored":
        return cls(
            one_space(item), put.physical_offset, put.queue_offset, put.size_bytes, put.store_timestamp_ms
        )

    @classmethod
    def by_rocketmq(cls, item: dict, put: dict) -> "Stored":
        return cls(item, put["physicalOffset"], put["queueOffset"], put["size"], put["storeTimestamp"])

    @property
    def queue(self) -> tuple[str, int]:
        return self.item["topic"], self.item["queueId"]

    @property
    def transaction(self) -> int:
        return self.item.get("sysFlag", 0) & TRANSACTION_MASK

    @property
    def in_queue(self) -> bool:
        return self.transaction in (PLAIN, COMMIT)

    @property
    def index_keys(self) -> list[str]:
        if self.transaction == ROLLBACK:
            return []
        return [key for key in (self.item.get("uniqKey"), *self.item.get("keys", "").split(" ")) if key]

    @property
    def sys_flag(self) -> int:
        born, store = self.item.get("bornHost", LOCAL_BORN), self.item.get("storeHost", LOCAL_STORE)
        return (
            self.item.get("sysFlag", 0)
            | (BORN_HOST_V6 if born.startswith("[") else 0)
            | (STORE_HOST_V6 if store.startswith("[") else 0)
        )

    @property
    def properties(self) -> dict[str, str]:
        named = {
            "KEYS": self.item.get("keys"),
            "TAGS": self.item.get("tags"),
            "UNIQ_KEY": self.item.get("uniqKey"),
        }
        return {n: v for n, v in {**self.item.get("properties", {}), **named}.items() if v}

    def record_row(self) -> dict:
        return {
            "type": "record",
            "physicalOffset": self.physical_offset,
            "size": self.size,
            "topic": self.item["topic"],
            "queueId": self.item["queueId"],
            "queueOffset": self.queue_offset,
            "sysFlag": self.sys_flag,
            "storeTimestamp": self.store_timestamp,
        }

    def msg_row(self, *, ext: bool = False) -> dict:
        item, body = self.item, base64.b64decode(self.item["bodyB64"])
        store_host = item.get("storeHost", LOCAL_STORE)
        tags_code = java.string_hash(item["tags"]) if "tags" in item else 0
        row = {
            "type": "msg",
            "topic": item["topic"],
            "queueId": item["queueId"],
            "queueOffset": self.queue_offset,
            "physicalOffset": self.physical_offset,
            "storeSize": self.size,
            "cqPhysicalOffset": self.physical_offset,
            "cqSize": self.size,
            "cqTagsCode": tags_code,
            "bodyB64": item["bodyB64"],
            "bodyCRC": zlib.crc32(body) & 0x7FFFFFFF,
            "flag": item.get("flag", 0),
            "sysFlag": self.sys_flag,
            "tags": item.get("tags"),
            "keys": item.get("keys"),
            "properties": self.properties,
            "bornTimestamp": item["bornTimestamp"],
            "bornHost": java_host(item.get("bornHost", LOCAL_BORN)),
            "storeTimestamp": self.store_timestamp,
            "storeHost": java_host(store_host),
            "reconsumeTimes": item.get("reconsumeTimes", 0),
            "preparedTransactionOffset": item.get("preparedTransactionOffset", 0),
            "msgId": (host_bytes(store_host) + self.physical_offset.to_bytes(8, "big")).hex().upper(),
        }
        if ext:
            units = {
                "extSize": 20,
                "extTagsCode": tags_code,
                "extStoreTime": self.store_timestamp,
                "extBitMap": "",
            }
            row |= units
            del row["cqTagsCode"]  # the unit's address
        return row


def rows_of(rows: list[dict], kind: str, without: Iterable[str] = ()) -> list[dict]:
    hidden = {*NOT_EXPECTED, *without}
    return [{n: v for n, v in row.items() if n not in hidden} for row in rows if row["type"] == kind]


def check_records(rows: list[dict], stored: list[Stored]) -> None:
    """The walk over the log meets every message, whole, where it was put, and only blanks between."""
    assert rows_of(rows, "record", ["crc32OfRecord"]) == [one.record_row() for one in stored]
    blanks = {row["physicalOffset"]: row["size"] for row in rows if row["type"] == "blank"}
    end = stored[0].physical_offset
    for one in stored:
        end += blanks.pop(end, 0)
        assert one.physical_offset == end
        end += one.size
    (log,) = rows_of(rows, "commitlog")
    assert (log["minOffset"], log["maxOffset"], log["maxOffsetAfterLoad"]) == (
        stored[0].physical_offset,
        end,
        end,
    )
    assert not blanks


def check_queues(rows: list[dict], stored: list[Stored], *, ext: bool = False) -> None:
    """Every queue has its messages in their order, with every field."""
    queues = {
        queue: list(of_queue)
        for queue, of_queue in groupby(
            sorted((one for one in stored if one.in_queue), key=lambda one: (one.queue, one.queue_offset)),
            lambda one: one.queue,
        )
    }
    assert rows_of(rows, "queue") == [
        {
            "type": "queue",
            "topic": queue[0],
            "queueId": queue[1],
            "minOffset": 0,
            "maxOffset": len(of_queue),
            "maxPhysicOffset": of_queue[-1].physical_offset + of_queue[-1].size,
        }
        for queue, of_queue in queues.items()
    ]
    for of_queue in queues.values():
        assert [one.queue_offset for one in of_queue] == list(range(len(of_queue)))
    expected = [one.msg_row(ext=ext) for of_queue in queues.values() for one in of_queue]
    assert rows_of(rows, "msg", ["cqTagsCode"] if ext else []) == expected


def check_queries(rows: list[dict], stored: list[Stored]) -> None:
    """Every key is found: the newest 64 entries with its hash, as RocketMQ answers, oldest first."""
    entries: dict[int, list[int]] = {}
    asked: set[tuple[str, str]] = set()
    for one in stored:
        topic = one.item["topic"]
        asked |= {
            (topic, key)
            for key in (one.properties.get("UNIQ_KEY"), *one.item.get("keys", "").split(" "))
            if key
        }
        for key in one.index_keys:
            entries.setdefault(java.index_hash(f"{topic}#{key}"), []).append(one.physical_offset)
    answers = {(row["topic"], row["key"]): row["physicalOffsets"] for row in rows_of(rows, "query")}
    assert answers == {
        (topic, key): sorted(entries.get(java.index_hash(f"{topic}#{key}"), [])[-QUERY_MAX:])
        for topic, key in asked
    }


def check_times(rows: list[dict], queue_file_bytes: int) -> None:
    """Asked for the store timestamp of a message, RocketMQ points to a message of that very time. Not in a queue of
    several files: it takes the one file that was modified next."""
    times: dict[tuple[str, int], list[int]] = {}
    for row in rows_of(rows, "msg"):
        times.setdefault((row["topic"], row["queueId"]), []).append(row["storeTimestamp"])
    small = {queue for queue, of_queue in times.items() if len(of_queue) * ENTRY_BYTES < queue_file_bytes}
    compared = Counter()
    for row in rows_of(rows, "offsetByTime"):
        queue = row["topic"], row["queueId"]
        if queue in small:
            assert times[queue][row["offset"]] == row["timestamp"]
            compared[queue] += 1
    assert compared == {queue: min(len(times[queue]), 3) for queue in small}
