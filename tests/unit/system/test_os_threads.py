"""Goal: no memory for a lock and no room for a thread are said as what they are, at once. Method: Python's own way to
say it, in place of the call that makes a lock; and a process whose address space ends soon."""

from __future__ import annotations

import pytest

from cystore.errors import StoreResourceError
from cystore.system.threads import os_threads
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

pytestmark = pytest.mark.unsanitized  # Python alone


@pytest.fixture
def no_memory(monkeypatch):
    def fail():
        raise RuntimeError("can't allocate lock")

    monkeypatch.setattr(os_threads._native, "allocate_lock", fail)
    monkeypatch.setattr(os_threads._native, "RLock", fail)


@pytest.mark.parametrize("make", [os_threads.Lock, os_threads.RLock, os_threads.Flag])
def test_no_memory_for_a_lock_is_a_memory_error(no_memory, make):
    """Seen: `checkpoint()` raised RuntimeError in a process whose address space was full."""
    with pytest.raises(MemoryError, match="can't allocate lock"):
        make()


def test_a_thread_without_memory_for_its_flags_does_not_begin(no_memory):
    """Some callers of Thread do the work themselves then."""
    ran = []
    with pytest.raises(StoreResourceError, match="can't allocate lock"):
        os_threads.Thread(lambda: ran.append(1), "work")
    assert not ran


def test_a_thread_that_begins_late_is_waited_for(monkeypatch):
    """Seen on a busy machine: the error for no memory, because the thread that starts it had ended."""
    real, ran = os_threads.Thread._run, os_threads.Flag()

    def late(self):
        os_threads.pause(20 * os_threads.LOOK_S)
        real(self)

    monkeypatch.setattr(os_threads.Thread, "_run", late)
    assert os_threads.Thread(ran.set, "work").join()
    assert ran.is_set()


STARVED = """
import os, resource, cystore
from cystore.system.threads import os_threads
os_threads.Thread.__init__.__defaults__ = (1e6,)  # who waits for it gives no answer
store = cystore.open(path, **settings)
store.put("T", b"first", flush="sync")
calls = {
    "consumer": lambda: store.consumer("g", "T"),
    "dispatchers.add": lambda: store.dispatchers.add("d", len),
    "listen": lambda: store.listen("T", len),
}
def starved(name, spare):
    "How a call ends if this many bytes more may be mapped."
    pages = int(open("/proc/self/statm").read().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + spare, limits[1]))
        made = calls[name]()
    except (cystore.StoreError, MemoryError) as error:
        return type(error).__name__
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    made.close()
    return ""
"""


@pytest.mark.parametrize("name", ["consumer", "dispatchers.add", "listen"])
def test_a_call_without_room_for_its_thread_fails_at_once_and_leaves_nothing(tmp_path, name):
    """Seen: it waited for ten seconds, then raised Python's RuntimeError."""
    settings = {**SETTINGS, "services": ()}
    with Process(fresh=True) as other:
        other.do(STARVED, path=str(tmp_path / "s"), settings=settings)
        ends = [other.do("starved(name, spare << 20)", name=name, spare=spare) for spare in range(0, 26, 2)]
        assert ends[0] == "StoreResourceError" and set(ends) <= {"StoreResourceError", ""}, ends
        groups, dispatchers = "store.groups.names()", "[one.name for one in store.dispatchers.states()]"
        if "" not in ends:
            assert other.do(groups) == [] and other.do(dispatchers) == []
        other.do("calls[name]().close()", name=name)
        other.do("store.close()")
