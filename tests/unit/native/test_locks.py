"""Goal: nobody stays behind a lock whose owner is gone, and nobody is inside of one that he does not know of. Method:
a control block in a file, joined by other processes that take locks, sleep, die, stop and wait."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cystore import layout
from cystore._native.memory.control import Control
from cystore.config import StoreConfig
from cystore.errors import FencedError, StoreClosedError, StoreFormatError, StoreLockedError
from cystore.system import files
from cystore.system.threads import lock_log as lock_log  # the locks report to it
from tests.support import parts
from tests.support.process import Failed, Process

JOIN = "from pathlib import Path; from tests.support import parts; control = parts.join_control(Path(path))"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control"


@pytest.fixture
def control(path):
    return parts.control_block(StoreConfig(), 1000, path)


def joined(path) -> Control:
    return Control.attach(files.map_file(path, 0, path.stat().st_size), **parts.HOST)


KEY_SLEEPERS = next(at for field, at in layout.CONTROL_FIELDS if field.name == "key_sleepers")
APPEND_LOCK = next(at for field, at in layout.CONTROL_FIELDS if field.name == "append_lock")
FUTEX_WAITERS = 0x80  # in the lock word's last byte: a thread sleeps until the lock is given back
TAKE = "turn = control.held({name!r}, timeout_ms={timeout_ms}); turn.__enter__(); None"
TAKE_IF_FREE = "turn = control.held_if_free({name!r}); turn.__enter__(); turn.held"
GIVE = "turn.__exit__(None, None, None)"


def take(name: str, timeout_ms: int = -1) -> str:
    """Another process's code that takes a lock, and keeps it."""
    return TAKE.format(name=name, timeout_ms=timeout_ms)


def is_free(control: Control, name: str) -> bool:
    with control.held_if_free(name) as turn:
        return turn.held


def test_lock_excludes_other_processes_and_says_who_holds_it(path, control):
    with Process() as other:
        other.do(JOIN, path=str(path))
        for name in layout.LOCK_NAMES:
            with control.held(name) as turn:
                assert turn.held
                assert other.do(TAKE_IF_FREE.format(name=name)) is False
                assert other.do("control.owner(name)", name=name) == threading.get_native_id()
                with pytest.raises(Failed, match=f"StoreLockedError: the {name} lock is held by thread"):
                    other.do(take(name, 1))
            assert other.do(TAKE_IF_FREE.format(name=name)) is True
            assert control.owner(name) == other.pid
            other.do(GIVE)
        assert control.owner("append") == 0


def test_second_lock_by_the_same_thread_is_refused_at_once(control):
    with control.held("append") as first:
        with (
            pytest.raises(StoreLockedError, match="this thread holds the append lock already"),
            control.held("append"),
        ):
            raise AssertionError("two at once")
        with control.held_if_free("append", within_ms=60_000) as turn:
            assert not turn.held and turn.mine
        with pytest.raises(StoreLockedError, match="has already begun"):
            first.__enter__()
        with control.held("flush"):
            assert control.owner("flush") == threading.get_native_id()
            assert control.held_by_this_thread
    assert is_free(control, "append")
    assert not control.held_by_this_thread


def test_unknown_lock_is_a_mistake(control):
    with pytest.raises(ValueError, match="not in tuple"):
        control.held("everything")


def test_lock_waits_for_a_live_owner(control):
    order = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with control.held("dispatch"):
            order.append("second")

    thread = threading.Thread(target=wait)
    control.on_repair("dispatch", lambda: None)
    with control.held("dispatch"):
        thread.start()
        waiting.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def killed_inside(path, *names: str) -> None:
    """A process that took locks and was killed."""
    with Process() as other:
        other.do(f"{JOIN}\nturns = [control.held(name) for name in names]", path=str(path), names=names)
        other.do("[turn.__enter__().held for turn in turns]")
        other.kill()


def test_dead_owner_leaves_a_repair_to_the_next_one(path, control):
    repaired = []
    control.on_repair("append", lambda: repaired.append(control.owner("append")))
    killed_inside(path, "append")
    for _ in range(2):
        with control.held("append"):
            assert repaired == [threading.get_native_id()], "repaired once, under the lock, before the block"


