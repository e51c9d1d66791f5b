"""Goal: gets all over a queue of many files look for each file once. Method: count what the kernel asks for, on the
second way round."""

from __future__ import annotations

from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from tests.support.small_stores import open_small


def test_each_file_of_a_queue_stays_at_hand(tmp_path, monkeypatch):
    """Seen: a get in another file than the last one mapped that file again, and faulted in its pages."""
    asked: list[int] = []
    file_of = ConsumeQueues.file_of

    def counted(self, slot, queue_offset):
        asked.append(queue_offset)
        return file_of(self, slot, queue_offset)

    monkeypatch.setattr(ConsumeQueues, "file_of", counted)
    with open_small(tmp_path / "s", mapped_file_size_consume_queue_bytes=ENTRY_BYTES * 8) as store:
        for number in range(64):
            store.put("T", b"%d" % number)
        store.dispatch()
        for turn in range(3):
            asked.clear()
            for number in [*range(0, 64, 8), *range(4, 64, 8)]:
                assert bytes(store.get("T", 0, number, 1).messages[0].body) == b"%d" % number
            assert turn == 0 or asked == []
