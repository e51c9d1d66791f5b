"""Goal: the kernel's own functions in front of `put`, `get`, `read` and `query` differ from the methods in speed
alone. Method: the same calls of both, usual and odd ones, beside another process that adds index files, after close,
and in a child."""

from __future__ import annotations

import inspect

import pytest

import cystore
from cystore.derived.reading.reader import Reader
from cystore.errors import MessageIllegalError, OffsetError, StoreClosedError, StoreError
from tests.support.child import in_child
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small


class Text(str):
    """Text that is not quite str."""


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s", max_index_num=20) as store:
        for n in range(100):
            store.put("T", b"%d" % n, keys=(f"k{n % 7}", "ключ", "\ufffd" if n % 2 else "all"), tags="A")
        yield store


def found(query, *arguments, **keywords):
    return [message.queue_offset for message in query(*arguments, **keywords)]


def test_methods_are_the_kernels_own(store):
    for name in ("put", "put_many", "query", "get", "read"):
        assert not inspect.ismethod(getattr(store, name)) or getattr(store, name).__self__ is not store


@pytest.mark.parametrize("key", ["k0", "k6", "all", "ключ", "\ufffd", "none", "", Text("k3"), "k1 k2"])
def test_a_query_finds_what_the_method_finds(store, key):
    for arguments in ((), (3,), (1000,), (True + 1,)):
        expected = found(store._attached().reader.query, "T", key, *arguments)
        assert found(store.query, "T", key, *arguments) == expected
        assert found(store.query, Text("T"), key, *arguments) == expected
        assert found(store.query, topic="T", key=key) == expected[:32] or arguments
    times = [message.store_timestamp_ms for message in store.scan()]
    for begin_ms, end_ms in ((0, None), (times[50], None), (0, times[50]), (times[-1] + 1, None)):
        assert found(store.query, "T", key, begin_ms=begin_ms, end_ms=end_ms) == found(
            store._attached().reader.query, "T", key, begin_ms=begin_ms, end_ms=end_ms
        )


def test_the_usual_queries_are_the_kernels_and_are_counted(store, monkeypatch):
    store.dispatch()
    before = store.stats()["queries"]
    with monkeypatch.context() as patched:
        patched.delattr(Reader, "query")  # the general way
        for n in range(10):
            assert len(store.query("T", f"k{n % 7}")) >= 14
        with pytest.raises(AttributeError):
            store.query("T", "ключ")
    assert store.stats()["queries"] == before + 10
    store.query("T", "ключ")
    assert store.stats()["queries"] == before + 11


def test_a_query_sees_what_was_appended_before_it_and_new_index_files(store, tmp_path):
    """Each file holds 19 keys: the other process makes some, and this one too."""
    query = store.query
    with Process() as other:
        other.send(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(store.path),
            settings={**SETTINGS, "max_index_num": 20},
        )
        other.answer()
        for n in range(50):
            other.do(f"store.put('T', b'', keys=('other', 'o{n}'))")
            assert len(query("T", f"o{n}")) == 1
            store.put("T", b"", keys=("mine", f"m{n}"))
            assert other.do(f"len(store.query('T', 'm{n}'))") == 1
            other.do("store.dispatch()")
        assert len(query("T", "other", 100)) == len(query("T", "mine", 100)) == 50
        other.do("store.close()")


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("T",), {}),
        ((), {"key": "k"}),
        (("T", "k", 1, 2), {}),
        (("T", "k"), {"nothing": 1}),
        (("T", "k"), {"topic": "T"}),
    ],
)
def test_arguments_that_a_query_does_not_take(store, arguments, keywords):
    with pytest.raises(TypeError, match="query"):
        store.query(*arguments, **keywords)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, "k"), "topic"),
        (("T", 1), "key"),
        (("T", b"k"), "key"),
        (("T", "k", 0), "max_count"),
        (("T", "\ud800"), "key"),
    ],
)
def test_what_a_query_refuses(store, arguments, words):
    with pytest.raises(MessageIllegalError, match=words):
        store.query(*arguments)


