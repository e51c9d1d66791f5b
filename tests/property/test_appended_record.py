"""Goal: what an append writes is the format's record to the last byte, whatever its parts are long: its checksum is
computed piece by piece while they are written. Method: every combination of lengths around the borders of the ways to
do that, by `put` and `put_many`, and messages with any field values; the bytes on disk are compared with the record
that the oracle makes of the same fields."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import MessageStore, PutResult
from tests.oracle import properties
from tests.oracle.record import (
    BORN_HOST_V6,
    CYSTORE_MAGIC,
    ROCKETMQ_MAGIC,
    STORE_HOST_V6,
    Record,
    encode,
    host_bytes,
)
from tests.support.property.strategies import INT32, INT64, keys, property_text
from tests.support.small_stores import open_small

MAGICS = {"cystore": CYSTORE_MAGIC, "rocketmq": ROCKETMQ_MAGIC}
HOSTS = ("10.0.0.1:10911", "[2001:db8::17]:65535")
LOG_BYTES = 1 << 20

# Words of eight bytes; thirds from 192 bytes on, of at most 4,096; from 16 KiB on the body's checksum is there before
# the lock.
BODY_BYTES = (0, 1, 4, 7, 8, 9, 191, 192, 193, 4095, 4096, 4097, 12287, 12288, 12289, 16383, 16384, 70_000)
KEY_BYTES = (0, 1, 3, 4, 7, 8, 9, 31, 130, 270, 300, 900)
TAG_BYTES = (0, 1, 8, 55, 56, 57, 270)  # up to 55 a queue keeps its last one as it stands in a record
PROPERTIES_BYTES = (0, 3, 7, 8, 9, 4060, 4094, 4095, 4096, 4097, 32_767)
TOPIC_BYTES = (1, 7, 8, 127)


def open_large(path, record_format: str, store_host: str = HOSTS[0]) -> MessageStore:
    return open_small(
        path,
        mapped_file_size_commit_log_bytes=LOG_BYTES,
        record_format=record_format,
        store_host=store_host,
    )


def assert_on_disk(store: MessageStore, result: PutResult, expected: Record) -> None:
    """`expected` but for the place and the time that the append gave."""
    record = encode(expected)
    base = record.physical_offset - record.physical_offset % LOG_BYTES
    with open(store.path / "commitlog" / f"{base:020d}", "rb") as file:
        file.seek(record.physical_offset - base)
        assert file.read(result.size_bytes) == record.raw


def stamped(result: PutResult) -> dict[str, int]:
    return {
        "physical_offset": result.physical_offset,
        "queue_offset": result.queue_offset,
        "store_timestamp_ms": result.store_timestamp_ms,
    }


def host_fields(born_host: str, store_host: str) -> dict[str, bytes]:
    return {"born_host": host_bytes(born_host), "store_host": host_bytes(store_host)}


def host_flags(born_host: str, store_host: str) -> int:
    return (BORN_HOST_V6 if "[" in born_host else 0) | (STORE_HOST_V6 if "[" in store_host else 0)


def parts(rng: random.Random) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Topic, body and properties of each combination of lengths."""
    topic_bytes = itertools.cycle(TOPIC_BYTES)
    for body_bytes, properties_bytes in itertools.product(BODY_BYTES, PROPERTIES_BYTES):
        value = "".join(rng.choices("abcdefgh", k=max(properties_bytes - 2, 0)))
        yield "T" * next(topic_bytes), rng.randbytes(body_bytes), {"p": value} if value else {}


