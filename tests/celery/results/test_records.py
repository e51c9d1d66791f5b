"""Goal: keys hold any id, and folding an id's records gives what Celery's other backends would. Method: properties,
with a model that replays the same records oldest first, the way a key-value backend applies them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from celery import states
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore.celery.base import records

STATES = [
    states.STARTED,
    states.RETRY,
    states.FAILURE,
    states.SUCCESS,
    states.REVOKED,
    "PROGRESS",
    records.FORGET,
]


@dataclass(eq=False)
class Record:
    tags: str
    body: bytes = b"{}"
    properties: dict[str, str] = field(default_factory=dict)


@given(st.text(min_size=1))
def test_any_id_has_a_key_that_a_store_takes(task_id):
    key = records.key_of(task_id)
    assert not set(key) & set(" \x01\x02")
    assert records.id_of(key) == task_id


@given(st.uuids())
def test_the_usual_id_is_its_own_key(task_id):
    assert records.key_of(str(task_id)) == str(task_id) == records.key_of(task_id)


def test_an_empty_id_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        records.key_of("")


@given(st.text())
def test_queues_of_names(name):
    assert records.queue_of(name) == records.queue_of(name) <= records.NAMED_QUEUES
    assert (records.queue_of(name) == 0) == (not name)


def replayed(oldest_first: list[Record]) -> Record | None:
    """celery.backends.base.KeyValueStoreBackend._store_result: the last write wins, but nothing follows a SUCCESS."""
    current = None
    for record in oldest_first:
        if not record.body:
            current = None
        elif current is None or current.tags != states.SUCCESS:
            current = record
    return current


@given(st.lists(st.sampled_from(STATES)))
def test_folding_is_what_a_key_value_backend_does(names):
    written = [Record(name, b"" if name == records.FORGET else b"{}") for name in names]
    assert records.fold(reversed(written)) is replayed(written)


@given(st.lists(st.tuples(st.sampled_from(STATES[:-1]), st.booleans())))
def test_what_came_too_late_from_another_host_changes_nothing(rows):
    written = [Record(name, properties={records.LATE: "1"} if late else {}) for name, late in rows]
    assert records.fold(reversed(written)) is replayed([one for one in written if not one.properties])


@given(st.lists(st.sampled_from(STATES)), st.integers(0, 8))
def test_expired_records_are_as_if_they_had_never_been(names, expired):
    written = [Record(name, b"" if name == records.FORGET else b"{}") for name in names]
    valid = {id(one) for one in written[expired:]}
    found = records.fold(reversed(written), lambda record: id(record) in valid)
    assert found is replayed(written[expired:])
    shown = [*records.visible(reversed(written), lambda record: id(record) in valid)][::-1]
    assert found in (shown or [None])


def test_a_state_of_the_apps_own_may_have_the_tombstones_name():
    written = [Record(states.STARTED), Record(records.FORGET, b"{}")]
    assert records.fold(reversed(written)) is written[1]


def test_all_records_of_an_id_that_has_more_than_one_look_takes(tmp_path):
    with cystore.open(tmp_path / "store", mapped_file_size_commit_log_bytes=1 << 20) as store:
        store.put("T", b"", keys=("id",), tags=records.FORGET)
        for number in range(3 * records.FIRST_LOOK):
            store.put("T", b"%d" % number, keys=("id",))
        bodies = [bytes(message.body) for message in records.records_of(store, "T", "id")]
        assert bodies == [*(b"%d" % n for n in reversed(range(3 * records.FIRST_LOOK))), b""]
        store.put("T", b"", keys=("id",), tags=records.FORGET)
        assert len(records.records_of(store, "T", "id")) == records.FIRST_LOOK
        assert records.fold(records.records_of(store, "T", "id")) is None
        everything = records.records_of(store, "T", "id", to_tombstone=False)
        assert len(everything) == 3 * records.FIRST_LOOK + 2
