"""Goal: a SQL92 filter says to every message what RocketMQ's own filter says. Method: hypothesis makes expressions,
whole ones and broken ones, and properties of all types; both sides judge them. One difference is on purpose: text
behind a whole expression."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cystore
from cystore import FilterError, SqlFilter

NAMES = ("a", "b", "$c_1", "Not_", "KEYS")
VALUES = (
    "0", "1", "3", "-1", "+7", "007", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1.5", "-0.0", "0.0", "1e3", "1.", ".5",
    ".", "-", "1_0",
    " 1", "1 ", "\t1.5\n", "1d", "1.5F", "1L", "NaN", "-NaN", "Infinity", "-Infinity", "infinity", "0x1p4", "0x.8P-1d",
    "0x10", "1e400",
    "-1e400", "1e-400", "0.1", "123456789012345678", "0.30000000000000004", "9007199254740993", "true", "TRUE", "tRuE",
    "false", "yes",
    "x", "X", "it's", "ü", "日本", "٣", "１２", "1\u00a0", "\U0001d7d9", "�",
    "null", "4.9E-324", "2.4703282292062327e-324",
    "1.7976931348623159e308", "e5", "1e", "1e+", "1e+05", "--1", "+-1", "0x", "0x1", "0x1.p1", "fd", "1fd",
)  # fmt: skip
LITERALS = (
    "0", "1", "3", "7", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1L", "3l", "1.5",
    "1.", ".5", "1e3",
    "5.E1", "0.0", "1e400", "0.1", "9007199254740993", "16.0", "TRUE", "false", "NULL", "'x'", "'it''s'", "'1'",
    "'true'", "''", "'ü'",
    "'日本'", "0L", "007", "4.9E-324",
)  # fmt: skip
BLANKS = (" ", "\t", "\n", " /* a * b */ ", " /***/ ", "--x\n ", "  ")

names = st.sampled_from(NAMES)
texts = st.sampled_from(("'x'", "'1'", "'it''s'", "'ü'", "''", "'true'", "'日本'", "'x '", "'3'"))
operands = st.one_of(names, names, st.sampled_from(LITERALS))


def of(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions of smaller ones."""
    ordered = st.sampled_from(("=", "<>", "<", "<=", ">", ">="))
    lists = st.lists(texts, min_size=1, max_size=7).map(lambda one: "(" + ", ".join(one) + ")")
    maybe_not = st.sampled_from(("", "NOT ", "not "))
    return st.one_of(
        st.tuples(words, ordered, words).map(" ".join),
        st.tuples(words, st.sampled_from(("AND", "OR", "and", "oR")), words).map(" ".join),
        st.tuples(words, st.sampled_from(("IS NULL", "IS NOT NULL", "is not null"))).map(" ".join),
        st.tuples(words, maybe_not, words, words).map(lambda p: f"{p[0]} {p[1]}BETWEEN {p[2]} AND {p[3]}"),
        st.tuples(words, maybe_not, lists).map(lambda p: f"{p[0]} {p[1]}IN {p[2]}"),
        st.tuples(st.sampled_from(("NOT ", "-", "+", "- -")), words).map("".join),
        words.map(lambda one: f"({one})"),
        words.map(lambda one: f"({one})"),
    )


