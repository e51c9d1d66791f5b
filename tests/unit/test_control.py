"""Goal: the control block is shared by those who agree about it, and nobody stays behind a lock whose owner is gone. Method: a
block in a file, joined by other processes that take locks, die, stop and wait; and blocks that somebody else wrote to."""

from __future__ import annotations

import logging
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore import layout
from cystore._native.control import Control
from cystore._native.mapping import MappedFile
from cystore._native.queue import queues_to_flush
from cystore.config import StoreConfig
from cystore.errors import (
    StoreClosedError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
    StoreNotWritableError,
)
from cystore.system import files
from tests.process import Failed, Process
from tests.unit import parts

AT = {field.name: at for field, at in layout.CONTROL_FIELDS}
FIRST_STEP = 256
JOIN = "from pathlib import Path; from tests.unit import parts; control = parts.join_control(Path(path))"


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
        ("pid_namespace", 2, "PID namespace: theirs 1, ours 2"),
        ("boot_id", "another", "boot id: theirs boot, ours another"),
        ("c_library", "musl", "C library: theirs c, ours musl"),
    ],
)
def test_attached_processes_that_differ_are_refused(path, control, name, value, words):
    with pytest.raises(StoreFormatError, match=words):
        joined(path, **{name: value})


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
        lambda: control.lock("append"),
        lambda: control.try_lock("dispatch"),
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
        and name not in ("closed", "file", "read_only", "detach", "release", "unlock")
    ]
    given = {
        "find_queue": ("T", 0),
        "add_queue": ("T", 0),
        "wait_append": (0, 0),
        "wait_flush": (0, 0),
        "lock": ("append",),
        "try_lock": ("append",),
        "owner": ("append",),
        "repaired": ("append",),
        "settle_claims": (),
        "clear_intent": (),
        "counters": (),
        "more_queue_bytes": (),
        "wake_append": (),
        "wake_flush": (),
        "duty_word": (0, 0),
        "set_duty_word": (0, 0, 0),
    }
    control.detach()
    assert control.closed
    asked = 0
    for name in names:
        if name in ("create", "attach", "size_bytes", "first_bytes", "locked"):
            continue
        arguments = given.get(name, (0, 0) if name.startswith("set_queue") else (0,))
        with pytest.raises(StoreClosedError):
            getattr(control, name)(*arguments)
        asked += 1
    assert asked > 40
    with pytest.raises(StoreClosedError), control.locked("append"):
        raise AssertionError("the lock of a closed store was given out")
    control.detach()


def test_read_only_handle_reads_and_takes_no_lock(path, control):
    control.add_queue("T", 3, next=7)
    reader = Control.attach(files.map_file(path, 0, path.stat().st_size, writable=False), **parts.HOST)
    assert reader.read_only
    assert reader.queue(reader.find_queue("T", 3))[2] == 7
    for take in (reader.lock, reader.try_lock):
        with pytest.raises(StoreNotWritableError):
            take("append")
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
    for ask in (control.queue, control.queue_next, control.queue_minimum, control.queue_allocated):
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
    """What a kill between the count and the link of a new queue leaves."""
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


# ---------------------------------------------------------------------------------------------------- locks


def test_lock_excludes_other_processes_and_says_who_holds_it(path, control):
    with Process() as other:
        other.do(JOIN, path=str(path))
        for name in layout.LOCK_NAMES:
            assert control.lock(name) is False
            assert other.do("control.try_lock(name)", name=name) is None
            assert other.do("control.owner(name)") == threading.get_native_id()
            with pytest.raises(Failed, match=f"StoreLockedError: the {name} lock is held by thread"):
                other.do("control.lock(name, timeout_ms=1)")
            control.unlock(name)
            assert other.do("control.try_lock(name)") is False
            assert control.owner(name) == other.pid
            other.do("control.unlock(name)")
        assert control.owner("append") == 0


def test_second_lock_by_the_same_thread_is_refused_at_once(control):
    with control.locked("append"):
        with pytest.raises(StoreLockedError, match="this thread holds the append lock already"):
            control.lock("append")
        assert control.try_lock("append") is None
        with control.locked("flush"):
            assert control.owner("flush") == threading.get_native_id()
    assert control.try_lock("append") is False


def test_unknown_lock_is_a_mistake(control):
    with pytest.raises(ValueError, match="not in tuple"):
        control.lock("everything")


def test_lock_waits_for_a_live_owner(control):
    order = []
    control.lock("dispatch")
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with control.locked("dispatch"):
            order.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    order.append("first")
    control.unlock("dispatch")
    thread.join()
    assert order == ["first", "second"]


def test_dead_owner_leaves_a_repair_to_the_next_one(path, control):
    with Process() as other:
        other.do(f"{JOIN}\ncontrol.lock('append')", path=str(path))
        other.kill()
    with control.locked("append") as due:
        assert due
    with control.locked("append") as due:
        assert not due


def test_repair_that_fails_is_left_to_the_next_owner(path, control):
    with Process() as other:
        other.do(f"{JOIN}\ncontrol.lock('append')", path=str(path))
        other.kill()
    with pytest.raises(ZeroDivisionError), control.locked("append"):
        raise ZeroDivisionError
    assert control.try_lock("append") is True
    control.unlock("append")
    assert control.lock("append") is True
    control.repaired("append")
    control.unlock("append")
    assert control.try_lock("append") is False


