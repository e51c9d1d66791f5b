"""Checks a DataFrame's rows and makes the parts of messages from them.

The task itself refuses every row that the store would refuse, and names the row and the column. The commit appends the
rows of many tasks together, and must not fail half-way because of one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from cystore._native.record.message import RESERVED_PROPERTIES, Message
from cystore.config import StoreConfig
from cystore.errors import MessageIllegalError, StoreConfigError
from cystore.layout import CONSTANTS, OWN_TOPICS, refuse_own_topic

SINK_PROPERTY = "SPARK_BATCH"  # "sink id:batch:number in the batch"
SINK_PROPERTY_BYTES = len(SINK_PROPERTY) + 2 + 16 + 1 + 19 + 1 + 19
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]
TOPIC_BYTES_MAX = CONSTANTS["TOPIC_BYTES_MAX"][0]
COMPRESSED = CONSTANTS["SYS_FLAG_COMPRESSED"][0]
# Bytes of a record besides body, topic and properties, with IPv6 hosts, and of the blank after it.
RECORD_BYTES = (
    CONSTANTS["RECORD_SIZE_MIN"][0]
    + 2 * (CONSTANTS["HOST_V6_BYTES"][0] - CONSTANTS["HOST_V4_BYTES"][0])
    + CONSTANTS["BLANK_SIZE_MIN"][0]
)

# Writable columns, with their types. Names of Kafka's sink if it has them.
WRITTEN: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "key": ("string", "binary"),
    "keys": ("array<string>",),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "sys_flag": ("int",),
}
# Columns of this source or Kafka's whose values the store sets anew. The sink ignores them, so that rows that were read
# can be written unchanged.
GIVEN_ANEW = ("offset", "timestamp", "timestampType", "physical_offset", "born_timestamp", "store")

STAGED = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("body", pa.large_binary()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("unique_key", pa.string()),
        ("names", pa.list_(pa.string())),
        ("values", pa.list_(pa.string())),
        ("sys_flag", pa.int32()),
    ]
)
_TOPIC = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{TOPIC_BYTES_MAX}}}")
_FROM_COLUMNS = (
    "KEYS",
    "TAGS",
    "UNIQ_KEY",
)  # the reserved properties that a read DataFrame has


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises StoreConfigError for columns that are missing, unknown, or of another type."""
    for column in schema.fields:
        if column.name in GIVEN_ANEW:
            continue
        if column.name not in WRITTEN:
            raise StoreConfigError(
                f"column {column.name} cannot be written; writable are {', '.join(WRITTEN)}: select these, or rename it"
            )
        kind = column.dataType.simpleString().partition(" collate ")[0]
        if kind not in WRITTEN[column.name]:
            raise StoreConfigError(
                f"column {column.name} must be {' or '.join(WRITTEN[column.name])}, not {kind}: cast it before writing"
            )
    names = schema.fieldNames()
    if len(set(names)) != len(names):
        raise StoreConfigError(f"a column name occurs twice: {', '.join(names)}")
    if "value" not in names:
        raise StoreConfigError(
            f"there is no column value, the body of a message; the columns are {', '.join(names)}"
        )
    if "topic" not in names and topic is None:
        raise StoreConfigError("no topic: give option topic, or a column topic")
    if topic is not None:
        check_topic(topic, "option topic")


def check_topic(topic: str, where: str) -> None:
    """Raises MessageIllegalError for a name that a topic cannot have."""
    if not _TOPIC.fullmatch(topic):
        raise MessageIllegalError(
            f"{where}: topic {topic!r} must be 1 to {TOPIC_BYTES_MAX} characters of letters, digits, % | _ and -"
        )
    refuse_own_topic(topic, where)


