"""Goal: `get` and `scan` give exactly the messages that a filter lets through, within RocketMQ's limits; a bad filter
is refused with its field and position. Method: stores with known properties, read by expressions, callables and tags,
and compared with a plain choice."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import Contains, FilterError, GetStatus, Message, SqlFilter
from cystore._native.filters import program
from cystore._native.filters.program import STEP_KINDS, FilterProgram
from cystore._native.lookup.queue_reader import FILTERED_ENTRIES
from tests.support.small_stores import open_small

COUNT = 2000
# A consume queue file holds 1,000 entries; a call reads one file.
SMALL = {"mapped_file_size_commit_log_bytes": 1 << 20, "mapped_file_size_consume_queue_bytes": 20_000}


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store", **SMALL) as opened:
        opened.put_many(
            [
                cystore.Message(
                    topic="T", body=b"x" * (number % 50), tags="AB"[number % 2], keys=(f"k{number}",),
                    properties={"a": str(number), "b": "xyz"[number % 3]},
                )
                for number in range(COUNT)
            ]
        )  # fmt: skip
        yield opened


def new_process(code, *arguments):
    """What a process of its own prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def everything(store, **wanted):
    """Queue offsets of all that matches, batch by batch."""
    found, offset = [], 0
    while offset < COUNT:
        got = store.get("T", 0, offset, **wanted)
        assert got.next_offset > offset
        found += [message.queue_offset for message in got.messages]
        offset = got.next_offset
    return found


CHOICES = [
    ("a >= 1990 AND b = 'x'", lambda n: n >= 1990 and n % 3 == 0),
    ("a BETWEEN 3 AND 5 OR b NOT IN ('x', 'y')", lambda n: 3 <= n <= 5 or n % 3 == 2),
    ("TAGS = 'A' AND KEYS <> 'k4'", lambda n: n % 2 == 0 and n != 4),
    ("missing IS NULL AND a < 10", lambda n: n < 10),
    ("missing = 'x'", lambda n: False),
    ("TRUE", lambda n: True),
]


@pytest.mark.parametrize(("expression", "choice"), CHOICES)
def test_every_way_gives_the_same(store, tmp_path, expression, choice):
    expected = [number for number in range(COUNT) if choice(number)]
    assert everything(store, filter=expression) == expected
    assert everything(store, filter=SqlFilter(expression), max_count=5) == expected
    assert everything(store, filter=SqlFilter(expression).__call__) == expected
    assert everything(store, filter=lambda message: choice(int(message.properties["a"]))) == expected
    assert [message.queue_offset for message in store.scan(filter=expression)] == expected
    with cystore.open(tmp_path / "store", read_only=True, **SMALL) as reader:
        assert everything(reader, filter=expression) == expected


def test_tags_and_filter_both_have_to_match(store):
    expected = [number for number in range(COUNT) if number % 2 == 1 and number < 50]
    assert everything(store, tags="B", filter="a < 50") == expected
    assert everything(store, tags="B", filter=lambda message: int(message.properties["a"]) < 50) == expected


@pytest.mark.parametrize(
    "filter", ["a >= 900", SqlFilter("a >= 900"), lambda message: int(message.properties["a"]) >= 900]
)
def test_a_call_looks_at_a_bounded_number_of_messages(store, filter):
    got = store.get("T", 0, 0, 10, filter=filter)
    assert (got.status, got.messages) == (GetStatus.NO_MATCHED_MESSAGE, [])
    assert got.next_offset == FILTERED_ENTRIES
    got = store.get("T", 0, FILTERED_ENTRIES, 10, filter=filter)
    assert (got.status, len(got.messages), got.next_offset) == (GetStatus.FOUND, 10, 910)
    got = store.get("T", 0, 0, FILTERED_ENTRIES + 50, filter=filter)
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, FILTERED_ENTRIES + 50)
    got = store.get("T", 0, 1000, 1000, filter=filter)
    assert len(got.messages) == 32 == store.config.max_transfer_count_on_message_in_memory


def test_raw_records_are_filtered_too(store):
    got = store.get("T", 0, 0, 10, filter="a > 5 AND b = 'x'", raw=True)
    plain = store.get("T", 0, 0, 10, filter="a > 5 AND b = 'x'")
    assert len(got.record_offsets) == len(plain.messages) == 10 and len(got.raw) == sum(
        message.size_bytes for message in plain.messages
    )


