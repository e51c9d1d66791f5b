"""A message as the rows of `dump.jsonl` have it."""

import base64

from tests.oracle.queue import Entry, ExtUnit
from tests.oracle.record import Record


def java_host(host: bytes) -> str:
    """Java writes IPv6 addresses in full: eight groups without leading zeros."""
    port = int.from_bytes(host[-4:], "big")
    if len(host) == 8:
        return ".".join(map(str, host[:4])) + f":{port}"
    groups = (int.from_bytes(host[at : at + 2], "big") for at in range(0, 16, 2))
    return "[" + ":".join(f"{group:x}" for group in groups) + f"]:{port}"


def as_rocketmq(queue_offset: int, record: Record, entry: Entry, ext: ExtUnit | None) -> dict:
    row = {
        "type": "msg",
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": queue_offset,
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "cqPhysicalOffset": entry.physical_offset,
        "cqSize": entry.size,
        "cqTagsCode": entry.tags_code,
        "bodyB64": base64.b64encode(record.body).decode(),
        "bodyCRC": record.checksum,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "tags": record.tags,
        "keys": record.properties.get("KEYS"),
        "properties": record.properties,
        "propertiesRawB64": base64.b64encode(record.raw_properties).decode(),
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": java_host(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": java_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "msgId": (record.store_host + record.physical_offset.to_bytes(8, "big")).hex().upper(),
    }
    if ext is not None:
        row |= {
            "extSize": ext.size,
            "extTagsCode": ext.tags_code,
            "extStoreTime": ext.store_timestamp_ms,
            "extBitMap": base64.b64encode(ext.bitmap).decode(),
        }
    return row