def test_a_put_takes_its_arguments_however_they_are_given(store):
    put, wanted = store.put, {"keys": ("a",), "tags": "t", "properties": {"p": "v"}, "flag": 7, "queue_id": 3}
    offsets = [
        put("P", b"body", **wanted).physical_offset,
        put(topic="P", body=b"body", **wanted).physical_offset,
        put("P", body=b"body", **wanted).physical_offset,
        put(
            "P", b"body", **{"".join(list(name)): value for name, value in reversed(wanted.items())}
        ).physical_offset,
    ]
    for message in map(store.read, offsets):
        assert (message.topic, bytes(message.body), message.keys, message.tags) == ("P", b"body", ("a",), "t")
        assert (message.properties["p"], message.flag, message.queue_id) == ("v", 7, 3)
    assert inspect.signature(put).parameters.keys() == inspect.signature(
        cystore.MessageStore.put
    ).parameters.keys() - {"self"}
    assert [p.default for p in inspect.signature(put).parameters.values()] == [
        p.default
        for name, p in inspect.signature(cystore.MessageStore.put).parameters.items()
        if name != "self"
    ]


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("T",), {}),
        ((), {}),
        (("T", b"", 0), {}),
        (("T", b""), {"nothing": 1}),
        (("T", b""), {"topic": "T"}),
        (("T",), {"keys": ()}),
    ],
)
def test_arguments_that_a_put_does_not_take(store, arguments, keywords):
    before = store.stats()["wrote"]
    with pytest.raises(TypeError, match="put"):
        store.put(*arguments, **keywords)
    assert store.stats()["wrote"] == before


def answer(result):
    """The answer of a get, without identities."""
    return (
        result.status,
        [(m.queue_offset, bytes(m.body)) for m in result.messages],
        (result.next_offset, result.min_offset, result.max_offset, result.behind),
        result.raw,
        None if result.record_offsets is None else list(result.record_offsets),
    )


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("T", 0, 0), {}),
        (("T", 0, 0, 1), {}),
        (("T", 0, 40, 7), {}),
        (("T", 0, 90), {"max_count": 1000}),
        (("T", 0, 99, True + 1), {"raw": True}),
        (("T", 0, 5, 40), {"raw": True, "group": "g"}),
        (("T", 0, 100), {}),
        (("T", 0, 200), {}),
        (("T", 0, -1), {}),
        (("T", 1, 0), {}),
        (("none", 0, 0), {"raw": True}),
        (("ключ", 0, 0), {}),
        (("T", 0, 0), {"tags": "A"}),
        (("T", 0, 0), {"tags": "B || C"}),
        ((Text("T"), 0, 3), {}),
        ((), {"topic": "T", "queue_id": 0, "queue_offset": 3, "max_count": 2}),
    ],
)
def test_a_get_gives_what_the_method_gives(store, arguments, keywords):
    asked = {name: value for name, value in keywords.items() if name != "group"}  # the store's own
    expected = answer(store._attached().reader.get(*arguments, **asked))
    assert answer(store.get(*arguments, **keywords)) == expected


def test_the_usual_gets_are_the_kernels_and_are_counted(tmp_path, monkeypatch):
    """The kernel finds the queue's file and the log's segment once; then no Python code runs."""
    with open_small(tmp_path) as store:
        store.put("T", b"first", keys=("k",))
        store.get("T", 0, 0), store.read(0)
        before = store.stats()
        monkeypatch.setattr("cystore.derived.reading.reader.Reader.get", None)
        monkeypatch.setattr("cystore.engine.log.commit_log.CommitLog.read", None)
        for n in range(50):
            put = store.put("T", b"new", keys=(f"n{n}",))
            assert bytes(store.get("T", 0, put.queue_offset, 1).messages[0].body) == b"new"
            assert store.read(put.physical_offset).queue_offset == put.queue_offset
        after = store.stats()
    assert after["get_found"] - before["get_found"] == after["get_messages"] - before["get_messages"] == 50
    assert after["dispatch_behind_bytes"] == 0