@pytest.mark.parametrize("form", ["held", "held_if_free"])
def test_repair_that_fails_gives_the_lock_back_and_is_left_to_the_next_owner(path, control, form):
    killed_inside(path, "append")

    def fail() -> None:
        raise ZeroDivisionError

    control.on_repair("append", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), getattr(control, form)("append"):
            raise AssertionError("the block ran on what was not repaired")
        assert control.owner("append") == 0
        assert control.repair_is_due("append")
    control.on_repair("append", lambda: None)
    assert is_free(control, "append")
    assert not control.repair_is_due("append")


def test_exception_that_leaves_the_block_leaves_a_repair(control):
    """The block may be half done, as after a kill."""
    repaired = []
    control.on_repair("dispatch", lambda: repaired.append(1))
    with pytest.raises(KeyboardInterrupt), control.held("dispatch"):
        raise KeyboardInterrupt
    assert control.owner("dispatch") == 0
    assert not repaired
    assert is_free(control, "dispatch")
    assert repaired == [1]


def test_lock_goes_with_its_turn(control):
    """An exception between the call and the block, which newer interpreters allow, leaves nothing but the object
    behind."""
    control.held("dispatch").__enter__()
    assert control.owner("dispatch") == 0
    assert control.repair_is_due("dispatch")


def test_what_is_asked_on_entering_may_refuse(control):
    def refuse() -> None:
        assert control.owner("flush") == threading.get_native_id()
        raise FencedError("too late")

    with pytest.raises(FencedError), control.held("flush", entered=refuse):
        raise AssertionError("entered")
    assert control.owner("flush") == 0


def test_repair_that_nobody_here_knows_is_refused(path, control):
    killed_inside(path, "flush", "housekeeping")
    assert is_free(control, "housekeeping"), "nothing has to be repaired under this one"
    with pytest.raises(StoreFormatError, match="cannot repair"), control.held("flush"):
        raise AssertionError("entered")
    assert control.owner("flush") == 0


def test_repairer_that_dies_too_leaves_the_repair(path, control):
    for _ in range(3):
        with Process() as other:
            other.do(
                f"{JOIN}\ncontrol.on_repair('dispatch', lambda: os.kill(os.getpid(), 9)); import os",
                path=str(path),
            )
            if control.repair_is_due("dispatch"):
                with pytest.raises(EOFError):
                    other.do(take("dispatch"))
            else:
                other.do(take("dispatch"))
            other.kill()
        with pytest.raises(StoreFormatError), control.held("dispatch"):
            pass
    assert control.repair_is_due("dispatch")


def test_dead_owner_of_one_lock_says_nothing_about_the_others(path, control):
    killed_inside(path, "flush")
    repaired: list[str] = []
    for name in layout.LOCK_NAMES:
        control.on_repair(name, partial(repaired.append, name))
        assert is_free(control, name)
    assert repaired == ["flush"]


def test_turns_over_their_budget_are_counted(control, caplog):
    with caplog.at_level(logging.DEBUG, "cystore"):
        with control.held("flush"):
            pass
        assert control.turns_over_budget == 0
        with control.held("flush", budget_ms=0):
            pass
    assert control.turns_over_budget == 1
    assert "a turn under the flush lock took" in caplog.text


def test_a_long_turn_may_end_without_its_mapping(control, caplog):
    """As in a child that a signal handler forked in the middle of a turn."""
    with caplog.at_level(logging.DEBUG, "cystore"), control.held("flush", budget_ms=0):
        control.detach()
        control.release()
    assert "a turn under the flush lock took" in caplog.text


def test_waiting_process_gets_the_lock_of_a_killed_one(path, control):
    with Process() as holder, Process() as waiting:
        for process in (holder, waiting):
            process.do(JOIN, path=str(path))
            process.do("control.on_repair('append', lambda: due.append(1)); due = []")
        holder.do(take("append"))
        waiting.send(take("append") + "; due")
        holder.kill()
        assert waiting.answer() == [1]


