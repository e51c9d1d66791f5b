"""Goal: an append of one process takes few cache lines of shared memory away from another process. Method: the bytes
of the control block before and after a put."""

from __future__ import annotations

from cystore import layout
from cystore.system import files
from tests.support.small_stores import open_small

LINE = layout.CACHE_LINE_BYTES
AT = {field.name: at for field, at in layout.CONTROL_FIELDS}
FIRST_QUEUE = layout.CONTROL_QUEUES_AT
PUTS = 100  # a put that took a millisecond also counts itself in another line


def lines_of(path) -> list[bytes]:
    data = files.read_if_there(path / "control", first=FIRST_QUEUE + layout.QUEUE_SLOT_BYTES)
    assert data is not None
    return [data[at : at + LINE] for at in range(0, len(data), LINE)]


def test_a_put_changes_two_lines_of_the_block_and_one_of_its_queue(tmp_path):
    with open_small(tmp_path / "store") as store:
        store.put("T", b"1")
        changed = []
        for _ in range(PUTS):
            before = lines_of(store.path)
            store.put("T", b"1")
            changed.append([n * LINE for n, line in enumerate(lines_of(store.path)) if line != before[n]])
    assert min(changed, key=len) == [AT["wrote"], AT["intent_from"], FIRST_QUEUE]


def test_the_append_lock_is_in_the_line_of_the_wrote_position():
    """The line comes with the lock."""
    for name in ("append_lock", "append_seq", "intent_active"):
        assert AT[name] // LINE == AT["wrote"] // LINE
    assert AT["append_lock"] + layout.TYPE_BYTES["packed_mutex"] <= AT["append_seq"]
    lines = [AT[name] // LINE for name in ("wrote", "intent_from")]
    assert {field.owner for field, at in layout.CONTROL_FIELDS if at // LINE in lines} == {"append"}
