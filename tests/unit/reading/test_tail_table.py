"""Goal: a read-only handle reads what is not dispatched with one walk over the log for all queues, and keeps a bounded
number of entries. Method: the kernel and the handle beside a model of random puts, dispatches and reads; counts of what
the walk looks at."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading

import pytest

import cystore
from cystore._native.derived.queue import entry_at
from cystore._native.lookup.tail_table import TailTable
from cystore._native.memory.mapping import MappedFile
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.reading.by_offset import QueueObstacles
from cystore.engine.log.commit_log import CommitLog
from cystore.results import GetStatus
from tests.support.small_stores import open_small

QUEUES = 5


def entries(
    table: TailTable, reader: cystore.MessageStore, slot: int, first: int, room: int
) -> list[int] | None:
    """The physical offsets of a queue's entries from an offset on; None: dispatch has entered the first one."""
    parts = reader._attached()
    out = MappedFile.anonymous(first * ENTRY_BYTES, room * ENTRY_BYTES)
    count = table.entries_into(
        out,
        parts.control,
        parts.commit_log.window(),
        parts.control.min_physical_offset,
        parts.control.wrote,
        slot,
    )
    if count is None:
        return None
    found = [entry_at(out, number * ENTRY_BYTES) for number in range(count)]
    return [-1 if entry is None else entry[0] for entry in found]


@pytest.mark.parametrize("most", [1, 7, 64, 1 << 20])
def test_the_table_has_what_dispatch_lacks(tmp_path, seed, most):
    """Whatever the bound is: each look gives the entries that dispatch will write, from the first one asked for on."""
    rng = random.Random(f"{seed} {most}")
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        table = TailTable(most)
        places: list[list[int]] = [[] for _ in range(QUEUES)]
        for _ in range(400):
            queue_id = rng.randrange(QUEUES)
            step = rng.random()
            if step < 0.5:
                put = writer.put("T", b"x" * rng.randrange(200), queue_id=queue_id)
                places[queue_id].append(put.physical_offset)
            elif step < 0.55:
                writer.dispatch()
            elif places[queue_id]:
                slot = reader._attached().control.find_queue("T", queue_id)
                first = rng.randrange(len(places[queue_id]))
                room = rng.randrange(1, 40)
                found = entries(table, reader, slot, first, room)
                if first < reader._attached().control.queue_dispatched(slot):
                    assert found is None
                else:
                    wanted = places[queue_id][first : first + room]
                    assert found and found == wanted[: len(found)]
                    assert len(found) == len(wanted) or len(found) <= most < 1 << 20
                assert table.entries <= most


