"""Goal: the control block is shared by those who agree about it, and nobody stays behind a lock whose owner is gone.
Method: a block in a file, joined by other processes that take locks, die, stop and wait; and blocks that somebody
else wrote to."""

from __future__ import annotations

import fcntl
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore import layout
from cystore._native.derived.queue import queues_to_flush
from cystore._native.memory import control as control_kernel
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig
from cystore.errors import (
    StoreClosedError,
    StoreFormatError,
    StoreFullError,
    StoreNotWritableError,
    StoreResourceError,
)
from cystore.system import files
from tests.support import parts
from tests.support.process import Process

AT = {field.name: at for field, at in layout.CONTROL_FIELDS}
FIRST_STEP = 256
OFD_SETLK = 37  # a command of fcntl
JOIN = "from pathlib import Path; from tests.support import parts; control = parts.join_control(Path(path))"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control"


@pytest.fixture
def control(path):
    return parts.control_block(StoreConfig(), 1000, path)


def joined(path, **host) -> Control:
    return Control.attach(files.map_file(path, 0, path.stat().st_size), **{**parts.HOST, **host})


# ---------------------------------------------------------------------------------------------- who may join


def test_joined_handle_sees_what_the_first_one_set(path, control):
    control.wrote, control.flushed, control.last_record = 500, 400, 450
    control.set_flag(1)
    other = joined(path)
    assert (other.wrote, other.flushed, other.last_record, other.flags) == (500, 400, 450, 1)
    assert other.generation == control.generation
    assert other.max_queues == 1000
    assert not other.read_only
    other.clear_flag(1)
    assert control.flags == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("boot_id", "another", "boot id: theirs boot, ours another"),
        ("c_library", "musl", "C library: theirs c, ours musl"),
    ],
)
def test_attached_processes_that_differ_are_refused(path, control, name, value, words):
    with pytest.raises(StoreFormatError, match=words):
        joined(path, **{name: value})


def test_pid_namespaces_differ_if_the_locks_are_ours(path, control, monkeypatch):
    joined(path, pid_namespace=2)
    monkeypatch.setattr(control_kernel, "locks_inline", False)
    with pytest.raises(StoreFormatError, match="PID namespace: theirs 1, ours 2"):
        joined(path, pid_namespace=2)


def test_a_sole_writer_with_another_c_library_makes_the_locks_anew(path, control):
    with Process() as gone:
        gone.do(f"{JOIN}; turn = control.held('append'); turn.__enter__().held", path=str(path))
        gone.stop()  # it has left, for all that the others know
        other = joined(path, c_library="musl", sole_writer=True)
        assert other.owner("append") == 0 and other.repair_is_due("append")
        with pytest.raises(StoreFormatError, match="C library: theirs musl"):
            joined(path)


# ---------------------------------------------------------------------------------------------- slots of processes


def entered(path, lock, **host) -> Control:
    """A handle with a slot; its descriptor of `lock` is the caller's, who closes it."""
    handle = joined(path, **host)
    handle.enter(lock.fileno())
    return handle


def bytes_of_slots(kind: int, first: int, count: int) -> bytes:
    """What fcntl is asked for: locks on these slots' bytes."""
    return struct.pack("hhqqi0q", kind, os.SEEK_SET, layout.PROCESS_BYTES_AT + first, count, 0)


def test_each_handle_has_a_slot_until_its_descriptor_is_closed(path, control, tmp_path):
    (tmp_path / "lock").write_bytes(b"lock")
    with open(tmp_path / "lock", "r+b") as one, open(tmp_path / "lock", "r+b") as two:
        first, second = entered(path, one), entered(path, two, pid_namespace=7)
        assert first.process != second.process and control.process == 0
        assert control.processes() == [(first.process, os.getpid(), 1), (second.process, os.getpid(), 7)]
        before = second.process
        second.detach()
        assert control.processes() == [(first.process, os.getpid(), 1)]
    with open(tmp_path / "lock", "r+b") as three:
        third = entered(path, three)
        assert third.process not in (before, first.process)


def test_the_slot_of_a_killed_process_is_used_again_with_another_incarnation(path, control, tmp_path):
    (tmp_path / "lock").write_bytes(b"lock")
    seen = set()
    with open(tmp_path / "lock", "r+b") as others:
        fcntl.fcntl(others, OFD_SETLK, bytes_of_slots(fcntl.F_WRLCK, 1, layout.PROCESS_SLOTS - 1))
        for _ in range(3):
            with open(tmp_path / "lock", "r+b") as lock:
                handle = entered(path, lock)
                assert handle.process % layout.PROCESS_SLOTS == 0
                seen.add(handle.process)
                del handle  # without detach
    assert len(seen) == 3