def test_another_process_reads_with_a_filter(store, tmp_path):
    code = (
        "import cystore, sys\n"
        "with cystore.open(sys.argv[1]) as store:\n"
        "    print([m.queue_offset for m in store.get('T', 0, 0, filter=\"a IN ('7', '70')\").messages])"
    )
    assert new_process(code, tmp_path / "store") == "[7, 70]\n"


def test_an_error_of_a_callable_ends_the_call_and_nothing_else(store):
    def fail(message):
        raise RuntimeError(message.queue_offset)

    with pytest.raises(RuntimeError, match="3"):
        store.get("T", 0, 3, filter=fail)
    assert len(store.get("T", 0, 3, 4).messages) == 4


@pytest.mark.parametrize("error", [cystore.OffsetError, cystore.CorruptRecordError])
def test_a_callable_may_fail_as_the_store_does(store, error):
    """Its error tells nothing about the files of the queue."""
    asked = []

    def fail(message):
        asked.append(message.queue_offset)
        raise error("of another store")

    with pytest.raises(error, match="of another store"):
        store.get("T", 0, 3, filter=fail)
    assert asked == [3]


def test_a_callable_may_use_the_store(store):
    got = store.get(
        "T", 0, 0, 3, filter=lambda m: bool(store.query("T", f"k{m.queue_offset}")) and m.queue_offset % 2
    )
    assert [message.queue_offset for message in got.messages] == [1, 3, 5]


def test_messages_with_properties_that_are_no_text(store):
    store.put("U", b"", properties={"a": "ü", "b": "٣"})
    assert store.get("U", 0, 0, filter="a = 'ü' AND b = 3").status is GetStatus.FOUND
    assert store.get("U", 0, 0, filter="a = 'u'").status is GetStatus.NO_MATCHED_MESSAGE


def test_a_message_without_properties_has_only_nulls(store):
    store.put("U", b"")
    assert store.get("U", 0, 0, filter="a IS NULL").status is GetStatus.FOUND
    assert store.get("U", 0, 0, filter="a = 1 OR NOT (a = 1)").status is GetStatus.NO_MATCHED_MESSAGE


MANY = " OR ".join(f"p{n} = 1" for n in range(257))
REFUSED = [
    ("", 0), ("a >", 3), ("a = 'x", 4), ("a # b", 2), ("a = 1 b", 6), ("a = NULL", 4), ("a > 'x'", 4), ("a > TRUE", 4),
    ("3", 0), ("a AND 'x'", 6), ("a BETWEEN 3 AND 1", 10), ("'x' IN ('x')", 0), ("a IN ()", 6), ("a IN (3)", 6),
    ("(a = 1", 6),
    ("a = 99999999999999999999", 4), ("a = 0.0", 4), ("a = 1e999", 4), ("TRUE = 'x'", 7), ("NOT 3", 4),
    ("a = '\ud800'", 4),
    ("NOT " * 300 + "a", 1200), ("a" + " = 1" * 300, 0), (MANY, MANY.index("p256")),
    ("x" * 65_537, 65_536), ("a = 1 -- no end of line", 6), ("a = 1 /* no end", 6), ("ä = 1", 0), ("a\x00 = 1", 1),
    ("a > " + "1" * 5000, 4),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "position"), REFUSED)
