"""Goal: a body is a memoryview of its own message's bytes for as long as a program has it, although the view of a
message that is gone becomes the view of a later one. Method: read batches whose views are kept, hashed, exported,
referenced weakly, released or found by the garbage collector, and compare every body with what was put."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

import cystore
from tests.support.small_stores import open_small

COUNT = 200  # more than there are spare views
SPARES = sys.implementation.name == "cpython" and sys.version_info < (3, 14)


def body_of(number: int) -> bytes:
    return f"body {number}".encode() + bytes(number % 7)


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path) as store:
        store.put_many([cystore.Message(topic="T", body=body_of(n)) for n in range(COUNT)])
        store.dispatch()
        yield store


def read(store: cystore.MessageStore, begin: int = 0, count: int = 32) -> list[cystore.Message]:
    return store.get("T", 0, begin, count).messages


def read_all(store: cystore.MessageStore) -> None:
    """Reads all messages and looks at each body, so views are made, become spare and are used again."""
    for begin in range(0, COUNT, 32):
        for number, message in enumerate(read(store, begin), begin):
            assert message.body == body_of(number)
            assert len(message.body) == message.body.nbytes == len(body_of(number))


def spare_views() -> list[memoryview]:
    """The spare views: released ones, with no program's reference. The collector knows them."""
    found = []
    for view in gc.get_objects():
        if type(view) is memoryview:
            try:
                len(view)
            except ValueError:
                found.append(view)
    return found


def test_a_kept_view_keeps_its_bytes_while_others_are_read(store):
    kept = {number: message.body for number, message in enumerate(read(store))}
    for _ in range(3):
        read_all(store)
    assert {number: bytes(view) for number, view in kept.items()} == {n: body_of(n) for n in range(32)}


def test_a_view_that_has_a_part_or_a_weak_reference_is_not_used_again(store):
    part = read(store, 1, 1)[0].body[2:]
    known = read(store, 2, 1)[0].body
    reference = weakref.ref(known)
    del known
    read_all(store)
    assert bytes(part) == body_of(1)[2:]
    assert reference() is None


def test_each_body_has_the_hash_and_the_shape_of_its_bytes(store):
    for _ in range(2):
        for begin in range(0, COUNT, 32):
            for number, message in enumerate(read(store, begin), begin):
                body = message.body
                assert hash(body) == hash(body_of(number))
                assert (body.readonly, body.format, body.itemsize, body.ndim) == (True, "B", 1, 1)
                assert (body.shape, body.strides, body.contiguous) == ((len(body_of(number)),), (1,), True)


def test_a_released_view_does_not_come_back(store):
    for message in read(store):
        message.body.release()
    read_all(store)
    for message in read(store):
        with message.body as body:
            assert bytes(body).startswith(b"body")


@pytest.mark.skipif(not SPARES, reason="each view is a new one with this interpreter")
def test_a_spare_view_is_used_again(store):
    read_all(store)
    count = len(spare_views())
    assert count
    body = read(store, 0, 1)[0]
    assert body.body == body_of(0)
    assert len(spare_views()) == count - 1


@pytest.mark.skipif(not SPARES, reason="each view is a new one with this interpreter")
def test_a_spare_view_that_a_program_found_stays_released(store):
    read_all(store)
    found = spare_views()
    assert found
    read_all(store)
    for view in found:
        with pytest.raises(ValueError, match="released"):
            bytes(view)


@pytest.mark.skipif(not SPARES, reason="each view is a new one with this interpreter")
def test_a_weak_reference_to_a_spare_view_gives_no_body(store):
    read_all(store)
    references = [weakref.ref(view) for view in spare_views()]
    assert references
    messages = read(store)
    for number, message in enumerate(messages):
        assert message.body == body_of(number)
    for reference in references:
        view = reference()
        assert view is None or repr(view).startswith("<released")


def test_spare_views_keep_no_file_mapped(tmp_path):
    with open_small(tmp_path) as store:
        store.put_many([cystore.Message(topic="T", body=body_of(n)) for n in range(COUNT)])
        read_all(store)
        mapped = weakref.ref(read(store, 0, 1)[0].body.obj)
        assert mapped() is not None
        kept = read(store, 5, 1)[0].body
    gc.collect()
    assert kept == body_of(5)  # it keeps the mapping after the close
    assert mapped() is not None
    del kept, store
    gc.collect()
    assert mapped() is None
