"""The answers of a cystore store, in the shape of the rows that RocketMQ wrote down."""

import base64
import ipaddress
from collections.abc import Iterator

import cystore

# Rows also say what the consume queue and ext files hold and how the properties stood on disk: those bytes
# are compared as files.
NOT_IN_A_MESSAGE = {
    "cqPhysicalOffset",
    "cqSize",
    "cqTagsCode",
    "extSize",
    "extTagsCode",
    "extStoreTime",
    "extBitMap",
    "propertiesRawB64",
}


def java_host(host: str) -> str:
    """cystore's `"[2001:db8::1]:80"` as Java writes it, all eight groups."""
    address, _, port = host.rpartition(":")
    if not address.startswith("["):
        return host
    groups = ipaddress.IPv6Address(address[1:-1]).exploded.split(":")
    return "[" + ":".join(f"{int(group, 16):x}" for group in groups) + f"]:{port}"


def as_row(message: cystore.Message) -> dict:
    return {
        "type": "msg",
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "msgId": str(cystore.MessageId.of(message)),
        "storeSize": message.size_bytes,
        "bodyB64": base64.b64encode(message.body).decode(),
        "bodyCRC": message.body_crc,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "properties": dict(message.properties),
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": java_host(message.born_host),
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": java_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def queue_messages(store: cystore.MessageStore, topic: str, queue_id: int) -> Iterator[cystore.Message]:
    """A whole queue, batch by batch, from its minimum on."""
    result = store.get(topic, queue_id, 0)
    offset = result.min_offset
    while offset < result.max_offset:
        result = store.get(topic, queue_id, offset)
        assert result.next_offset > offset, (topic, queue_id, offset, result)
        offset = result.next_offset
        yield from result.messages


def topics_and_queues(store: cystore.MessageStore) -> list[tuple[str, int]]:
    return sorted((topic, queue_id) for topic, queues in store.topics().items() for queue_id in queues)