def test_a_bad_expression_is_refused_with_its_position(store, expression, position):
    for call in (lambda: store.get("T", 0, 0, filter=expression), lambda: store.scan(filter=expression)):
        with pytest.raises(FilterError, match=r"^filter: ") as caught:
            call()
        assert caught.value.position == position
    assert isinstance(caught.value, cystore.StoreError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("filter", [3, b"a = 1", ["a"], object()])
def test_what_is_no_filter_is_refused(store, filter):
    with pytest.raises(FilterError, match=r"filter: must be an expression, a SqlFilter or a callable, not"):
        store.get("T", 0, 0, filter=filter)
    with pytest.raises(FilterError, match="filter"):
        SqlFilter(filter)


def test_deep_parentheses_and_long_chains_are_no_trouble():
    assert SqlFilter("(" * 10_000 + "a = 1" + ")" * 10_000).matches({"a": "1"})
    assert SqlFilter(" AND ".join(["a = 1"] * 5000)).matches({"a": "1"})
    assert not SqlFilter(" OR ".join(["a = 2"] * 5000)).matches({"a": "1"})
    assert SqlFilter("a IN (" + ", ".join(f"'{n}'" for n in range(5000)) + ")").matches({"a": "4999"})


LONG = {
    "signs": "a > " + "-" * 60_000 + "1", "signs and blanks": "a > " + "- " * 30_000 + "1", "only signs": "-" * 60_000,
    "pairs of signs": "a = 1" + " OR a = --1" * 5_000, "NOT": "NOT " * 15_000 + "a", "parentheses": "(" * 60_000,
    "plus": "a > " + "+" * 60_000 + "1", "begins of comments": "a = 1 " + "/*" * 30_000, "text": "a = '" + "-" * 60_000,
    "text and signs": "a = '" + "--" * 30_000 + "' OR a = --1", "nested": "-NOT(" * 12_000 + "a",
    "comments": "a = 1\n" + "-- \n" * 15_000 + "OR a = --1",
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
def test_a_long_expression_takes_time_in_line_with_its_length(kind):
    """Seen: 60,000 signs took 18 s, because the end of a comment was looked for at each of them."""
    begin = time.process_time()
    with contextlib.suppress(FilterError):
        SqlFilter(LONG[kind])
    assert time.process_time() - begin < 5


def test_signs_are_no_comment_in_a_line_without_an_end():
    for one in (
        "a = --1",
        "a = - -1",
        "b = '--' OR a = --1",
        "a = 2 -- b\n OR a = --1",
        "a = /* -- */ 1",
        "a = -- \n1",
    ):
        assert SqlFilter(one).matches({"a": "1"}), one
        assert not SqlFilter(one).matches({"a": "-1"}), one
    assert SqlFilter("a = '\ue000--' AND b > --0").matches({"a": "\ue000--", "b": "1"})
    assert SqlFilter("a = --1 AND b = '\ue000-'").matches({"a": "1", "b": "\ue000-"})
    for one, at in (("a = --1\n", 8), ("a = \ue0001", 4), ("a = --1 \ue000", 8), ("a = 1 AND ---", 13)):
        with pytest.raises(FilterError) as caught:
            SqlFilter(one)
        assert caught.value.position == at, one


def test_a_compiled_filter_travels_and_compares():
    one = SqlFilter("a > 3")
    assert pickle.loads(pickle.dumps(one)) == one == SqlFilter("a > 3") != SqlFilter("a > 4")
    assert repr(one) == "SqlFilter('a > 3')" and len({one, SqlFilter("a > 3")}) == 1
    for properties in (None, {"a": 3}, {"a": "\x01"}, {"": "x"}, {3: "x"}):
        with pytest.raises(FilterError):
            one.matches(properties)
    with pytest.raises(ValueError, match="no stored properties"):
        one(cystore.Message(topic="T", body=b""))


def test_the_machine_refuses_steps_that_would_leave_its_bounds():
    kinds = STEP_KINDS
    true = (kinds["true"], 0, 0, None)
    for steps in (
        [],
        [true, true],
        [(kinds["and"], 0, 0, None)],
        [true] * 300 + [(kinds["and"], 0, 0, None)] * 299,
        [(kinds["property"], 0, 0, None)],
        [true, (kinds["skip_if_true"], 1, 0, None)],
        [true, (kinds["skip_if_true"], 9, 0, None)],
        [true, (kinds["skip_if_true"], 3, 0, None), true, (kinds["and"], 0, 0, None)],
        [(99, 0, 0, None)],
        [(kinds["text"], 0, 0, None)],
    ):
        with pytest.raises(ValueError):
            FilterProgram([], steps)
    with pytest.raises(ValueError):
        FilterProgram([b"a"] * 257, [true])


@pytest.mark.parametrize("filter", ["a = 7", lambda message: message.properties["a"] == "7"])
def test_damage_behind_messages_that_do_not_match_begins_the_next_batch(tmp_path, filter):
    with cystore.open(tmp_path / "store", **SMALL) as store:
        places = [
            store.put("T", b"body" * 9, properties={"a": str(number)}).physical_offset for number in range(9)
        ]
        assert store.get("T", 0, 0, filter=filter).next_offset == 9
        with open(tmp_path / "store" / "commitlog" / f"{0:020d}", "r+b") as segment:
            data = segment.read()
            segment.seek(data.index(b"body" * 9, places[4]))
            segment.write(b"Body")
        got = store.get("T", 0, 0, filter=filter)
        assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)
        with pytest.raises(cystore.CorruptRecordError):
            store.get("T", 0, 4, filter=filter)
        assert [message.queue_offset for message in store.get("T", 0, 5, filter=filter).messages] == [7]


def test_a_callable_that_raises_stop_iteration_does_not_end_a_scan_silently(store):
    def fail(message):
        raise StopIteration

    with pytest.raises(RuntimeError):
        list(store.scan(filter=fail))


class Failing:
    """Stands for a step of the slow conversion of text, with an error of its own."""

    def __init__(self, error):
        self.error = error

    def fullmatch(self, text):
        raise self.error

    def decimal(self, digit, default):
        raise self.error


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(("name", "expression"), [("_DECIMAL", "slow > 3.0"), ("unicodedata", "slow = 33")])
def test_a_failure_in_the_kernel_reaches_the_caller(store, monkeypatch, name, expression, error):
    store.put("U", b"first", properties={"slow": "3"})
    store.put("U", b"second", properties={"slow": "33e0" if name == "_DECIMAL" else "٣٣"})
    expected = [b"second"]
    assert [message.body for message in store.get("U", 0, 0, filter=expression).messages] == expected
    one, message = SqlFilter(expression), store.get("U", 0, 1).messages[0]
    with monkeypatch.context() as patch:
        patch.setattr(program, name, Failing(error))
        for call in (
            lambda: store.get("U", 0, 0, filter=expression),
            lambda: store.get("U", 0, 0, filter=one, raw=True),
            lambda: store.get("U", 0, 0, filter=one.__call__),
            lambda: list(store.scan(filter=expression)),
            lambda: one(message),
            lambda: one.matches(message.properties),
        ):
            with pytest.raises(error):
                call()
    assert [message.body for message in store.get("U", 0, 0, filter=expression).messages] == expected


@pytest.mark.unsanitized  # the sanitizer needs its own memory
def test_too_little_memory_for_the_properties_reaches_the_caller():
    code = (
        "import os, resource\n"
        "from cystore._native.filters.program import STEP_KINDS, FilterProgram\n"
        "kinds = ('property', None), ('text', b'other'), ('=', None)\n"
        "never = FilterProgram([b'a'], [(STEP_KINDS[kind], 0, 0, text) for kind, text in kinds])\n"
        "properties = b'a\\x01' + bytes([255]) * (1 << 26)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limits = pages * os.sysconf('SC_PAGE_SIZE') + (1 << 25), resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "resource.setrlimit(resource.RLIMIT_AS, limits)\n"
        "try:\n"
        "    print(never.matches(properties))\n"
        "except MemoryError:\n"
        "    print('MemoryError', never.matches(properties[:99]))"
    )
    assert new_process(code) == "MemoryError False\n"


def test_a_compiled_filter_is_answered_without_python(store, monkeypatch):
    wanted, expected = SqlFilter("a BETWEEN 3 AND 900 AND b = 'y'"), [n for n in range(3, 901) if n % 3 == 1]
    store.dispatch()
    get = store.get
    get("T", 0, 0, 1)  # the files are at hand from now on

    def refuse(self, *arguments, **named):
        raise AssertionError("the general way was asked")

    monkeypatch.setattr(cystore.MessageStore, "get", refuse)
    found, offset = [], 0
    while offset < 900:
        got = get("T", 0, offset, 7, filter=wanted)
        found += [message.queue_offset for message in got.messages]
        offset = got.next_offset
    assert found == expected
    nothing = get("T", 0, 10, 7, filter=SqlFilter("a = 9"))
    assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10 + FILTERED_ENTRIES)