@pytest.mark.parametrize("store_host", HOSTS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("record_format", MAGICS)
def test_put_of_every_length_at_a_border(tmp_path, rng, record_format, store_host):
    with open_large(tmp_path / "s", record_format, store_host) as store:
        for topic, body, pairs in parts(rng):
            result = store.put(topic, body, properties=pairs, flag=-3)
            expected = Record(
                topic=topic,
                body=body,
                magic=MAGICS[record_format],
                flag=-3,
                sys_flag=host_flags(store_host, store_host),
                born_timestamp_ms=result.store_timestamp_ms,
                raw_properties=properties.encode(pairs),
                **host_fields(store_host, store_host),
                **stamped(result),
            )
            assert_on_disk(store, result, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("store_host", HOSTS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("record_format", MAGICS)
def test_put_of_a_key_and_a_tag_the_plain_way_and_the_other(tmp_path, rng, record_format, store_host):
    """The first message of a queue never goes the plain way, nor does one of a host with an IPv6 address."""
    plain = 0
    with open_large(tmp_path / "s", record_format, store_host) as store:
        lengths = itertools.product(KEY_BYTES, TAG_BYTES, TOPIC_BYTES, (0, 3, 33, 200))
        for number, (key_bytes, tag_bytes, topic_bytes, body_bytes) in enumerate(lengths):
            topic, queue_id = "%" * topic_bytes, number % 3
            key, tag = ("".join(rng.choices("azAZ09-!~", k=k)) for k in (key_bytes, tag_bytes))
            pairs = {name: value for name, value in (("KEYS", key), ("TAGS", tag)) if value}
            for keys in (key, (key,) if key else ()):
                body = rng.randbytes(body_bytes)
                store.put(topic, b"", queue_id=queue_id)
                result = store.put(topic, body, queue_id=queue_id, keys=keys, tags=tag or None, flag=number)
                plain += store._attached().appender.last_result is result
                expected = Record(
                    topic=topic,
                    queue_id=queue_id,
                    body=body,
                    magic=MAGICS[record_format],
                    flag=number,
                    sys_flag=host_flags(store_host, store_host),
                    born_timestamp_ms=result.store_timestamp_ms,
                    raw_properties=properties.encode(pairs),
                    **host_fields(store_host, store_host),
                    **stamped(result),
                )
                assert_on_disk(store, result, expected)
    assert (plain > 100) == (record_format == "cystore" and store_host == HOSTS[0])


@pytest.mark.parametrize("text", ["k\x01", "k\x02", "\x01" * 9, "tag\x02tagtag", "k" * 300 + "\x01"])
def test_what_separates_properties_is_refused_the_plain_way_too(tmp_path, text):
    with open_large(tmp_path / "s", "cystore") as store:
        store.put("T", b"")
        for given_parts in (
            {"keys": text},
            {"keys": (text,)},
            {"tags": text},
            {"keys": "good", "tags": text},
        ):
            with pytest.raises(cystore.MessageIllegalError, match="control character"):
                store.put("T", b"body", **given_parts)
        with pytest.raises(cystore.MessageIllegalError, match="contains a space"):
            store.put("T", b"body", keys=("a b",))
        assert store.put("T", b"body", keys="key", tags="a b").queue_offset == 1


class Text(str):
    """A str to Python, and more."""


def test_tags_of_one_queue_in_turn(tmp_path, rng):
    """The last one is kept; each is made anew, so that Python gives the next one its place."""
    with open_large(tmp_path / "s", "cystore") as store:
        store.put("T", b"")
        for number in range(500):
            tag = rng.choice((None, "a" * rng.randint(1, 70), Text("sub" * rng.randint(1, 3)), "é"))
            key = rng.choice(((), f"key-{number}", Text("k")))
            result = store.put("T", b"body", keys=key, tags=tag and type(tag)(tag.upper()))
            pairs = {"KEYS": key or None, "TAGS": tag and tag.upper()}
            found = store.read(result.physical_offset)
            assert found.properties == {name: value for name, value in pairs.items() if value}


def test_a_result_that_somebody_keeps_stays_as_it_is(tmp_path):
    with open_large(tmp_path / "s", "cystore") as store:
        kept = [store.put("T", bytes(n)) for n in range(50)]
        for n in range(50):
            store.put("T", bytes(n))
        assert [result.queue_offset for result in kept] == list(range(50))
        assert [result.size_bytes for result in kept] == [92 + n for n in range(50)]
        for before, after in itertools.pairwise(kept):
            assert before.physical_offset + before.size_bytes == after.physical_offset


@pytest.mark.sampled(3)
@pytest.mark.parametrize("store_host", HOSTS, ids=["stored by IPv4", "stored by IPv6"])
@pytest.mark.parametrize("born_host", HOSTS, ids=["born on IPv4", "born on IPv6"])
@pytest.mark.parametrize("record_format", MAGICS)
def test_put_many_of_every_length_at_a_border(tmp_path, rng, record_format, born_host, store_host):
    with open_large(tmp_path / "s", record_format) as store:
        messages = [
            cystore.Message(
                topic=topic, body=body, properties=pairs, born_host=born_host, store_host=store_host
            )
            for topic, body, pairs in parts(rng)
        ]
        for message, result in zip(messages, store.put_many(messages), strict=True):
            expected = Record(
                topic=message.topic,
                body=bytes(message.body),
                magic=MAGICS[record_format],
                sys_flag=host_flags(born_host, store_host),
                born_timestamp_ms=result.store_timestamp_ms,
                raw_properties=properties.encode(message.properties),
                **host_fields(born_host, store_host),
                **stamped(result),
            )
            assert_on_disk(store, result, expected)


@pytest.fixture(scope="module", params=MAGICS)
def shared_store(request, tmp_path_factory) -> Iterator[tuple[MessageStore, int]]:
    with open_large(tmp_path_factory.mktemp("appended") / "s", request.param) as store:
        yield store, MAGICS[request.param]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "topic": st.sampled_from(["T", "%RETRY%g", "A" * 127]),
                "body": st.binary(max_size=300) | st.integers(0, 20_000).map(lambda n: bytes([n % 251]) * n),
                "queue_id": st.integers(0, 7),
                "keys": st.lists(keys, max_size=3).map(tuple),
                "tags": st.none() | property_text,
                "flag": INT32,
                "sys_flag": st.integers(0, 63),
                "born_timestamp_ms": st.integers(0, 2**63 - 1),
                "born_host": st.sampled_from(HOSTS),
                "store_host": st.sampled_from(HOSTS),
                "reconsume_times": INT32,
                "prepared_transaction_offset": INT64,
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_messages_with_any_fields(shared_store, batch):
    """The bits of the system flag that tell how long a host is follow from the hosts."""
    store, magic = shared_store
    for fields, result in zip(
        batch, store.put_many([cystore.Message(**fields) for fields in batch]), strict=True
    ):
        hosts = fields["born_host"], fields["store_host"]
        fields["sys_flag"] = fields["sys_flag"] & ~(BORN_HOST_V6 | STORE_HOST_V6) | host_flags(*hosts)
        pairs = {"KEYS": " ".join(fields.pop("keys")), "TAGS": fields.pop("tags")}
        raw = properties.encode({name: value for name, value in pairs.items() if value})
        expected = Record(
            **{**fields, **host_fields(*hosts), **stamped(result)}, magic=magic, raw_properties=raw
        )
        assert_on_disk(store, result, expected)