def test_repairer_that_dies_too_leaves_the_repair(path, control):
    for _ in range(3):
        with Process() as other:
            other.do(f"{JOIN}\ndue = control.lock('dispatch')", path=str(path))
            other.kill()
    assert control.lock("dispatch") is True


def test_dead_owner_of_one_lock_says_nothing_about_the_others(path, control):
    with Process() as other:
        other.do(f"{JOIN}\ncontrol.lock('flush')", path=str(path))
        other.kill()
    assert [control.try_lock(name) for name in layout.LOCK_NAMES] == [False, False, False, False, True]


def test_waiting_process_gets_the_lock_of_a_killed_one(path, control):
    with Process() as holder, Process() as waiting:
        for process in (holder, waiting):
            process.do(JOIN, path=str(path))
        holder.do("control.lock('append')")
        waiting.send("control.lock('append')")
        holder.kill()
        assert waiting.answer() is True


def test_lock_of_a_stopped_process_is_not_taken_from_it(path, control):
    with Process() as holder:
        holder.do(f"{JOIN}\ncontrol.lock('append')", path=str(path))
        holder.stop()
        with pytest.raises(StoreLockedError, match=f"held by thread {holder.pid}"):
            control.lock("append", timeout_ms=300)
        holder.go_on()
        holder.do("control.unlock('append')")
        assert control.lock("append") is False


def test_lock_is_given_back_after_the_store_was_closed_meanwhile(path, control):
    """By the thread that is inside while another one closes: else all other processes would wait for ever."""
    other = joined(path)
    other.lock("dispatch")
    other.detach()
    assert control.try_lock("dispatch") is None
    other.unlock("dispatch")
    assert control.try_lock("dispatch") is False


def test_lock_of_a_handle_that_is_lost_in_a_cycle_does_not_lead_its_thread_astray(path, control):
    """The thread's list of what it holds would lead into memory that is gone: its next lock would end the process."""
    with Process() as other:
        other.send(
            f"{JOIN}; import gc; gc.disable(); gc.collect(); control.lock('append'); "
            "cycle = [control]; cycle.append(cycle); del control, cycle; gc.collect(); again = parts.join_control(Path(path)); "
            "again.lock('dispatch'); again.unlock('dispatch'); import ctypes",
            path=str(path),
        )
        assert other.answer() is None
    assert control.try_lock("append") is False


def test_lock_stays_with_its_thread_when_another_handle_goes(path, control):
    """That of a store which was closed is collected wherever memory is asked for, inside of a lock of another one, too."""
    others = [joined(path) for _ in range(2)]
    with control.locked("housekeeping"), control.locked("flush"):
        del others
        assert [control.owner(name) for name in ("housekeeping", "flush")] == [threading.get_native_id()] * 2
        with ThreadPoolExecutor(1) as another:
            assert another.submit(control.try_lock, "housekeeping").result() is None
    assert control.owner("housekeeping") == 0


def test_wait_for_a_lock_ends_when_the_store_is_closed(path, control):
    with control.locked("append"):
        other = joined(path)
        errors = []

        def wait() -> None:
            try:
                other.lock("append")
            except StoreClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        other.detach()
        thread.join()
    assert len(errors) == 1


def test_forked_child_cannot_give_back_its_parents_lock(control):
    control.lock("append")
    child = os.fork()
    if child == 0:
        control.unlock("append")
        os._exit(0)
    os.waitpid(child, 0)
    assert control.owner("append") == threading.get_native_id()


INTERRUPT = """
import signal
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
def broken_off(wait):
    try:
        wait()
    except Interrupted:
        return True
    return False
"""


@pytest.mark.parametrize(
    "wait",
    [
        "control.lock('append')",
        "control.wait_append(control.append_seq, 60_000)",
        "control.wait_flush(control.flush_seq, 60_000)",
    ],
)
def test_waits_can_be_broken_off(path, control, wait):
    """Ctrl-C, with a handler that raises."""
    control.lock("append")
    with Process() as other:
        other.do(JOIN, path=str(path))
        other.do(INTERRUPT)
        assert other.do(f"broken_off(lambda: {wait})")
    control.unlock("append")
    assert control.try_lock("append") is False


@pytest.mark.slow
def test_long_wait_is_told(path, control, caplog):
    with Process() as holder:
        holder.do(f"{JOIN}\ncontrol.lock('append')", path=str(path))
        with caplog.at_level(logging.WARNING, "cystore"), pytest.raises(StoreLockedError):
            control.lock("append", timeout_ms=5_250)
        assert f"waiting for the append lock for 5 s; thread {holder.pid} holds it" in caplog.text


# ---------------------------------------------------------------------------------------------------- waits


def test_waiter_in_another_process_is_woken(path, control):
    with Process() as other:
        other.do(f"{JOIN}\nseen = control.append_seq", path=str(path))
        other.send("control.wait_append(seen, 60_000)\ncontrol.append_seq != seen")
        control.wake_append()
        assert other.answer()
        other.do("seen = control.flush_seq")
        other.send("control.wait_flush(seen, 60_000)\ncontrol.flush_seq != seen")
        control.wake_flush()
        assert other.answer()


def test_wait_for_what_has_happened_returns_at_once(control):
    seen = control.append_seq
    control.wake_append()
    control.wait_append(seen, 60_000)
    assert control.append_seq == (seen + 1) % 2**32


def test_wait_ends_by_itself(control):
    control.wait_append(control.append_seq, 1)
    control.wait_flush(control.flush_seq, 0)
    assert control.append_seq == 0
