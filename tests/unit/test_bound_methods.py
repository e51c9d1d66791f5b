"""Goal: the kernel's own functions in front of `put` and `query` differ from the methods in speed alone. Method: the same calls of both,
usual and odd ones, beside another process that adds index files, after close, and in a child."""

from __future__ import annotations

import inspect

import pytest

import cystore
from cystore.errors import MessageIllegalError, StoreClosedError
from tests.child import in_child
from tests.process import Process
from tests.small import SETTINGS, open_small


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
    for name in ("put", "put_many", "query"):
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


def test_the_usual_queries_are_the_kernels_and_are_counted(store):
    store.dispatch()
    before = store.stats()["queries"]
    for n in range(10):
        assert len(store.query("T", f"k{n % 7}")) >= 14
    kernel = store.query.func.__self__
    assert kernel.queries == 10
    assert store.stats()["queries"] == before + 10
    store.query("T", "ключ")
    assert (kernel.queries, store.stats()["queries"]) == (10, before + 11)


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


def test_what_a_child_was_given_by_its_parent_works_there(store):
    put, query = store.put, store.query
    assert len(query("T", "k0")) == 15

    def work() -> None:
        put("T", b"", keys=("child",))
        assert len(query("T", "child")) == 1
        assert len(query("T", "k0")) == 15

    assert in_child(work) == 0
    assert len(query("T", "child")) == 1


def test_what_was_bound_before_close_is_refused(store):
    put, query = store.put, store.query
    store.close()
    for call in (lambda: put("T", b""), lambda: query("T", "k0"), lambda: query("T", "ключ")):
        with pytest.raises(StoreClosedError):
            call()
