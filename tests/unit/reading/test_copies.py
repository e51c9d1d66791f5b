"""Goal: what a store gives can be copied, pickled and sent to other processes. Method: every public field of copies,
after the store is closed."""

from __future__ import annotations

import copy
import pickle
from types import MappingProxyType

import pytest

import cystore

FIELDS = [
    name for name, kind in vars(cystore.Message).items() if not name.startswith("_") and not callable(kind)
]
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"protocol {n}": lambda it, n=n: pickle.loads(pickle.dumps(it, n)) for n in range(6)},
}


def shown(message: cystore.Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in FIELDS} | {"repr": repr(message)}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def copied(request):
    return request.param


def test_copies_of_stored_messages_outlive_the_store(tmp_path, copied):
    """Seen: TypeError about a pointer of C."""
    with cystore.open(tmp_path / "s") as store:
        put = store.put("T", b"body", queue_id=3, keys=("k", "l"), tags="A", properties={"p": "é"}, flag=7)
        store.put("T", b"", queue_id=3)
        got = store.get("T", 3, 0)
        answers = [
            store.read(put.physical_offset),
            got,
            store.query("T", "k"),
            store.get("T", 3, 0, raw=True),
        ]
        one, result, query, raw = map(copied, answers)
        wanted = list(map(shown, [answers[0], *got.messages, *answers[2]]))
    found = [one, *result.messages, *query]
    assert list(map(shown, found)) == wanted
    assert raw == answers[3]
    assert (result.status, result.next_offset, type(query)) == (got.status, 2, type(answers[2]))
    del answers, got
    assert [bytes(message.body) for message in found] == [b"body", b"body", b"", b"body"]
    assert isinstance(one.body, memoryview)
    assert one.body.readonly
    assert shown(copied(one)) == wanted[0]


@pytest.mark.parametrize(
    "given",
    [
        {"body": b"x"},
        {"body": memoryview(b"xyz")[::2], "keys": ["a", "b"], "tags": "t", "properties": {"p": "q"}},
        {"body": bytearray(b"x"), "properties": MappingProxyType({"p": "q"}), "unique_key": "u"},
        {
            "body": b"", "queue_id": 4, "flag": -1, "sys_flag": 1, "born_timestamp_ms": 5, "born_host": "1.2.3.4:5",
            "store_host": "[::1]:6", "reconsume_times": 7, "prepared_transaction_offset": 8, "delay_level": 9,
        },
    ],
)  # fmt: skip
def test_copies_of_messages_to_be_put_are_put_alike(tmp_path, given):
    message = cystore.Message(topic="T", **given)
    wanted = shown(message)
    twins = [copied(message) for copied in WAYS.values()]
    for twin in twins:
        assert shown(twin) == wanted
        assert isinstance(twin.body, bytes)
    with cystore.open(tmp_path / "s") as store:
        stored = [store.read(put.physical_offset) for put in store.put_many([message, *twins])]
        assert {bytes(message.body) for message in stored} == {bytes(given["body"])}
        assert len({message.properties_bytes for message in stored}) == 1


def test_a_pickle_that_was_cut_is_no_message(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        store.put("T", b"body")
        rebuild, (record,) = store.get("T", 0, 0).messages[0].__reduce__()
    for end in range(len(record)):
        with pytest.raises(cystore.CorruptRecordError):
            rebuild(record[:end])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_store_is_opened_in_each_process(tmp_path, way):
    """Seen: TypeError about a lock."""
    with cystore.open(tmp_path / "s") as store, pytest.raises(TypeError, match="by its path in each process"):
        way(store)
