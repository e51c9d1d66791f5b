"""Goal: nothing that comes from Redis is trusted, on either side. Method: messages that are right, and the same with
one thing wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.celery.routing.messages import (
    HEADER_BYTES_MOST,
    ID_CHARS_MOST,
    IDS_MOST,
    MAGIC,
    PART_BYTES,
    REQUEST_BYTES_MOST,
    RESULT_BYTES_MOST,
    WAIT_MS_MOST,
    Answer,
    ForgedError,
    Found,
    ProtocolError,
    Request,
    filled,
)

HOME, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
ASKED = Request("0" * 32, HOME, ("a", "b"), "results", 100)
PART = Request("1" * 32, HOME, ("a",), part=(4711, 5))
READY = Found("a", "SUCCESS", True, None, 4711, 9, 0, b"123456789", "application/json", "utf-8")
ANSWER = Answer(ASKED.id, HOME, (READY, Found("b", known=True)))


@pytest.mark.parametrize("request_", [ASKED, PART, Request("a" * 32, HOME, ("ä b",), "groups")])
def test_a_request_comes_as_it_was_sent(request_):
    assert Request.parse(request_.encoded()) == request_


def test_an_answer_comes_as_it_was_sent():
    found = Answer.parse(ANSWER.encoded(), ASKED)
    assert [(one.id, bytes(one.body)) for one in found.found] == [("a", b"123456789"), ("b", b"")]
    assert found.found[0]._replace(body=READY.body) == READY
    part = READY._replace(begin=5, body=b"6789")
    answer = Answer.parse(Answer(PART.id, HOME, (part,)).encoded(), PART)
    assert (answer.found[0].begin, bytes(answer.found[0].body)) == (5, b"6789")
    refused = Answer.parse(Answer(ASKED.id, HOME, (), "busy").encoded(), ASKED)
    assert (refused.found, refused.refused) == ((), "busy")
    elsewhere = Answer(ASKED.id, HOME, (Found("a")._replace(elsewhere=OTHER), Found("b")))
    assert Answer.parse(elsewhere.encoded(), ASKED).found[0].elsewhere == OTHER


def test_only_the_answer_of_a_replica_says_how_fresh_it_is():
    replicas = ANSWER._replace(as_of_ms=1_700_000_000_000).encoded()
    assert Answer.parse(replicas, ASKED, of_replica=True).as_of_ms == 1_700_000_000_000
    with pytest.raises(ProtocolError, match="answer: an unknown field"):
        Answer.parse(replicas, ASKED)
    with pytest.raises(ProtocolError, match="as_of: missing"):
        Answer.parse(ANSWER.encoded(), ASKED, of_replica=True)


SECRET = b"a secret of this home"
SIGNED = ASKED._replace(signed=True)


def test_an_answer_proves_the_secret_of_its_home():
    proved = ANSWER.encoded_for(SIGNED, SECRET)
    assert [one.id for one in Answer.parse(proved, SIGNED, secret=SECRET).found] == ["a", "b"]
    assert Request.parse(SIGNED.encoded()) == SIGNED
    with pytest.raises(ProtocolError):
        Answer.parse(proved, SIGNED)
    for secret in (None, b""):  # a home without a secret cannot prove anything
        assert ANSWER.encoded_for(SIGNED, secret) == ANSWER.encoded()
    assert ANSWER.encoded_for(ASKED, SECRET) == ANSWER.encoded(), "who has no secret can read it"


@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_request_that_wants_a_proof_says_so(value):
    with pytest.raises(ProtocolError, match="signed"):
        Request.parse(json.dumps({**json.loads(SIGNED.encoded()), "signed": value}).encode())


@pytest.mark.parametrize(
    "data",
    [
        ANSWER.encoded(), b"", b"CYRS", b"CYRS" + bytes(32), b"CYRS" + bytes(32) + ANSWER.encoded(),
        ANSWER.encoded_for(SIGNED, b"another home's secret"),
        ANSWER.encoded_for(SIGNED, SECRET)[:-1], ANSWER.encoded_for(SIGNED, SECRET) + b"x",
        ANSWER.encoded_for(SIGNED, SECRET).replace(b"SUCCESS", b"FAILURE"),
        ANSWER.encoded_for(SIGNED, SECRET).replace(b"123456789", b"123456780"),
    ],
)  # fmt: skip
def test_an_answer_without_its_proof_is_forged(data):
    with pytest.raises(ForgedError, match=r"answer: its? "):
        Answer.parse(data, SIGNED, secret=SECRET)


@pytest.mark.parametrize(
    "other",
    [
        {"id": "f" * 32}, {"ids": ("a",)}, {"ids": ("b", "a")}, {"topic": "groups"}, {"wait_ms": 0}, {"home": OTHER},
        {"signed": False},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_to_one_request_proves_nothing_for_another(other):
    """Somebody kept it, and gives it to a later request, or asks something else under the id of a request."""
    asked = SIGNED._replace(**other)
    kept = ANSWER._replace(request_id=asked.id, home=asked.home).encoded()
    proved = ANSWER.encoded_for(SIGNED, SECRET)
    for data in (proved, proved[: 4 + 32] + kept):
        with pytest.raises(ForgedError, match="its proof is not that of"):
            Answer.parse(data, asked, secret=SECRET)


def test_a_home_whose_secret_is_not_known_is_not_believed():
    with pytest.raises(ForgedError, match="names no secret of this home"):
        Answer.parse(ANSWER.encoded_for(SIGNED, SECRET), SIGNED, secret=b"")


def test_an_answer_holds_no_more_than_its_bound():
    """A result that does not fit is asked for in parts."""
    bodies = {"a": b"x" * (PART_BYTES - 1), "b": b"y" * 10, "c": b"z"}
    found = [READY._replace(id=name, size_bytes=len(body), body=b"") for name, body in bodies.items()]
    sizes = [len(one.body) for one in filled(found, lambda one: bodies[one.id])]
    assert sizes == [PART_BYTES - 1, 1, 0]


WRONG_REQUESTS = {
    "v": [0, 2, "1", None, True, 1.0],
    "request": ["", "0" * 31, "0" * 33, "G" * 32, "../" + "0" * 29, 7, None],
    "home": ["", HOME.upper().replace("1", "A"), HOME + "\n", "x" * 36, 1, None, [HOME]],
    "op": ["", "eval", 1, None],
    "topic": ["", "celery_results", "config", None],
    "ids": [
        [],
        ["x"] * (IDS_MOST + 1),
        [1],
        [""],
        ["x" * (ID_CHARS_MOST + 1)],
        ["a\x00"],
        "a",
        None,
        {"a": 1},
    ],
    "wait_ms": [-1, WAIT_MS_MOST + 1, "1", None, 1.5, True],
    "more": [1],
    "at": [1],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG_REQUESTS.items() for v in values])
def test_a_request_with_something_wrong_is_refused(field, value):
    told = {**json.loads(ASKED.encoded()), field: value}
    with pytest.raises(ProtocolError, match=field if field in ASKED.encoded().decode() else "unknown field"):
        Request.parse(json.dumps(told).encode())


@pytest.mark.parametrize(
    "told",
    [{"at": -1}, {"at": 1 << 63}, {"from": RESULT_BYTES_MOST + 1}, {"ids": ["a", "b"]}, {"wait_ms": 1}],
)
def test_a_request_for_a_part_is_checked_too(told):
    with pytest.raises(ProtocolError):
        Request.parse(json.dumps({**json.loads(PART.encoded()), **told}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b"[" * 100_000,
        b" " * (REQUEST_BYTES_MOST + 1),
        b"\x80\x05cos\nsystem\n.",
    ],
)
def test_what_is_no_request_is_refused(data):
    with pytest.raises(ProtocolError):
        Request.parse(data)


def test_a_request_that_would_be_refused_is_not_sent():
    with pytest.raises(ProtocolError, match="ids"):
        ASKED._replace(ids=("x" * (ID_CHARS_MOST + 1),)).encoded()


def crafted(payload: bytes = b"123456789", **fields: object) -> bytes:
    """ANSWER with other fields; `results__NAME` are those of its first result."""
    told = json.loads(ANSWER.encoded()[8:-9])
    for name, value in fields.items():
        outer, _, inner = name.partition("__")
        if inner:
            told[outer][0][inner] = value
        else:
            told[outer] = value
    header = json.dumps(told).encode()
    return MAGIC + len(header).to_bytes(4, "big") + header + payload


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2}, {"v": None}, {"request": "1" * 32}, {"home": OTHER}, {"home": None}, {"results": None},
        {"results": [1]},
        {"results": []}, {"results": [{"id": "a", "known": True}] * 2}, {"refused": 1}, {"refused": "x" * 257},
        {"more": 1},
        {"results__id": "c"}, {"results__id": "b"}, {"results__known": 1}, {"results__home": "elsewhere"},
        {"results__state": 1}, {"results__state": ""}, {"results__at": -1}, {"results__size": RESULT_BYTES_MOST + 1},
        {"results__size": 8}, {"results__size": True}, {"results__from": 1}, {"results__here": 10},
        {"results__here": 8},
        {"results__here": -1}, {"results__type": None}, {"results__encoding": "x" * 300}, {"results__more": 1},
        {"payload": b"12345678"}, {"payload": b"1234567890"},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_with_something_wrong_is_refused(fields):
    assert Answer.parse(crafted(), ASKED).found[0].id == "a"
    with pytest.raises(ProtocolError):
        Answer.parse(crafted(**fields), ASKED)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"CYR1", b"CYR1\xff\xff\xff\xff", b"CYR1\0\0\0\2{}", b"CYR2" + ANSWER.encoded()[4:], ANSWER.encoded()[:-1],
        ANSWER.encoded() + b"x", b"\0" * (HEADER_BYTES_MOST + PART_BYTES + 100),
    ],
    ids=lambda data: repr(data[:8]),
)  # fmt: skip
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(ProtocolError):
        Answer.parse(data, ASKED)


@given(st.binary(max_size=200), st.integers(0, len(ANSWER.encoded())))
def test_any_bytes_are_an_answer_or_a_protocol_error(noise, at):
    whole = ANSWER.encoded()
    for data in (noise, MAGIC + noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            Answer.parse(data, ASKED)
        except ProtocolError:
            pass
        try:
            Request.parse(data)
        except ProtocolError:
            pass
