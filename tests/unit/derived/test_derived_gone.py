"""Goal: a file of a consume queue, extended or not, that somebody deletes stops no dispatch. Method: the file that
dispatch writes to is deleted under a live store; then so much is put that dispatch needs more space in it."""

from __future__ import annotations

import shutil

import pytest

from cystore import GetStatus
from cystore.engine.files.segments import MappedFileQueue
from cystore.system import files
from tests.support.small_stores import open_small

SETTINGS = {
    "mapped_file_size_consume_queue_bytes": 20 * 10_000,
    "mapped_file_size_consume_queue_ext_bytes": 256 * 1024,
    "enable_consume_queue_ext": True,
}
BEFORE, BEHIND = 10, 4000  # messages; the later ones need more than the space that was reserved


def tagged(store, topic):
    """Bodies of a queue's messages with the tag, which the extended units tell."""
    found, offset = [], 0
    while (result := store.get(topic, 0, offset, tags="red")).status is GetStatus.FOUND:
        found += [bytes(message.body) for message in result.messages]
        offset = result.next_offset
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("whole_folder", [False, True])
@pytest.mark.parametrize("kind", ["consumequeue", "consumequeue_ext"])
def test_dispatch_goes_on_without_the_file_it_writes_to(tmp_path, kind, whole_folder):
    """Seen: the deleted file stayed mapped, and dispatch of all topics stopped with StoreIOError where it needed more
    space there."""
    with open_small(tmp_path / "s", **SETTINGS) as store:
        for n in range(BEFORE + BEHIND):
            if n == BEFORE:
                store.dispatch()
                folder = tmp_path / "s" / kind / "A"
                if whole_folder:
                    shutil.rmtree(folder)
                else:
                    (folder / "0" / f"{0:020d}").unlink()
            for topic in "AB":
                store.put(topic, b"%d" % n, tags="red")
        store.dispatch()
        expected = [b"%d" % n for n in range(BEFORE + BEHIND)]
        for topic in "AB":
            assert tagged(store, topic) == expected
        store.flush()
    with open_small(tmp_path / "s", **SETTINGS) as store:
        for topic in "AB":
            assert tagged(store, topic) == expected


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
@pytest.mark.parametrize("kind", ["consumequeue", "consumequeue_ext"])
def test_dispatch_goes_on_where_a_file_is_deleted_between_its_mapping_and_its_growth(
    tmp_path, monkeypatch, kind, again
):
    """Seen: dispatch said StoreIOError, once in 4,605 faults."""
    folder = tmp_path / "s" / kind / "A" / "0"
    deleted = []

    def deletes(queue, base, begin, end, zeros_from=None, grow=MappedFileQueue.allocate):
        path = queue.path(base)
        if path.parent == folder and begin < end and len(deleted) < 3:
            deleted.append(path)
            path.unlink()
            if again:
                files.create_sized(tmp_path / "s", path, queue.file_bytes, 0)
        grow(queue, base, begin, end, zeros_from)

    with open_small(tmp_path / "s", **SETTINGS) as store:
        store.put("A", b"0", tags="red")
        store.dispatch()
        monkeypatch.setattr(MappedFileQueue, "allocate", deletes)
        for n in range(1, BEHIND):
            store.put("A", b"%d" % n, tags="red")
        store.dispatch()
        assert len(deleted) == 3
        assert tagged(store, "A") == [b"%d" % n for n in range(BEHIND)]


def test_a_flush_goes_on_without_the_file_that_another_process_wrote_to(tmp_path):
    """Seen: `checkpoint` in a process that had not mapped the file raised OffsetError, where it looked for the first
    extended unit that is not durable."""
    with open_small(tmp_path / "s", **SETTINGS) as store, open_small(tmp_path / "s", **SETTINGS) as other:
        for n in range(BEFORE):
            for topic in "AB":
                store.put(topic, b"%d" % n, tags="red")
        store.dispatch()
        (tmp_path / "s" / "consumequeue" / "A" / "0" / f"{0:020d}").unlink()
        other.checkpoint()
        assert other._attached().control.queue_flushed(other._attached().control.find_queue("B", 0)) == BEFORE
        for topic in "AB":
            assert tagged(other, topic) == [b"%d" % n for n in range(BEFORE)]
