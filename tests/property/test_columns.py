"""Goal: columns hold what the records hold, for any bytes, any choice of columns and rows, however they are cut into
batches. Method: valid logs, damaged ones and arbitrary bytes; the column kernel against the oracle's rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.columns import Wanted, rows_of_file
from tests.oracle.log import Log, lay_out
from tests.oracle.record import Record
from tests.support.property.column_rows import NAMES, kernel, read_file
from tests.support.property.strategies import damage, logs, raw_properties, records

column_names = st.sets(st.sampled_from(NAMES), min_size=1).map(
    lambda names: tuple(n for n in NAMES if n in names)
)
sizes = st.tuples(st.integers(1, 30), st.sampled_from([1, 100, 5000]))


@given(logs(file_size=2048), sizes)
def test_every_column_of_a_sound_log(written, size):
    for base in written.log.files:
        assert read_file(written.log, base, Wanted(), NAMES, *size) == rows_of_file(
            written.log, base, Wanted()
        )


@given(logs(file_size=2048), column_names, sizes)
def test_columns_that_are_not_wanted_are_not_there(written, names, size):
    for base in written.log.files:
        rows, at, blank = read_file(written.log, base, Wanted(), names, *size)
        full, *rest = rows_of_file(written.log, base, Wanted())
        assert [at, blank] == rest
        assert rows == [{name: row[name] for name in names} for row in full]


def between(values: list[int]) -> st.SearchStrategy[tuple[int, int]]:
    near = [value + more for value in values for more in (0, 1)] or [0]
    return st.tuples(st.sampled_from(near), st.sampled_from(near))


@st.composite
def wishes(draw, found: list[Record]) -> Wanted:
    """Filters of which some take some of the records."""
    topics = sorted({r.topic.encode() for r in found}) or [b"T"]
    tags = [r.tags.encode() for r in found if r.tags] or [b"a"]
    keys = [key.encode() for r in found for key in r.index_keys] or [b"k"]
    offsets = between([r.queue_offset for r in found])
    times = between([r.store_timestamp_ms for r in found])
    rule = st.tuples(
        st.sampled_from(topics), st.sampled_from([-1, *{r.queue_id for r in found}]), offsets, times
    )
    everything = st.just((-(2**63), 2**63 - 1))
    return Wanted(
        in_queue=draw(st.booleans()),
        physical=draw(everything | between([r.physical_offset for r in found])),
        offsets=draw(everything | offsets),
        times_ms=draw(everything | times),
        queue_ids=draw(st.just(()) | st.tuples(st.sampled_from([0, *{r.queue_id for r in found}]))),
        tags=draw(st.just(()) | st.tuples(st.sampled_from(tags))),
        keys=draw(st.just(()) | st.lists(st.sampled_from(keys), min_size=1, max_size=3).map(tuple)),
        rules=tuple((t, q, *o, *m) for t, q, o, m in draw(st.just([]) | st.lists(rule, max_size=3))),
    )


@given(logs(file_size=2048), st.data(), sizes)
def test_only_wanted_rows(written, data, size):
    wanted = data.draw(wishes(written.records))
    for base in written.log.files:
        assert read_file(written.log, base, wanted, NAMES, *size) == rows_of_file(written.log, base, wanted)


@given(logs(file_size=2048, begin_file=3), st.data())
def test_a_damaged_log_is_read_up_to_the_damage(written, data):
    base = data.draw(st.sampled_from(sorted(written.log.files)))
    damaged = {**written.log.files, base: data.draw(damage(written.log.files[base]))}
    log = Log(written.log.file_size, damaged)
    assert read_file(log, base, Wanted()) == rows_of_file(log, base, Wanted())


@given(st.binary(max_size=300))
def test_arbitrary_bytes(data):
    log = Log(300, {600: data + bytes(300 - len(data))})
    assert read_file(log, 600, Wanted()) == rows_of_file(log, 600, Wanted())


@given(st.lists(records(properties=raw_properties), max_size=6), sizes)
def test_arbitrary_properties(found, size):
    """Names that repeat, pieces that are no text, separators anywhere."""
    log, _, _ = lay_out(found, 65536)
    assert read_file(log, 0, Wanted(), NAMES, *size) == rows_of_file(log, 0, Wanted())


@pytest.mark.parametrize("count", [100, 8191])
def test_many_properties_in_one_record(count):
    """As many as there is room for, some names twice: they are found through a table."""
    pairs = b"\x02".join(b"%c\x01%c" % (33 + n % 200, 40 + n // 200) for n in range(count))
    log, _, _ = lay_out([Record("T", raw_properties=pairs)] * 2, 1 << 17)
    rows, *_ = read_file(log, 0, Wanted(), ("properties",))
    assert rows == [{"properties": row["properties"]} for row in rows_of_file(log, 0, Wanted())[0]]
    distinct = b"\x02".join(f"{n:x}\x01v".encode() for n in range(4000))
    log, _, _ = lay_out([Record("T", raw_properties=distinct)], 1 << 17)
    ((row,), *_) = read_file(log, 0, Wanted(), ("properties",))
    assert len(row["properties"]) == 4000


def test_a_record_larger_than_the_columns_gets_columns_of_its_own():
    log, _, _ = lay_out([Record("T", body=b"a"), Record("T", body=bytes(100_000)), Record("T")], 1 << 18)
    assert read_file(log, 0, Wanted(), NAMES, 100, 50) == rows_of_file(log, 0, Wanted())


def test_bad_bounds_are_refused():
    with pytest.raises(ValueError, match="rows"):
        kernel.ColumnReader(1, 0, 100)
    reader = kernel.ColumnReader(1, 10, 100)
    for position, limit in ((9, 20), (10, 40), (25, 20)):
        with pytest.raises(ValueError, match="not in the bytes"):
            reader.run(bytes(20), 10, position, limit, 1000)
    assert reader.run(b"", 10, 10, 10, 1000) == kernel.LIMIT
    assert reader.take() == (0, {})