@dataclass
class RowEncoder:
    """Turns a task's record batches into batches of STAGED. `task` is its number, for errors."""

    topic: str | None
    config: StoreConfig
    task: int = 0
    rows: int = 0
    largest_bytes: int = 0  # what the largest record takes of a commit log file, at most

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raises MessageIllegalError for a row that the store would refuse."""
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        count = batch.num_rows
        staged = {
            "topic": self._topics(given.get("topic"), count),
            "queue_id": self._whole("partition", given.get("partition"), count),
            "body": self._bodies(given["value"]),
            **self._texts(given, count),
            "sys_flag": self._sys_flags(given.get("sys_flag"), count),
        }
        found = pa.RecordBatch.from_arrays([staged[name] for name in STAGED.names], schema=STAGED)
        self._check_sizes(found)
        self.rows += count
        return found

    def _at(self, row: int) -> str:
        return f"row {self.rows + row} of task {self.task}"

    def _refuse_where(self, wrong: pa.Array, text: Callable[[int], str]) -> None:
        """Names the first row for which `wrong` is true."""
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise MessageIllegalError(f"{self._at(row)}: {text(row)}")

    def _topics(self, column: pa.Array | None, count: int) -> pa.Array:
        if self.topic is not None:
            return pa.array([self.topic] * count, pa.string())
        assert column is not None, "check_columns looked"
        self._refuse_where(
            column.is_null(), lambda row: "column topic is null; option topic sets one topic for all rows"
        )
        column = column.cast(pa.string())
        for topic in pc.unique(column).to_pylist():
            if not _TOPIC.fullmatch(topic) or topic in OWN_TOPICS:
                check_topic(topic, self._at(pc.index(column, topic).as_py()))
        return column

    def _whole(self, name: str, column: pa.Array | None, count: int) -> pa.Array:
        """A column of numbers from 0 on; null becomes 0."""
        if column is None:
            return pa.array([0] * count, pa.int32())
        column = pc.fill_null(column.cast(pa.int32()), 0)
        self._refuse_where(pc.less(column, 0), lambda row: f"column {name} is {column[row]}, less than 0")
        return column

    def _bodies(self, column: pa.Array) -> pa.Array:
        self._refuse_where(
            column.is_null(), lambda row: "column value is null; a message needs a body, even an empty one"
        )
        column = column.cast(pa.large_binary())
        length, most = pc.binary_length(column), self.config.max_message_size_bytes
        self._refuse_where(
            pc.greater(length, most),
            lambda row: (
                f"column value has {length[row]} bytes, at most cystore.max_message_size_bytes = {most}"
            ),
        )
        return column

    def _sys_flags(self, column: pa.Array | None, count: int) -> pa.Array:
        """The sys flag with only the bit for a compressed body; the transaction is over."""
        flags = self._whole("sys_flag", column, count)
        return pc.bit_wise_and(flags, pa.scalar(COMPRESSED, pa.int32()))

    def _texts(self, given: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """Keys, tags and properties."""
        keys = self._keys(given, count)
        tags = given["tags"].cast(pa.string()) if "tags" in given else pa.nulls(count, pa.string())
        unique = pa.nulls(count, pa.string())
        names, values = self._properties(given.get("properties"), count)
        reserved = pa.array([*RESERVED_PROPERTIES, SINK_PROPERTY])
        if pc.any(pc.is_in(names.flatten(), value_set=reserved)).as_py():
            keys, tags, unique, names, values = self._without_reserved(given, keys, tags, names, values)
        self._check_text("keys", keys.flatten(), r"^$|[\x01\x02 ]", pc.list_parent_indices(keys))
        self._check_text("tags", tags, r"^$|[\x01\x02]", None)
        self._check_text("properties", unique, r"^$|[\x01\x02 ]", None)
        self._check_text("properties", names.flatten(), r"^$|[\x01\x02]", pc.list_parent_indices(names))
        self._check_text("properties", values.flatten(), r"^$|[\x01\x02]", pc.list_parent_indices(values))
        return {"keys": keys, "tags": tags, "unique_key": unique, "names": names, "values": values}

    def _check_text(self, name: str, texts: pa.Array, pattern: str, rows: pa.Array | None) -> None:
        """Refuses nulls in lists, and characters that separate keys or properties."""
        wrong = pc.match_substring_regex(texts, pattern)
        wrong = pc.fill_null(wrong, rows is not None)
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            text, row = texts[at].as_py(), at if rows is None else rows[at].as_py()
            space = ", or a space: keys are separated by it" if name == "keys" else ""
            why = f"{text!r} is empty or has a character that separates properties (0x01, 0x02){space}"
            raise MessageIllegalError(f"{self._at(row)}: column {name}: {'a null' if text is None else why}")

    def _keys(self, given: dict[str, pa.Array], count: int) -> pa.Array:
        """The column keys, with the column key before them if that is another key."""
        lists = given["keys"].cast(pa.list_(pa.string())) if "keys" in given else None
        if "key" not in given:
            empty = pa.array([[]] * count, pa.list_(pa.string()))
            return empty if lists is None else pc.coalesce(lists, empty)
        first = self._key_texts(given["key"])
        more = [[]] * count if lists is None else lists.to_pylist()
        together = [
            list(rest or ()) if key is None else [key, *(one for one in rest or () if one != key)]
            for key, rest in zip(first, more, strict=True)
        ]
        return pa.array(together, pa.list_(pa.string()))

    def _key_texts(self, column: pa.Array) -> list[str | None]:
        found: list[str | None] = []
        for row, key in enumerate(column.to_pylist()):
            try:
                found.append(key.decode() if isinstance(key, bytes) else key)
            except UnicodeDecodeError:
                raise MessageIllegalError(
                    f"{self._at(row)}: column key is {key[:40]!r}, which is not UTF-8; encode it, for example "
                    "with hex(key)"
                ) from None
        return found

    def _properties(self, column: pa.Array | None, count: int) -> tuple[pa.Array, pa.Array]:
        """Names and values, a list of each for every row."""
        if column is None:
            empty = pa.array([[]] * count, pa.list_(pa.string()))
            return empty, empty
        pairs = column.to_pylist()
        names = [[name for name, _ in row or ()] for row in pairs]
        values = [[value for _, value in row or ()] for row in pairs]
        return pa.array(names, pa.list_(pa.string())), pa.array(values, pa.list_(pa.string()))

    def _without_reserved(
        self, given: dict[str, pa.Array], keys: pa.Array, tags: pa.Array, names: pa.Array, values: pa.Array
    ) -> tuple[pa.Array, ...]:
        """Takes keys and tags from the properties if there is no column for them: a DataFrame that was read has them
        there too."""
        found: list[tuple[Any, ...]] = []
        columns = (keys, tags, names, values)
        for row, (key, tag, name, value) in enumerate(zip(*(c.to_pylist() for c in columns), strict=True)):
            pairs = dict(zip(name, value, strict=True))
            taken = {one: pairs.pop(one) for one in _FROM_COLUMNS if one in pairs}
            pairs.pop(SINK_PROPERTY, None)
            if wrong := sorted(RESERVED_PROPERTIES & pairs.keys()):
                raise MessageIllegalError(
                    f"{self._at(row)}: column properties: {wrong[0]} is reserved; remove it with map_filter"
                )
            if "keys" not in given and "key" not in given:
                key = [one for one in (taken.get("KEYS") or "").split(" ") if one]
            if "tags" not in given:
                tag = taken.get("TAGS")
            found.append((key, tag, taken.get("UNIQ_KEY"), list(pairs), list(pairs.values())))
        kinds = (STAGED.field(name).type for name in ("keys", "tags", "unique_key", "names", "values"))
        return tuple(
            pa.array(list(column), kind) for column, kind in zip(zip(*found, strict=True), kinds, strict=True)
        )

    def _check_sizes(self, staged: pa.RecordBatch) -> None:
        """Checks the bounds of a property string and of a record, as the store does."""
        texts = SINK_PROPERTY_BYTES + 1
        sizes = pc.add(_bytes_of(staged["keys"], 1), _bytes_of(staged["names"], 2))
        sizes = pc.add(sizes, _bytes_of(staged["values"], 0))
        for name in ("tags", "unique_key"):
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(staged[name]), 0))
        sizes = pc.add(sizes, texts + len("KEYS") + 2 + len("TAGS") + 2 + len("UNIQ_KEY") + 2)
        self._refuse_where(
            pc.greater(sizes, PROPERTIES_BYTES_MAX),
            lambda row: (
                f"columns keys, tags and properties take {sizes[row]} bytes together, at most {PROPERTIES_BYTES_MAX}"
            ),
        )
        whole = pc.add(pc.add(pc.binary_length(staged["body"]), pc.binary_length(staged["topic"])), sizes)
        whole = pc.add(whole, RECORD_BYTES)
        self.largest_bytes = max(self.largest_bytes, pc.max(whole).as_py() or 0)


def _bytes_of(lists: pa.Array, separator: int) -> pa.Array:
    """The bytes of each row's texts, with this number more for each text."""
    ends = pa.concat_arrays(
        [
            pa.array([0], pa.int64()),
            pc.cumulative_sum(pc.add(pc.binary_length(lists.flatten()), separator).cast(pa.int64())),
        ]
    )
    lengths = pc.cumulative_sum(pc.list_value_length(lists))
    behind = ends.take(lengths)
    before = pa.concat_arrays([pa.array([0], pa.int64()), behind[:-1]])
    return pc.subtract(behind, before)


def messages(batch: pa.RecordBatch, stamp: Callable[[int], str] | None, first: int) -> Iterator[Message]:
    """The messages of a staged batch; `stamp` gives the value of SINK_PROPERTY for a message's number. `first` is the
    first message's number."""
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    for number, (topic, queue_id, body, keys, tags, unique, names, values, flag) in enumerate(rows, first):
        properties = dict(zip(names, values, strict=True))
        if stamp is not None:
            properties[SINK_PROPERTY] = stamp(number)
        yield Message(
            topic=topic,
            queue_id=queue_id,
            body=body,
            keys=tuple(keys),
            tags=tags,
            unique_key=unique,
            properties=properties,
            sys_flag=flag,
        )