def test_lock_of_a_stopped_process_is_not_taken_from_it(path, control):
    with Process() as holder:
        holder.do(f"{JOIN}\n{take('append')}", path=str(path))
        holder.stop()
        with (
            pytest.raises(StoreLockedError, match=f"held by thread {holder.pid}"),
            control.held("append", timeout_ms=300),
        ):
            raise AssertionError("taken")
        holder.go_on()
        holder.do(GIVE)
        assert is_free(control, "append")


def test_lock_is_given_back_after_the_store_was_closed_meanwhile(path, control):
    """By the thread that is inside while another one closes: else all other processes would wait for ever."""
    other = joined(path)
    with other.held("dispatch"):
        other.detach()
        assert not is_free(control, "dispatch")
    assert is_free(control, "dispatch")


def test_lock_of_a_handle_that_is_lost_in_a_cycle_does_not_lead_its_thread_astray(path, control):
    """The thread's list of what it holds would lead into memory that is gone: its next lock would end the process."""
    with Process() as other:
        other.send(
            f"{JOIN}; import gc; gc.disable(); gc.collect(); {take('append')}; "
            "cycle = [control, turn]; cycle.append(cycle); del control, turn, cycle; gc.collect(); "
            f"control = parts.join_control(Path(path)); {take('dispatch')}; {GIVE}; import ctypes",
            path=str(path),
        )
        assert other.answer() is None
    control.on_repair("append", lambda: None)
    assert is_free(control, "append")


def test_lock_stays_with_its_thread_when_another_handle_goes(path, control):
    """That of a store which was closed is collected wherever memory is asked for, inside of a lock of another one,
    too."""
    others = [joined(path) for _ in range(2)]
    with control.held("housekeeping"), control.held("flush"):
        del others
        assert [control.owner(name) for name in ("housekeeping", "flush")] == [threading.get_native_id()] * 2
        with ThreadPoolExecutor(1) as another:
            assert another.submit(is_free, control, "housekeeping").result() is False
    assert control.owner("housekeeping") == 0


def mappings(path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_handle_that_goes_while_another_one_is_inside_leaves_no_mapping(path, control):
    """Seen: each handle that a process collected while a thread of it was inside of a lock kept its mapping until the
    process ended."""
    before = mappings(path)
    others = [joined(path) for _ in range(2)]
    with ThreadPoolExecutor(1) as another, control.held("flush"):
        another.submit(others.clear).result()
        assert mappings(path) == before


def test_a_turn_that_another_thread_collects_keeps_its_memory(path, control):
    """The owner's list of what it holds leads there; its next lock would end the process."""
    with Process() as other:
        other.send(
            f"{JOIN}; import threading; turns = [control.held('append')]; turns[0].__enter__(); del control; "
            "thread = threading.Thread(target=turns.clear); thread.start(); thread.join(); "
            f"control = parts.join_control(Path(path)); {take('dispatch')}; {GIVE}; control.owner('append') != 0",
            path=str(path),
        )
        assert other.answer() is True
    control.on_repair("append", lambda: None)
    assert is_free(control, "append")


def test_wait_for_a_lock_ends_when_the_store_is_closed(path, control):
    with control.held("append"):
        other = joined(path)
        errors = []

        def wait() -> None:
            try:
                with other.held("append"):
                    pass
            except StoreClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        other.detach()
        thread.join()
    assert len(errors) == 1


def test_forked_child_cannot_give_back_its_parents_lock(control):
    """Nor does an exception that leaves the block in the child say that something is to be repaired."""
    with control.held("append") as turn:
        child = os.fork()
        if child == 0:
            turn.__exit__(KeyboardInterrupt, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert control.owner("append") == threading.get_native_id()
        assert not control.repair_is_due("append")
    assert control.owner("append") == 0


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
        "control.held('append').__enter__()",
        "control.wait_append(control.append_seq, 60_000)",
        "control.wait_flush(control.flush_seq, 60_000)",
    ],
)
def test_waits_can_be_broken_off(path, control, wait):
    """Ctrl-C, with a handler that raises."""
    with control.held("append"), Process() as other:
        other.do(JOIN, path=str(path))
        other.do(INTERRUPT)
        assert other.do(f"broken_off(lambda: {wait})")
    assert is_free(control, "append")