def test_more_processes_than_slots(path, control, tmp_path):
    (tmp_path / "lock").write_bytes(b"lock")
    with open(tmp_path / "lock", "r+b") as others, open(tmp_path / "lock", "r+b") as lock:
        fcntl.fcntl(others, OFD_SETLK, bytes_of_slots(fcntl.F_WRLCK, 0, layout.PROCESS_SLOTS))
        with pytest.raises(StoreResourceError, match="4096 handles of processes"):
            entered(path, lock)
        fcntl.fcntl(others, OFD_SETLK, bytes_of_slots(fcntl.F_UNLCK, 77, 1))
        assert entered(path, lock).process % layout.PROCESS_SLOTS == 77


@pytest.mark.parametrize("field", ["magic", "fingerprint", "page_bytes", "mutex_bytes", "guard"])
def test_block_of_another_build_is_refused(path, control, field):
    control.file.write(AT[field], b"\x55")
    with pytest.raises(StoreFormatError, match=r"layout|page size|mutex"):
        joined(path)


@pytest.mark.parametrize("length", [1, 4096, layout.CONTROL_QUEUES_AT - 1, layout.CONTROL_QUEUES_AT + 5])
def test_block_that_is_too_short_is_refused(path, control, length):
    os.truncate(path, length)
    with pytest.raises(StoreFormatError, match=r"another layout|shorter than it says"):
        joined(path)


def test_first_attacher_needs_room_for_all_queues():
    with pytest.raises(StoreFormatError, match="too short"):
        Control.create(
            MappedFile.anonymous(0, Control.size_bytes(9)),
            commit_log_file_bytes=1,
            consume_queue_file_bytes=1,
            max_hash_slot_num=1,
            max_index_num=1,
            max_queues=10,
            **parts.HOST,
        )


@pytest.fixture(scope="module")
def sound():
    """The first page of a good block."""
    return parts.control_block(StoreConfig(), 4).file.read(0, 4096)


@given(st.binary(max_size=600), st.integers(0, 400), st.booleans())
def test_bytes_of_any_kind_are_refused_or_known(sound, data, at, keep_constants):
    """With the constants kept, everything behind them may still be nonsense."""
    length = Control.size_bytes(4)
    memory = MappedFile.anonymous(0, length)
    if keep_constants:
        memory.write(0, sound)
        memory.write(16 + at, data)
        memory.write(AT["guard"], sound[AT["guard"] :][:8])
    else:
        memory.write(at, data)
    try:
        handle = Control.attach(memory, **parts.HOST)
    except StoreFormatError:
        return
    assert keep_constants
    assert handle.intact


# ------------------------------------------------------------------------------------------ overwritten, closed


@pytest.mark.parametrize("field", ["magic", "fingerprint", "guard"])
def test_handle_on_an_overwritten_block_is_poisoned(control, field):
    slot = control.add_queue("T", 0)
    control.file.write(AT[field], b"\xaa\xaa")
    assert not control.intact
    uses = [
        lambda: control.wrote,
        lambda: control.queue(slot),
        lambda: control.find_queue("T", 0),
        lambda: control.add_queue("U", 0),
        lambda: control.held("append").__enter__(),
        lambda: control.held_if_free("dispatch").__enter__(),
        lambda: control.counters(),
        lambda: control.wait_append(0, 1),
        lambda: setattr(control, "wrote", 5),
    ]
    for use in uses:
        with pytest.raises(StoreFormatError, match="overwritten"):
            use()


def test_a_count_of_queues_that_was_overwritten_leads_nowhere(control):
    """Found by the fuzz target `control`: who looked for queues to flush read far behind the block."""
    slot = control.add_queue("T", 0)
    control.set_queue_dispatched(slot, 5)
    control.file.write(AT["queue_count"], b"\xff\xff\xff\x7f")
    assert queues_to_flush(control) == [slot]
    with pytest.raises(IndexError):
        control.queue(1000)