@pytest.mark.parametrize("filter", ["a = 0", SqlFilter("a = 0")], ids=["text", "compiled"])
def test_a_reader_looks_at_as_many_undispatched_messages(tmp_path, filter):
    """More segments have them than a reader has at hand."""
    count = FILTERED_ENTRIES + 1
    message = cystore.Message(topic="T", body=bytes(1500), properties={"a": "1"})
    with open_small(tmp_path) as store, cystore.open(tmp_path, read_only=True) as reader:
        store.put_many([message] * count)
        assert len(reader.get("T", 0, FILTERED_ENTRIES).messages) == 1
        got = reader.get("T", 0, 0, 5, filter=filter)
        assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, FILTERED_ENTRIES)
        got = reader.get("T", 0, 0, count, filter=filter)
        assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, count)


@pytest.mark.parametrize("length", range(1, 20))
def test_names_and_texts_are_compared_to_their_last_byte(length):
    text = "abcdefghijklmnopqrst"[:length]
    others = [f"{text[:at]}Z{text[at + 1 :]}" for at in range(length)] + [text[:-1], text + "z"]
    by_name, by_text = SqlFilter(f"{text} = 'x'"), SqlFilter(f"p = q OR p = '{text}'")
    assert (
        by_name.matches({text: "x"})
        and by_text.matches({"p": text})
        and by_text.matches({"p": "o", "q": "o"})
    )
    for other in filter(None, others):
        assert not by_name.matches({other: "x"}), other
        assert not by_text.matches({"p": other, "q": text}), other