expressions = st.recursive(operands, of, max_leaves=8)
# A typical expression, so that most are not refused.
comparisons = st.tuples(
    names, st.sampled_from(("=", "<>", "<", "<=", ">", ">=")), st.one_of(names, st.sampled_from(LITERALS))
).map(" ".join)
usual = st.recursive(
    st.one_of(comparisons, comparisons, st.tuples(names, texts).map(lambda p: f"{p[0]} IN ({p[1]}, 'x')")),
    lambda one: st.one_of(
        st.tuples(one, st.sampled_from((" AND ", " OR ")), one).map(lambda p: f"({''.join(p)})"),
        one.map(lambda inner: f"NOT ({inner})"),
    ),
    max_leaves=6,
)
spaced = st.tuples(st.one_of(usual, expressions), st.sampled_from(BLANKS)).map(
    lambda p: p[0].replace(" ", p[1])
)
# What a hand that slips makes of an expression.
broken = st.tuples(
    usual, st.integers(0, 40), st.sampled_from(("", "'", "(", ")", " #", "\x00", " x", "--", "/*", " = ", ",", "5",
                                                "İ", "ſ", "\u00a0"))
).map(lambda p: p[0][: p[1]] + p[2] + p[0][p[1] + 1 :])  # fmt: skip
messages = st.dictionaries(names, st.sampled_from(VALUES), max_size=4)


def ours(expression: str, given_messages: list[dict[str, str]]) -> dict:
    try:
        compiled = SqlFilter(expression)
    except FilterError as error:
        return {"refused": str(error), "position": error.position}
    return {"matches": [compiled.matches(properties) for properties in given_messages]}


def compare(rocketmq, some: list[str], given_messages: list[dict[str, str]]) -> list[dict]:
    answers = rocketmq.filter(some, given_messages)
    for expression, theirs in zip(some, answers, strict=True):
        mine = ours(expression, given_messages)
        if "refused" in theirs or theirs["rest"]:
            assert "refused" in mine, (expression, theirs)
            assert 0 <= mine["position"] <= len(expression) and mine["refused"].startswith("filter: ")
        else:
            assert mine.get("matches") == theirs["matches"], (expression, given_messages, mine, theirs)
    return answers


@settings(max_examples=60, deadline=None)
@given(
    some=st.lists(st.one_of(spaced, usual, usual, broken), min_size=30, max_size=60),
    many=st.lists(messages, min_size=8, max_size=16),
)
def test_every_expression_gives_what_rocketmq_gives(rocketmq, some, many):  # fmt: skip
    compare(rocketmq, some, many)


def test_every_value_beside_every_literal(rocketmq):
    pairs = [
        f"{left} {word} {right}"
        for word in ("=", "<>", "<", ">=")
        for literal in (*LITERALS, "b", "-1", "-2147483648", "-1.5")
        for left, right in (("a", literal), (literal, "a"))
    ]
    many = [{"a": value, "b": other} for value in VALUES for other in ("1", "x", "NaN", "-0.0")]
    answers = compare(rocketmq, pairs, many)
    matched = sum(sum(one.get("matches", ())) for one in answers)
    assert (
        matched > 1000 and sum("refused" in one for one in answers) > 20
    )  # neither side says the same to all


def test_text_behind_an_expression_is_refused_by_us_alone(rocketmq):
    (answer,) = rocketmq.filter(["a = 1 b = 2"], [{"a": "1", "b": "3"}])
    assert answer == {"rest": True, "matches": [True]}
    with pytest.raises(FilterError, match="'b = 2' is not expected at position 6") as caught:
        SqlFilter("a = 1 b = 2")
    assert caught.value.position == 6


def test_stored_messages_match_as_their_properties_do(rocketmq, tmp_path):
    """Through `get`, over messages that a store holds."""
    kept = [{"a": str(number), "b": "xyz"[number % 3]} for number in range(100)]
    chosen = ["a > 50 AND b IN ('x', 'y')", "NOT (b = 'x') OR a < 3", "c IS NULL AND a BETWEEN 5 AND 9"]
    with cystore.open(tmp_path / "store") as store:
        for properties in kept:
            store.put("T", b"body", properties=properties)
        for expression, theirs in zip(chosen, rocketmq.filter(chosen, kept), strict=True):
            found = store.get("T", 0, 0, 100, filter=expression)
            numbers = [number for number, one in enumerate(theirs["matches"]) if one]
            assert [message.queue_offset for message in found.messages] == numbers[: len(found.messages)]
            assert len(found.messages) == min(len(numbers), 32) and numbers