def test_closed_handle_refuses_everything(control):
    names = [
        name
        for name in dir(Control)
        if not name.startswith("_")
        and name
        not in (
            "bell",
            "closed",
            "file",
            "read_only",
            "detach",
            "release",
            "on_repair",
            "ring",
            "turn_owner",
            "committer",
        )
    ]
    given = {
        "find_queue": ("T", 0),
        "add_queue": ("T", 0),
        "wait_append": (0, 0),
        "wait_flush": (0, 0),
        "wait_replicated": (0, 0, 0, 0),
        "wait_key": (0, 0, 0),
        "wait_queue": (0, 0, 0),
        "owner": ("append",),
        "repair_is_due": ("append",),
        "settle_claims": (),
        "count_file_made": (),
        "count_slow_put": (),
        "clear_intent": (),
        "index_files_changed": (),
        "follow": (),
        "place_seen": (),
        "counters": (),
        "more_queue_bytes": (),
        "wake_append": (),
        "processes": (),
        "namespace_of": (0,),
        "lives": (0,),
        "wake_committed": (),
        "commit": (),
        "wake_flush": (),
        "duty_word": (0, 0),
        "set_duty_word": (0, 0, 0),
    }
    control.detach()
    assert control.closed
    asked = 0
    for name in names:
        if name in ("create", "attach", "size_bytes", "first_bytes", "held", "held_if_free", "flush_turn"):
            continue
        arguments = given.get(name, (0, 0) if name.startswith(("set_queue", "raise_queue")) else (0,))
        with pytest.raises(StoreClosedError):
            getattr(control, name)(*arguments)
        asked += 1
    assert asked > 40
    for turn in (control.held("append"), control.held_if_free("append")):
        with pytest.raises(StoreClosedError), turn:
            raise AssertionError("the lock of a closed store was given out")
    control.detach()


def test_read_only_handle_reads_and_takes_no_lock(path, control):
    control.add_queue("T", 3, next=7)
    reader = Control.attach(files.map_file(path, 0, path.stat().st_size, writable=False), **parts.HOST)
    assert reader.read_only
    assert reader.queue(reader.find_queue("T", 3))[2] == 7
    for take in (reader.held, reader.held_if_free):
        with pytest.raises(StoreNotWritableError), take("append"):
            raise AssertionError("a reader was given a lock")
    seen = reader.append_seq
    reader.wait_append(seen, 1)


# --------------------------------------------------------------------------------------------------- queues


def test_queue_is_found_by_topic_and_id_only(control):
    slots = {
        (topic, queue_id): control.add_queue(topic, queue_id, next=n, dispatched=n, minimum=n)
        for n, (topic, queue_id) in enumerate(
            [("T", 0), ("T", 1), ("T" * 127, 0), ("U", 2**31 - 1), ("%|_-", 0)]
        )
    }
    assert control.queue_count == 5
    for n, ((topic, queue_id), slot) in enumerate(slots.items()):
        assert control.find_queue(topic, queue_id) == slot == n
        assert control.queue(slot) == (topic, queue_id, n, n, n)
        assert control.queue_flushed(slot) == n
    assert control.find_queue("T", 2) == -1
    assert control.find_queue("T" * 126, 0) == -1
    assert control.find_queue("T" * 128, 0) == -1
    assert control.find_queue("", 0) == -1
    assert control.find_queue("\udcff", 0) == -1


@pytest.mark.parametrize("slot", [-1, 1, 1000, 2**40])
def test_slot_that_is_not_there_is_an_error(control, slot):
    control.add_queue("T", 0)
    for ask in (
        control.queue,
        control.queue_next,
        control.queue_end,
        control.queue_minimum,
        control.queue_allocated,
    ):
        with pytest.raises(IndexError):
            ask(slot)


def test_table_grows_in_steps_up_to_its_bound(control):
    added = 0
    while True:
        while control.queue_count < control.queue_capacity:
            control.add_queue(f"T{added % 7}", added)
            added += 1
        with pytest.raises(StoreFullError, match="max_queues is 1000"):
            control.add_queue("T", 9999)
        step = control.more_queue_bytes()
        if step is None:
            break
        assert step[0] == layout.CONTROL_QUEUES_AT + layout.QUEUE_SLOT_BYTES * added
        control.publish_queue_capacity(step[1])
    assert (added, control.queue_count, control.queue_capacity) == (1000, 1000, 1000)
    assert all(control.find_queue(f"T{n % 7}", n) == n for n in range(added))


def test_topic_that_is_too_long_for_a_slot_is_refused(control):
    with pytest.raises(StoreFullError):
        control.add_queue("T" * 128, 0)


def test_slot_that_was_counted_but_not_linked_is_found_again(control):
    """The state after a kill between the count and the link of a new queue."""
    control.add_queue("T", 0)
    buckets = bytes(control.file.read(layout.CONTROL_BUCKETS_AT, 4 * layout.CONTROL_BUCKETS))
    slot = control.add_queue("T", 1)
    control.file.write(layout.CONTROL_BUCKETS_AT, buckets)
    assert control.find_queue("T", 1) == -1
    control.settle_claims()
    assert control.find_queue("T", 1) == slot
    control.settle_claims()
    assert control.find_queue("T", 0) == 0


def test_claims_of_a_killed_append_are_taken_back(control):
    slot = control.add_queue("T", 0, next=5)
    claimed_at = layout.CONTROL_QUEUES_AT + 8
    control.file.write(claimed_at, struct.pack("=q", 9))
    control.settle_claims()
    assert control.queue_next(slot) == 5
    assert struct.unpack("=q", control.file.read(claimed_at, 8)) == (5,)