def test_without_lark_all_but_sql_filters_works(tmp_path):
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'lark':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import cystore\n"
        "with cystore.open(sys.argv[1]) as store:\n"
        "    store.put('T', b'first', tags='A', properties={'a': '1'})\n"
        "    store.put('T', b'second', tags='B', properties={'a': '2'})\n"
        "    wanted = {'filter': lambda message: message.properties['a'] > '1'}\n"
        "    for batch in (store.get('T', 0, 0, **wanted), store.get('T', 0, 0, tags='B')):\n"
        "        print([bytes(message.body) for message in batch.messages])\n"
        "    print([bytes(message.body) for message in store.scan(**wanted)])\n"
        "    get, scan = (lambda sql: store.get('T', 0, 0, filter=sql)), (lambda sql: store.scan(filter=sql))\n"
        "    for call in (cystore.SqlFilter, get, scan):\n"
        "        try:\n"
        "            call('a > 1')\n"
        "        except ImportError as error:\n"
        "            print(error)"
    )
    assert new_process(code, tmp_path / "store").splitlines() == [
        *["[b'second']"] * 3,
        *["SQL filters need lark: pip install 'cystore[filter]'"] * 3,
    ]


# ------------------------------------------------------------------------------------------------- a text within


@pytest.mark.parametrize(
    ("texts", "choice"),
    [
        (("x" * 45,), lambda n: n % 50 >= 45),
        (("k1999",), lambda n: n == 1999),
        (("a\x01198",), lambda n: 1980 <= n <= 1989 or n == 198),
        (("b\x01z", b"k7\x02"), lambda n: n % 3 == 2 or n == 7),
        (("nowhere",), lambda n: False),
    ],
)
def test_a_text_within_a_message(store, texts, choice):
    """In the body, in a key, in a property as it is stored (name, value and the bytes around them), or one of two."""
    expected, wanted = [number for number in range(COUNT) if choice(number)], Contains(texts)
    assert everything(store, filter=wanted) == expected
    assert everything(store, filter=wanted, max_count=3) == expected
    assert everything(store, filter=wanted, tags="A") == [n for n in expected if n % 2 == 0]
    assert everything(store, filter=wanted, group="g") == expected
    assert [m.queue_offset for m in store.scan(filter=wanted)] == expected
    assert [m.queue_offset for m in store.scan() if wanted(m)] == expected


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=4))
def test_a_text_is_found_wherever_it_stands(tmp_path_factory, body, text):
    with open_small(tmp_path_factory.mktemp("store") / "store") as store:
        for one in (body, body + text, text + body, body[:20] + text + body[20:]):
            store.put("T", one)
        found = {message.queue_offset for message in store.get("T", 0, 0, filter=Contains(text)).messages}
        assert found >= {1, 2, 3} and (0 in found) == (text in body)


