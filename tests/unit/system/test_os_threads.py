"""Goal: no memory for a lock is said as what it is. Method: Python's own way to say it, in place of the call that
makes a lock."""

from __future__ import annotations

import pytest

from cystore.system.threads import os_threads

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
    """The callers of Thread do the work themselves then."""
    ran = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        os_threads.Thread(lambda: ran.append(1), "work")
    assert not ran