def test_a_query_of_what_was_just_put_is_the_kernels(tmp_path, monkeypatch):
    with open_small(tmp_path) as store:
        store.put("T", b"first", keys=("k",))
        assert len(store.query("T", "k")) == 1
        monkeypatch.setattr("cystore.derived.reading.reader.Reader.query", None)
        for n in range(50):
            put = store.put("T", b"new", keys=(f"n{n}",))
            assert [m.physical_offset for m in store.query("T", f"n{n}")] == [put.physical_offset]


def test_a_body_keeps_its_bytes_and_nothing_else_of_the_file(tmp_path):
    with open_small(tmp_path) as store:
        put = store.put("T", b"0123456789")
        body = store.read(put.physical_offset).body
    assert (body.readonly, body.nbytes, body.format, body.contiguous) == (True, 10, "B", True)
    assert bytes(body[3:5]) == b"34"  # after close
    with pytest.raises(TypeError):
        body[0] = 1


def test_a_get_sees_what_another_process_put(store):
    with Process() as other:
        other.send(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(store.path),
            settings={**SETTINGS, "max_index_num": 20},
        )
        other.answer()
        for n in range(30):
            other.do(f"store.put('T', b'other', keys=('o{n}',))")
            found = store.get("T", 0, 100 + 2 * n, 1)
            assert [bytes(m.body) for m in found.messages] == [b"other"]
            store.put("T", b"mine", keys=(f"m{n}",))
            assert other.do(f"bytes(store.get('T', 0, {101 + 2 * n}, 1).messages[0].body).decode()") == "mine"
        other.do("store.close()")


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("T",), {}),
        (("T", 0), {}),
        (("T", 0, 0, 1, None), {}),
        (("T", 0, 0, 1), {"max_count": 1}),
        (("T", 0, 0), {"nothing": 1}),
        (("T", 0, 0), {"topic": "T"}),
    ],
)
def test_arguments_that_a_get_does_not_take(store, arguments, keywords):
    with pytest.raises(TypeError, match="get"):
        store.get(*arguments, **keywords)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 0, 0), "topic"),
        (("T", "0", 0), "queue_id"),
        (("T", -1, 0), "queue_id"),
        (("T", 1 << 31, 0), "queue_id"),
        (("T", 0, 1.0), "queue_offset"),
        (("T", 0, 0, 0), "max_count"),
        (("T", 0, 0, 1 << 31), "max_count"),
    ],
)
def test_what_a_get_refuses(store, arguments, words):
    with pytest.raises(MessageIllegalError, match=words):
        store.get(*arguments)


@pytest.mark.parametrize("offset", [-1, 1, 1 << 40, 1 << 70, "0", None, 1.5])
def test_what_a_read_refuses(store, offset):
    with pytest.raises(OffsetError if not isinstance(offset, int) or offset != 1 else StoreError):
        store.read(offset)


def test_what_a_child_was_given_by_its_parent_works_there(store):
    put, query, get, read = store.put, store.query, store.get, store.read
    assert len(query("T", "k0")) == 15
    assert len(get("T", 0, 0).messages) == 32

    def work() -> None:
        assert len(get("T", 0, 0).messages) == 32
        assert read(0).queue_offset == 0
        put("T", b"", keys=("child",))
        assert len(query("T", "child")) == 1
        assert len(query("T", "k0")) == 15

    assert in_child(work) == 0
    assert len(query("T", "child")) == 1


def test_what_was_bound_before_close_is_refused(store):
    put, query, get, read = store.put, store.query, store.get, store.read
    store.close()
    calls = (
        lambda: put("T", b""),
        lambda: query("T", "k0"),
        lambda: query("T", "ключ"),
        lambda: get("T", 0, 0),
        lambda: read(0),
    )
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