@pytest.mark.parametrize(
    "texts", [(), "", (b"",), None, (3,), "x" * 65_537, "\ud800", ("a",) * 17, bytearray(b"a"), {"a"}]
)
def test_a_bad_text_is_refused(texts):
    with pytest.raises(FilterError, match="Contains takes"):
        Contains(texts)


def test_a_text_filter_is_a_value():
    one = Contains(("a", b"b"))
    assert pickle.loads(pickle.dumps(one)) == one == Contains([b"a", "b"]) and one != Contains("a")
    assert len({one, Contains(("a", "b"))}) == 1 and repr(one) == "Contains((b'a', b'b'))"
    assert repr(Contains("a")) == "Contains(b'a')"


def test_a_damaged_record_is_told_whatever_text_is_wanted(store):
    """Its bytes may have had the text."""
    message = store.get("T", 0, 700, 1).messages[0]
    store.flush()
    with open(store.path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(message.physical_offset + 60)
        file.write(b"\xff" * 40)
    with pytest.raises(cystore.CorruptRecordError):
        everything(store, filter=Contains("nowhere"))
    with pytest.raises(cystore.CorruptRecordError):
        list(store.scan(filter=Contains("nowhere")))


@given(
    st.lists(st.integers(0, 300_000) | st.integers(0, 300), min_size=1, max_size=8),
    st.sampled_from((b"ab", b"aab", b"b", b"a" * 999 + b"b", b"\0b\0")),
    st.randoms(use_true_random=False),
)
def test_a_scan_steps_over_records_without_the_text(tmp_path_factory, sizes, text, random):
    """Long and short records, over several files; the text is often near, and stands across the ends of pieces."""
    with open_small(
        tmp_path_factory.mktemp("store") / "store", mapped_file_size_commit_log_bytes=1 << 20
    ) as store:
        for size in sizes:
            body = bytearray(b"a" * size)
            if random.random() < 0.5:
                at = random.randrange(size + 1)
                body[at:at] = text
            store.put("T", bytes(body))
        wanted, whole = Contains((text, b"elsewhere")), list(store.scan())
        expected = [message.physical_offset for message in whole if wanted(message)]
        assert [message.physical_offset for message in store.scan(filter=wanted)] == expected
        first, last = sorted(random.choices([message.physical_offset for message in whole], k=2))
        for end in (last, last + 1):  # a place inside of a record, too
            found = [message.physical_offset for message in store.scan(first, end, filter=wanted)]
            assert found == [place for place in expected if first <= place < end]


def test_a_text_across_the_end_of_a_piece_is_found(tmp_path):
    """The walk searches 64 KiB at once. Bodies move the text over the end of the first and of the second piece, byte by
    byte."""
    text = b"across"
    with open_small(tmp_path / "store", mapped_file_size_commit_log_bytes=64 << 20) as store:
        for pieces in (1, 2):
            for at in range((pieces << 16) - 200, (pieces << 16) + 20):
                store.put("T", bytes(at) + text + bytes(100))
        assert len(list(store.scan(filter=Contains(text)))) == 440


def test_a_scan_for_a_text_gives_what_is_compressed(tmp_path):
    """Its body is not searched."""
    with open_small(tmp_path / "store") as store:
        store.put("T", b"plain")
        store.put_many([Message(topic="T", body=zlib.compress(b"the text"), sys_flag=1)])
        store.put("T", b"the text")
        assert [message.queue_offset for message in store.scan(filter=Contains("the text"))] == [1, 2]


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 200))
def test_a_text_of_few_different_bytes_is_found(tmp_path_factory, within, text, kinds, at):
    """Bytes that are nearly the text all the time."""
    within, text = (bytes(byte % kinds for byte in one) for one in (within, text))
    with open_small(tmp_path_factory.mktemp("store") / "store") as store:
        for body in (within, within[:at] + text + within[at:]):
            message = store.read(store.put("T", body).physical_offset)
            head = bytes(message.properties.get("UNIQ_KEY", ""), "utf-8")
            assert Contains(text)(message) == (text in body) or text in head
