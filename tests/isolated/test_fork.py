"""Goal: a forked child neither harms its parent's store nor needs to know that it was forked. Method: fork in a fresh
process, look at both sides and ask a third process."""

from __future__ import annotations

from tests.support.isolated import fresh


def both_append(path: str) -> list:
    """Parent and forked child put in turn through the same object; both see all four, in one order."""
    import os

    import cystore

    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"parent 1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.put("T", b"child 1")
            store.put("T", b"child 2")
            store.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    store.put("T", b"parent 2")
    bodies = [bytes(message.body).decode() for message in store.get("T", 0, 0, 32).messages]
    store.close()
    return [os.waitstatus_to_exitcode(status), bodies]


def test_a_child_attaches_again_at_first_use(tmp_path):
    code, bodies = fresh.run(both_append, str(tmp_path / "store"))
    assert code == 0
    assert bodies == ["parent 1", "child 1", "child 2", "parent 2"]


def handler_comes_between(path: str, does: str) -> list:
    """A signal comes while a forked child attaches again for its first put; its handler puts, or closes the store."""
    import glob
    import os
    import signal
    import time

    import cystore
    from cystore.system.store_lock import StoreLocks

    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"parent")
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # ends a child that waits for itself
        alone, closed = StoreLocks.try_alone, False

        def on_store() -> int:
            return sum(os.path.realpath(fd).startswith(path) for fd in glob.glob("/proc/self/fd/*"))

        def handler(*_) -> None:
            store.put("T", b"handler") if does == "put" else store.close()

        def with_signal(locks: StoreLocks) -> bool:
            os.kill(os.getpid(), signal.SIGUSR1)
            return alone(locks)

        signal.signal(signal.SIGUSR1, handler)
        StoreLocks.try_alone = with_signal
        try:
            store.put("T", b"child")
        except cystore.StoreClosedError:
            closed = True
        until_s = time.monotonic() + 30
        while closed and on_store() and time.monotonic() < until_s:
            os.sched_yield()
        os._exit(10 * closed + on_store() if closed else 0)
    _, status = os.waitpid(pid, 0)
    bodies = [bytes(message.body).decode() for message in store.get("T", 0, 0, 32).messages]
    store.close()
    return [os.waitstatus_to_exitcode(status), sorted(bodies)]


def test_a_handler_puts_while_a_child_attaches_again(tmp_path):
    """Seen: the handler's put waited at the gate for its own thread, without end."""
    code, bodies = fresh.run(handler_comes_between, str(tmp_path / "store"), "put")
    assert code == 0
    assert bodies == ["child", "handler", "parent"]


def test_a_handler_closes_while_a_child_attaches_again(tmp_path):
    """Then nothing stays open. Seen: the child stayed attached until its end."""
    code, bodies = fresh.run(handler_comes_between, str(tmp_path / "store"), "close")
    assert code == 10
    assert bodies == ["parent"]


def child_ends(path: str, way: str) -> list:
    """A child that never uses the store ends; then a third process asks for the store alone, while the parent holds
    it."""
    import os
    import subprocess
    import sys

    import cystore

    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"1")
    pid = os.fork()
    if pid == 0:
        if way == "close":
            store.close()
        os._exit(0)
    os.waitpid(pid, 0)
    ask = (
        "import cystore, sys\n"
        "try: cystore.open(sys.argv[1], exclusive=True).close()\n"
        "except cystore.StoreLockedError: print('locked')\n"
        "else: print('free')"
    )

    def third() -> str:
        done = subprocess.run([sys.executable, "-c", ask, path], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    while_open = third()
    store.put("T", b"2")
    count = len(store.get("T", 0, 0).messages)
    store.close()
    return [while_open, count, third()]


def test_a_child_that_just_ends_does_not_unlock_the_parent(tmp_path):
    assert fresh.run(child_ends, str(tmp_path / "store"), "exit") == ["locked", 2, "free"]


def test_a_child_that_closes_does_not_unlock_the_parent(tmp_path):
    assert fresh.run(child_ends, str(tmp_path / "store"), "close") == ["locked", 2, "free"]


def descriptors_in_child(path: str) -> list:
    """Descriptors on the store's files that a child has before and after it first uses the store, and after an exec."""
    import os
    import subprocess
    import time

    import cystore

    def on_store() -> int:
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{name}").startswith(path)
            except FileNotFoundError:  # the listing's own
                continue
        return count

    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"1")
    in_parent = on_store()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = on_store()
        store.put("T", b"2")
        until_s = time.monotonic() + 30
        while (used := on_store()) > in_parent and time.monotonic() < until_s:
            os.sched_yield()  # the child's services make files ahead, each with a descriptor for a moment
        os.write(writing, f"{before} {used}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    before, used = map(int, os.read(reading, 100).split())
    listing = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
    )
    store.close()
    return [in_parent, before, used, listing.stdout.count(path), on_store()]


def test_a_child_closes_what_it_inherited(tmp_path):
    in_parent, before, used, after_exec, at_end = fresh.run(descriptors_in_child, str(tmp_path / "store"))
    assert in_parent > 0
    assert before == 0
    assert 0 < used <= in_parent
    assert after_exec == 0
    assert at_end == 0