def test_one_walk_serves_all_queues(tmp_path, monkeypatch):
    """Seen: the first get of each queue walked over everything that was not dispatched: at 10,000 queues that many
    walks. With a log of short segments, each is asked for by the one walk, and by one of the handle's windows."""
    asked: list[int] = []
    segment_for = CommitLog.segment_for

    def counted(self, physical_offset):
        asked.append(physical_offset)
        return segment_for(self, physical_offset)

    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        bodies = [b"%d" % number * 100 for number in range(400)]
        for number, body in enumerate(bodies):
            writer.put("T", body, queue_id=number % 40)
        segments = -(-reader.wrote_position // reader.config.mapped_file_size_commit_log_bytes)
        monkeypatch.setattr(CommitLog, "segment_for", counted)
        for number, body in enumerate(bodies):
            got = reader.get("T", number % 40, number // 40, 1)
            assert (got.status, bytes(got.messages[0].body)) == (GetStatus.FOUND, body)
        assert len(asked) <= 2 * segments + 2


def test_a_usual_get_beyond_dispatch_needs_no_python(tmp_path, monkeypatch):
    """At native speed: nothing is in the kernel's way."""
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        for number in range(100):
            writer.put("T", b"%d" % number)

        def refuse(self, *arguments, **named):
            raise AssertionError("the kernel asked for help")

        for obstacle in ("dispatch", "file_of", "heal", "from_log"):
            monkeypatch.setattr(QueueObstacles, obstacle, refuse)
        at = 0
        while at < 100:
            got = reader.get("T", 0, at, 7)
            assert [bytes(message.body) for message in got.messages] == [
                b"%d" % number for number in range(at, got.next_offset)
            ]
            assert (got.max_offset, got.behind) == (100, False)
            at = got.next_offset


def test_entries_go_when_dispatch_has_written_them(tmp_path):
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        table = TailTable()
        for number in range(50):
            writer.put("T", b"", queue_id=number % 2)
        assert len(entries(table, reader, 1, 24, 1) or []) == 1 and table.entries == 50
        writer.dispatch()
        assert entries(table, reader, 1, 24, 1) is None and table.entries == 0
        writer.put("T", b"", queue_id=1)
        assert len(entries(table, reader, 1, 25, 10) or []) == 1 and table.entries == 1


def test_a_handle_that_reads_alone_reads_at_native_speed(tmp_path, monkeypatch):
    """It looks once behind each call whether a process came, and reads without Python."""
    with open_small(tmp_path) as writer:
        places = [writer.put("T", b"%d" % number).physical_offset for number in range(20)]
    with open_small(tmp_path, read_only=True) as reader:
        get, read = reader.get, reader.read

        def refuse(self, *arguments, **named):
            raise AssertionError("the general way was asked")

        with monkeypatch.context() as patched:
            patched.setattr(cystore.MessageStore, "get", refuse)
            patched.setattr(cystore.MessageStore, "read", refuse)
            assert [bytes(message.body) for message in get("T", 0, 0).messages] == [
                b"%d" % number for number in range(20)
            ]
            assert bytes(read(places[7]).body) == b"7"
        with open_small(tmp_path) as writer:
            place = writer.put("T", b"new").physical_offset
            # Functions that a program has kept follow as well.
            assert bytes(get("T", 0, 20).messages[0].body) == b"new" and bytes(read(place).body) == b"new"


def test_threads_share_a_table(tmp_path):
    """Each thread reads all queues beside a writer that dispatches now and then: each message once, in its order."""
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        count, failed = 3_000, []

        def read_all() -> None:
            try:
                at, left = [0] * QUEUES, count
                while left:
                    for queue_id in range(QUEUES):
                        reader.wait("T", queue_id, at[queue_id], 0.01)
                        got = reader.get("T", queue_id, at[queue_id], 9)
                        for message in got.messages:
                            assert bytes(message.body) == b"%d/%d" % (queue_id, at[queue_id])
                            at[queue_id] += 1
                            left -= 1
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=read_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(count):
            writer.put("T", b"%d/%d" % (number % QUEUES, number // QUEUES), queue_id=number % QUEUES)
            if number % 701 == 0:
                writer.dispatch()
        for thread in threads:
            thread.join()
        assert not failed


def test_a_table_refuses_what_it_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="no table of 0 entries"):
        TailTable(0)
    with open_small(tmp_path) as writer, open_small(tmp_path, read_only=True) as reader:
        writer.put("T", b"")
        with pytest.raises(IndexError, match="no queue slot 1"):
            entries(TailTable(), reader, 1, 0, 1)


@pytest.mark.unsanitized  # the sanitizer needs its own memory
def test_entries_from_the_log_take_no_memory_for_messages_that_are_not_there(tmp_path):
    """Seen: a reader that asked for 2^31 - 1 messages of a queue whose files are gone got OSError: 43 GB were to be
    mapped."""
    with open_small(tmp_path / "s") as store:
        for number in range(100):
            store.put("T", b"%d" % number)
        store.dispatch()
        code = (
            "import os, resource, cystore\n"
            f"store = cystore.open({str(store.path)!r}, read_only=True)\n"
            "pages = int(open('/proc/self/statm').read().split()[0])\n"
            "limits = pages * os.sysconf('SC_PAGE_SIZE') + (1 << 30), resource.getrlimit(resource.RLIMIT_AS)[1]\n"
            "resource.setrlimit(resource.RLIMIT_AS, limits)\n"
            "found = store.get('T', 0, 60, 2**31 - 1)\n"
            "print([message.queue_offset for message in found.messages])"
        )
        for file in (store.path / "consumequeue" / "T" / "0").iterdir():
            file.unlink()
        answer = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
    first, *rest = json.loads(answer)
    assert first == 60 and rest == list(range(61, 61 + len(rest)))