def wait_until_somebody_waits(control: Control) -> None:
    """For the append lock."""
    while not control.file.read(APPEND_LOCK, 4)[3] & FUTEX_WAITERS:
        pass


@pytest.fixture
def called_in_the_wait(control) -> Iterator[list[Callable[[], object]]]:
    """What is appended to this list is called once, in the main thread, while it waits for the append lock."""
    calls: list[Callable[[], object]] = []

    def interrupt() -> None:
        wait_until_somebody_waits(control)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: calls.pop()())
    with ThreadPoolExecutor(1) as another:
        calling = another.submit(interrupt)
        yield calls
        calling.result()
    signal.signal(signal.SIGUSR1, before)


def rest(seconds: float) -> None:
    """This thread does not run for so long, and other threads do."""
    threading.Event().wait(seconds)


@pytest.mark.slow
def test_long_wait_is_told(path, control, called_in_the_wait, caplog):
    """The time of a thread that did not run counts, too: it waits no longer, and tells the whole time."""
    called_in_the_wait.append(partial(rest, 6))
    with Process() as holder:
        holder.do(f"{JOIN}\n{take('append')}", path=str(path))
        with (
            caplog.at_level(logging.WARNING, "cystore"),
            pytest.raises(StoreLockedError),
            control.held("append", timeout_ms=5_500),
        ):
            raise AssertionError("taken")
        told = re.findall(
            rf"waiting for the append lock for (\d+) s; thread {holder.pid} holds it", caplog.text
        )
        assert len(told) == 1 and int(told[0]) >= 6


def test_a_lock_that_is_free_after_a_stop_is_taken(path, control, called_in_the_wait):
    """The thread did not run when its time was over."""
    with Process() as holder:
        holder.do(f"{JOIN}\n{take('append')}", path=str(path))

        def stop() -> None:
            rest(1)
            holder.do(GIVE)

        called_in_the_wait.append(stop)
        with control.held("append", timeout_ms=1000) as turn:
            assert turn.held


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


def test_a_turn_of_a_flush_waits_until_the_lock_is_free_or_nothing_is_left_to_flush(control):
    """The waiting thread needs neither the lock nor the interpreter to see that another one has flushed."""
    turns, inside = [], threading.Event()

    def waits() -> None:
        inside.set()
        with control.flush_turn(10, 60_000) as turn:
            turns.append(turn.held)

    for done in (True, False):
        waiting = threading.Thread(target=waits)
        with control.held("flush"):
            waiting.start()
            inside.wait()
            if done:
                control.advance_flushed(10)
                control.wake_flush()
                waiting.join()
                assert turns == [False]
        control.wake_flush()
        waiting.join()
        inside.clear()
    assert turns == [False, False]
    with control.flush_turn(11, 60_000) as turn:
        assert turn.held
        with control.flush_turn(11, 60_000) as inner:  # of a signal handler
            assert (inner.held, inner.mine) == (False, True)
    control.set_flag(layout.FLAGS["FLAG_SYNC_FAILED"][0])
    with control.flush_turn(11, 60_000) as turn:
        assert not turn.held


def test_a_flush_turn_that_gets_the_lock_from_a_dead_leader_repairs_first(control, path):
    repaired = []
    control.on_repair("flush", lambda: repaired.append(True))
    with Process() as other:
        other.do(JOIN, path=str(path))
        other.do(take("flush"))
        other.kill()
    with control.flush_turn(1, 60_000) as turn:
        assert turn.held
    assert repaired == [True]


def test_a_wait_for_slaves_ends_with_their_report_or_the_epoch(control):
    control.raise_replicated(100)
    assert control.wait_replicated(100, 5, 0, 60_000)
    assert not control.wait_replicated(101, 5, 3, 60_000)  # another epoch
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(control.wait_replicated, 101, 5, 0, 60_000)
        while not any(control.file.read(KEY_SLEEPERS, 4 * layout.KEY_WORDS)):
            pass
        control.raise_replicated(101)
        control.wake_key(5)
        assert waiting.result()
