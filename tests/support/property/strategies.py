"""Records, logs and index keys for hypothesis: valid ones that reach into every corner of the format, and
damaged ones."""

import string
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.oracle.log import Log, lay_out
from tests.oracle.record import (
    BORN_HOST_V6,
    COMMIT,
    CYSTORE_MAGIC,
    PLAIN,
    PREPARED,
    ROCKETMQ_MAGIC,
    ROLLBACK,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    Record,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIME_MS = st.integers(0, 2**43)

topics = st.one_of(
    st.sampled_from(["T", "A" * 127, "%RETRY%g", SCHEDULE_TOPIC]),
    st.text(string.ascii_letters + string.digits + "%|_-", min_size=1, max_size=20),
)
magics = st.sampled_from([ROCKETMQ_MAGIC, CYSTORE_MAGIC])

# Pieces that decide how property bytes are read: separators, the names that mean something, text of every
# width, bytes that are not UTF-8, encoded surrogates.
property_pieces = st.one_of(
    st.sampled_from(
        [b"\x01", b"\x02", b"KEYS", b"TAGS", b"UNIQ_KEY", b"DELAY", b"WAIT", b" ", b"a", b"1", b"99", b"-1"]
    ),
    st.sampled_from(
        [b"\xff", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xc0\x80", "键".encode(), b"\x00"]
    ),
    st.text(max_size=8).map(lambda t: t.encode("utf-8", "surrogatepass")),
)
raw_properties = st.lists(property_pieces, max_size=30).map(b"".join)

property_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
keys = st.text(
    st.characters(exclude_characters=" \x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)


@st.composite
def sound_properties(draw) -> bytes:
    """A producer's message: tags, keys, a unique key, a delay level, some of the user's own properties."""
    pairs = draw(st.dictionaries(property_text, property_text, max_size=3))
    if draw(st.booleans()):
        pairs["TAGS"] = draw(property_text)
    if draw(st.booleans()):
        pairs["KEYS"] = " ".join(draw(st.lists(keys, min_size=1, max_size=4)))
    if draw(st.booleans()):
        pairs["UNIQ_KEY"] = draw(keys)
    if draw(st.booleans()):
        pairs["DELAY"] = str(draw(st.integers(-2, 20)))
    ends = draw(st.sampled_from([b"", b"\x02"]))
    joined = b"\x02".join(f"{name}\x01{value}".encode() for name, value in pairs.items())
    return joined + ends if joined else b""


@st.composite
def records(draw, properties=raw_properties, body_max: int = 200) -> Record:
    """A record with any field values that a valid record may have."""
    sys_flag = draw(st.one_of(st.integers(0, 63), INT32))
    born, store = (20 if sys_flag & flag else 8 for flag in (BORN_HOST_V6, STORE_HOST_V6))
    return Record(
        topic=draw(topics),
        body=draw(st.binary(max_size=body_max)),
        magic=draw(magics),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(INT64),
        born_host=draw(st.binary(min_size=born, max_size=born)),
        store_timestamp_ms=draw(INT64),
        store_host=draw(st.binary(min_size=store, max_size=store)),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        raw_properties=draw(properties),
    )


@dataclass(frozen=True)
class WrittenLog:
    """A log as an appender leaves it: `end` is behind its last record."""

    log: Log
    records: list[Record]
    end: int


@st.composite
def logs(draw, file_size: int = 4096, max_records: int = 24, begin_file: int = 0, magic=magics) -> WrittenLog:
    """Consecutive records of a few queues, stamped in time order, with blanks where a file is full."""
    next_offset: dict[tuple[str, int], int] = {}
    now, bare = draw(st.integers(1_600_000_000_000, 1_700_000_000_000)), []
    for _ in range(draw(st.integers(0, max_records))):
        now += draw(st.integers(0, 2_000))
        topic = draw(st.sampled_from(["A", "B", SCHEDULE_TOPIC]))
        queue_id = draw(st.integers(0, 2))
        transaction = draw(st.sampled_from([PLAIN, PLAIN, PLAIN, COMMIT, PREPARED, ROLLBACK]))
        in_queue = transaction in (PLAIN, COMMIT)
        number = next_offset.get((topic, queue_id), 0) if in_queue else 0
        bare.append(
            Record(
                topic=topic,
                body=draw(st.binary(max_size=draw(st.sampled_from([10, 300, 1500])))),
                magic=draw(magic),
                queue_id=queue_id,
                queue_offset=number,
                sys_flag=transaction,
                born_timestamp_ms=now,
                store_timestamp_ms=now,
                raw_properties=draw(sound_properties()),
            )
        )
        if in_queue:
            next_offset[topic, queue_id] = number + 1
    return WrittenLog(*lay_out(bare, file_size, begin_file * file_size))


@st.composite
def damage(draw, data: bytes) -> bytes:
    """The same bytes with a few of them changed, a piece zeroed, or a length field set to something else."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        what = draw(st.sampled_from(["byte", "zeros", "number", "copy"]))
        if what == "byte":
            damaged[at] ^= draw(st.integers(1, 255))
        elif what == "zeros":
            count = draw(st.integers(1, len(data) - at))
            damaged[at : at + count] = bytes(count)
        elif what == "number":
            number = draw(st.one_of(INT32, st.sampled_from([-1, 0, 7, 8, 91, 2**31 - 1, -(2**31)])))
            damaged[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")[: len(data) - at]
        else:
            source = draw(st.integers(0, len(data) - 1))
            piece = data[source : source + draw(st.integers(1, 64))][: len(data) - at]
            damaged[at : at + len(piece)] = piece
    return bytes(damaged)
