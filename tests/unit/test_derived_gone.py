"""Goal: a file of a consume queue, extended or not, that somebody deletes stops no dispatch. Method: the file that dispatch writes to is
deleted under a live store; then so much is put that dispatch needs more space in it."""

from __future__ import annotations

import shutil

import pytest

from cystore import GetStatus
from tests.small import open_small

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


@pytest.mark.parametrize("whole_folder", [False, True])
@pytest.mark.parametrize("kind", ["consumequeue", "consumequeue_ext"])
def test_dispatch_goes_on_without_the_file_it_writes_to(tmp_path, kind, whole_folder):
    """Seen: the deleted file stayed mapped, and dispatch of all topics stopped with StoreIOError where it needed more space there."""
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
