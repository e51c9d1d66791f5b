"""Goal: reads all over many files of a queue or segments of the log look for each file once, and keep no more of them
mapped than the settings allow. Method: count what the kernel asks for, on the second way round, and the mappings."""

from __future__ import annotations

import random

import cystore
from cystore._native.memory.mapping import mapped_files
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.engine.log.commit_log import CommitLog
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


SIZES = {
    "mapped_file_size_commit_log_bytes": 4096,
    "mapped_file_size_consume_queue_bytes": ENTRY_BYTES * 1000,
}


def many_segments(path, **more) -> cystore.MessageStore:
    """A store with 150 segments of a message each."""
    store = open_small(path, **SIZES, **more)
    for number in range(150):
        store.put("T", b"%d " % number + bytes(3000), keys=(f"k{number}",))
    store.dispatch()
    return store


def read_all_over(store: cystore.MessageStore, seed: int) -> None:
    numbers = list(range(150))
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        found = [
            *store.get("T", 0, number, 1).messages,
            *store.query("T", f"k{number}"),
            *store.query_many("T", [f"k{number}"])[f"k{number}"],
        ]
        assert [bytes(message.body).split()[0] for message in found] == [b"%d" % number] * 3


def test_each_segment_of_the_log_stays_at_hand(tmp_path, monkeypatch):
    """Seen: a reader had 64 segments at hand, and looked up every other one through Python."""
    asked: list[int] = []
    segment_for = CommitLog.segment_for

    def counted(self, physical_offset):
        asked.append(physical_offset)
        return segment_for(self, physical_offset)

    monkeypatch.setattr(CommitLog, "segment_for", counted)
    with many_segments(tmp_path / "s") as store:
        read_all_over(store, 1)
        asked.clear()
        read_all_over(store, 2)
        assert asked == []


def test_segments_at_hand_heed_the_budget(tmp_path):
    with many_segments(tmp_path / "s", mapped_bytes_max=40 * 4096) as store:
        before = mapped_files()
        for seed in range(3):
            read_all_over(store, seed)
            # The budget's 40, and a few of each reader: of `get` and `query_many`, and of `query`.
            assert mapped_files() <= before + 40 + 2 * 33


def test_a_call_that_refuses_all_messages_heeds_the_budget(tmp_path):
    """Seen: a get with a filter kept the segments of all refused messages mapped, whatever mapped_bytes_max said. Where
    memory was limited it failed, each time."""
    many_segments(tmp_path / "s").close()
    with open_small(tmp_path / "s", **SIZES, mapped_bytes_max=40 * 4096) as store:
        before = mapped_files()
        during: list[int] = []
        got = store.get("T", 0, 0, filter=lambda message: during.append(mapped_files()) or False)
        assert (len(during), got.messages) == (150, [])
        assert max(during) <= before + 40 + 33
        assert mapped_files() <= before + 40


def test_spare_windows_let_go_of_what_the_budget_drops(tmp_path):
    """Seen: a thread that had read the whole log kept all of it mapped until it read again."""
    with many_segments(tmp_path / "s") as store:
        store.flush()  # what is not durable is needed
        read_all_over(store, 1)
        for number in range(150):
            store.query("T", f"k{number}")
        before = mapped_files()
        while store._attached().commit_log.files._mappings.make_room():
            pass
        assert mapped_files() <= before - 149  # the last segment is needed
        assert bytes(store.get("T", 0, 7, 1).messages[0].body).startswith(b"7 ")
