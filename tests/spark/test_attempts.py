"""Goal: attempts and fingerprints come out of odd events right. Method: columns made by hand, beside a look at each
row; no session."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

import pyarrow as pa

import cystore
from cystore.celery.base import events as layout
from cystore.errors import StoreConfigError
from cystore.reports import attempts, details, task_layout
from cystore.reports.fingerprints import classes, fingerprints
from cystore.spark import task_events
from cystore.spark.data_source import CystoreDataSource
from tests.spark.test_report import told

FRAME = (
    'Traceback (most recent call last):\n  File "{file}", line {line}, in {function}\n'
    "    raise E(x)\n    ^^^^^\n{message}"
)


def prints(*tracebacks: str, name: str = "shop.E") -> list[str]:
    return fingerprints(pa.array([name] * len(tracebacks)), pa.array(tracebacks, pa.string())).to_pylist()


def at(
    file: str = "/srv/shop.py", line: int = 17, function: str = "pay", message: str = "shop.E: refused"
) -> str:
    return FRAME.format(file=file, line=line, function=function, message=message)


@pytest.mark.parametrize(
    "files",
    [
        [f"/srv/release-{n}/shop.py" for n in (1, 20, 20260401)],
        ["/srv/f47ac10b-58cc-4372-a567-0e02b2c3d479/a.py", "/srv/00000000-aaaa-bbbb-cccc-0e02b2c3dddd/a.py"],
        ["/tmp/tmpab3x9_qk/a.py", "/tmp/tmpzzzzzzzz/a.py"],
        [
            "/app/0123456789abcdef/a.py",
            "/app/abcdefabcdefabcd/a.py",
            "/app/a1b2c3d/a.py",
            "/app/1234567/a.py",
        ],
        ["/x/01ARZ3NDEKTSV4RRFFQ69G5FAV/a.py", "/x/01BX5ZZKBKACTAV9WEVGEMMVRZ/a.py"],
        ["<ipython-input-5-0a1b2c3d4e5f>", "<ipython-input-17-ffffffffffff>"],
        ["/s/a.py"] * 3,
    ],
)
def test_one_place_is_one_fingerprint_whatever_ids_are_in_its_path(files):
    made = prints(
        *(at(file=file, message=f"shop.E: order {n} at 0x7f{n:04x}") for n, file in enumerate(files))
    )
    assert len(set(made)) == 1 and len(made[0]) == 16


def test_other_places_have_other_fingerprints():
    made = prints(at(), at(line=18), at(function="ship"), at(file="/srv/mail.py"), "", at() + at(line=18))
    assert len(set(made)) == len(made)
    assert prints(at()) != prints(at(), name="shop.F")
    assert fingerprints(pa.array([None, "E"]), pa.array([None, None], pa.string())).to_pylist()[0] is None


def test_messages_count_for_nothing_and_bars_do_not_hide_frames():
    """Messages of several lines, and of exceptions in groups."""
    odd = [at(message=f"shop.E: {n}\n  one more line\n{n * 'x'}\n") for n in range(5)]
    assert len(set(prints(*odd))) == 1
    group = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "{}", line {}, in pay\n  | E: 1\n'
    )
    assert len(set(prints(group.format("a.py", 1), group.format("a.py", 2)))) == 2


def test_long_tracebacks_that_were_cut_are_one_row():
    """Where the cut falls depends on the length of the message, so which frames stand around it differs."""
    from cystore.celery.lifecycle.redaction import CUT, shortened
    from cystore.reports.fingerprints import CUT as KNOWN

    frames = "".join(f'  File "/srv/a.py", line {n}, in f{n}\n    call({"x" * 60})\n' for n in range(200))
    texts = [shortened(f"{frames}shop.E: order {'7' * n}", 8192) for n in range(0, 400, 7)]
    assert CUT == KNOWN and all(CUT in text for text in texts)
    assert len(set(prints(*texts))) == 1


def test_classes_are_names():
    said = {
        "shop.E('x')": "shop.E",
        "<HTTPError 404: 'Not Found'>": "HTTPError",
        "<shop.E object at 0x7f>": "shop.E",
        "'just text'": "just",
        "404": "FAILED",
        None: "FAILED",
    }
    assert classes(pa.array(said), pa.array(["FAILED"] * len(said))).to_pylist() == list(said.values())


BODIES = [
    b"{}",
    b'{"runtime":1.5,"retries":2,"worker":"w","message":{"a":[1,{"b":2}]}}',
    b'{"exception":"E(\\"}{\\")","requeue":true}',
    b'{"runtime":"much","retries":3.5,"worker":7}',
    b'{"runtime":true,"retries":99999999999}',
    b'{\n"runtime": 2\n}',
    b"",
    b"no json",
    b"[1]",
    b"{}{}",
    b'{"worker":"\xff"}',
    b'{"worker":"\\ud800"}',
    b'{"worker":"a","worker":"b"}',
    b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    '{"worker":"häuser@\\u00fc"}'.encode(),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_an_odd_body_harms_no_other_one(body):
    """Bodies are parsed by whole batches: the fast way says what the careful one says, and one odd body changes
    nothing for others."""
    good = b'{"runtime":0.25,"worker":"celery@a","retries":1}'
    alone = details.details_of(pa.array([good])).to_pylist()
    careful = details._by_python(pa.array([body], pa.binary())).to_pylist()
    found = details.details_of(pa.array([good, body, good], pa.binary())).to_pylist()
    assert [found[0], found[2]] == alone * 2
    assert found[1] == careful[0]


def test_the_fast_way_is_taken():
    bodies = pa.array(
        [json.dumps({"v": 1, "runtime": n / 8, "args": "({})", "retries": n}).encode() for n in range(99)]
    )
    assert details._by_arrow(bodies).to_pylist() == details._by_python(bodies).to_pylist()


def test_attempts_say_the_same_however_the_log_is_cut(tmp_path, make_store):
    """Rows of one attempt from two batches are joined later; here nothing may be lost or told twice."""
    store = make_store()
    odd = "id with % and + and ünï"
    store.put_many(
        [
            told("SENT", "a", odd, "root 1", eta="2026-01-01T00:00:00+02:00"),
            told("RECEIVED", "a", odd, "root 1", worker="w1", queue="q"),
            told("STARTED", "a", odd, "root 1", worker="w1"),
            told("FAILED", "a", odd, "root 1", runtime=2.0, exception="E(1)", traceback=at()),
            told("REDELIVERED", "a", odd, "root 1", worker="w2", retries=1),
            told("SENT", None, None),
            cystore.Message(topic=layout.EVENTS, body=b"x", keys=(layout.root_key("r"),), tags="STARTED"),
        ]
    )
    store.flush()
    source = CystoreDataSource({"path": str(store.path), "taskAttempts": "true"})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    first = next(row for row in rows if row["task_id"] == odd and row["retries"] == 0)
    assert (first["root_id"], first["deliveries"], first["outcome"], first["failed"]) == (
        "root 1",
        1,
        "FAILED",
        True,
    )
    assert (first["class"], first["worker"], first["queue"]) == ("E", "w1", "q")
    assert first["eta"] == datetime(2025, 12, 31, 22, tzinfo=UTC)
    assert first["sent"] <= first["received"] <= first["started"] <= first["ended"]
    again = next(row for row in rows if row["task_id"] == odd and row["retries"] == 1)
    assert (again["deliveries"], again["outcome"], again["failed"], again["worker"]) == (1, None, False, "w2")
    for options in ({"columns": "offset"}, {"topic": "a"}, {"onCorruption": "column"}):
        with pytest.raises(StoreConfigError, match="taskAttempts"):
            CystoreDataSource({"path": str(store.path), "taskAttempts": "true", **options}).schema()


def test_the_layout_is_the_one_that_workers_write():
    assert task_layout.TOPIC == layout.EVENTS
    assert task_layout.FAILURES == layout.FAILURES
    assert task_layout.ENDS_OF_CODE == layout.ENDS_OF_CODE
    assert task_layout.ROOT == layout.ROOT
    for name in (
        "SENT",
        "RECEIVED",
        "REDELIVERED",
        "STARTED",
        "SUCCEEDED",
        "RETRIED",
        "REVOKED",
        "IGNORED",
        "SKIPPED",
        "CANCELLED",
    ):
        assert getattr(task_layout, name) == getattr(layout, name)
    ends = {*task_layout.FAILURES, *task_layout.UNCOUNTED, task_layout.SUCCEEDED, task_layout.RETRIED}
    others = {"SENT", "SCHEDULED", "FIRED", "RECEIVED", "REDELIVERED", "STARTED", "INTERNAL_ERROR"}
    assert ends | others == set(layout.KINDS), "each event ends an attempt, or belongs to its begin"
    told = {field.split()[0] for field in task_events.DETAILS.split(", ")}
    assert told <= set(layout.FIELDS)


def test_the_layout_of_attempts_is_that_of_events():
    assert set(details.SCHEMA.names) <= set(layout.FIELDS)
    assert {field.split()[0] for field in task_events.DETAILS.split(", ")} == set(details.SCHEMA.names)
    assert set(attempts.SCHEMA.names) >= set(details.SCHEMA.names) - {"requeue"}
