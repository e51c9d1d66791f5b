"""Goal: no Python thread stands still because of the store, whatever the sizes. Method: a library that holds the
caller up inside of a slow system call, or of a page fault, until another Python thread has run. A caller that keeps
the interpreter's lock there is found out, however fast the machine is."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Process
from tests.support.processes.shifted import COMPILER

SOURCE = Path(__file__).with_name("other_threads.c")

pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="the library knows Linux's calls"),
    pytest.mark.unsanitized,  # preloads a library of its own
]

# Runs in a process that was started with the library.
WATCH = """
import ctypes, glob, os, threading
import cystore
library = ctypes.CDLL(None)
asks, answers = os.pipe(), os.pipe()
def answer():
    while os.read(asks[0], 1):
        os.write(answers[1], b"x")
threading.Thread(target=answer, daemon=True).start()
library.open_pipes(asks[1], answers[0])

def guard(part):
    "Every page of the mapping whose path ends so is waited for at its next access."
    for line in open("/proc/self/maps"):
        fields = line.split()
        if len(fields) > 5 and part in fields[5]:
            begin, end = (ctypes.c_size_t(int(n, 16)) for n in fields[0].split("-"))
            assert library.guard(begin, end, int("w" in fields[1])) == 0
            return
    raise LookupError(part)

def watched(work, *parts, calls=False):
    "(how often another thread was waited for, how often none came) while `work` ran"
    before = library.times_asked(), library.times_stood_still()
    for part in parts:
        guard(part)
    library.arm(int(calls))
    try:
        work()
    finally:
        library.arm(0)
        library.unguard()
    return [library.times_asked() - before[0], library.times_stood_still() - before[1]]

MIB = 1 << 20
def opened(path, **more):
    settings = dict(services=(), mapped_file_size_commit_log_bytes=32 * MIB, max_hash_slot_num=1000, max_index_num=3000)
    return cystore.open(path, **{**settings, **more})
def messages(count, size=1000):
    return [cystore.Message(topic="T", body=b"x" * size, keys=(f"k{n}",)) for n in range(count)]
"""

LOG, QUEUE, INDEX = f"/commitlog/{0:020d}", "/consumequeue/", "/index/"


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    built = tmp_path_factory.mktemp("other_threads") / "other_threads.so"
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    subprocess.run([*command, "-o", built, SOURCE, "-ldl"], check=True)
    return str(built)


@pytest.fixture
def child(library, tmp_path) -> Iterator[Process]:
    """A process with a store of some messages."""
    with Process({**os.environ, "LD_PRELOAD": library}) as process:
        process.do(
            WATCH + "store = opened(path)\nstore.put_many(messages(200))", path=str(tmp_path / "store")
        )
        yield process


def test_the_library_finds_who_keeps_the_lock(child):
    """The control: memory that Python itself reads is read with the lock held."""
    asked, stood_still = child.do("view = store.read(0).body\nwatched(lambda: bytes(view[:8]), LOG)", LOG=LOG)
    assert (asked, stood_still) == (1, 1)


@pytest.mark.parametrize(
    "work",
    [
        "store.put('T', b'x' * (4 * MIB))",
        "store.put('T', bytearray(MIB))",
        "store.put_many(messages(300, 10_000))",
        "list(store.scan())",
        "store.read(0)",
        "store.get('T', 0, 0, 200)",
        "store.get('T', 0, 0, 200, raw=True)",
        "store.query('T', 'k7')",
        "store.query('T', 'k7', 5, begin_ms=1)",
        "store.offset_by_time('T', 0, 1)",
        "store.flush()",
    ],
)
def test_pages_of_the_log_are_faulted_in_beside_other_threads(child, work):
    """Faults of records were taken, and whole records copied, with the interpreter's lock held."""
    child.do("store.dispatch()")
    asked, stood_still = child.do(f"watched(lambda: {work}, LOG)", LOG=LOG)
    assert asked > 0
    assert stood_still == 0


def test_the_log_is_dispatched_beside_other_threads(child):
    assert child.do("watched(store.dispatch, LOG)", LOG=LOG)[1] == 0


@pytest.mark.parametrize("part", [QUEUE, INDEX])
@pytest.mark.parametrize(
    "work",
    ["store.get('T', 0, 5, 100)", "store.query('T', 'k7')", "store.offset_by_time('T', 0, 1)", "more()"],
)
def test_pages_of_queues_and_index_are_faulted_in_beside_other_threads(child, part, work):
    child.do(
        "store.dispatch()\nstore.get('T', 0, 0)\nstore.query('T', 'k1')\n"
        "def more():\n    store.put_many(messages(200))\n    store.dispatch()"
    )
    assert child.do(f"watched(lambda: {work}, part)", part=part)[1] == 0


@pytest.mark.parametrize(
    "work",
    [
        "store.flush()",
        "store.flush_log()",
        "store.checkpoint()",
        "store.put('T', b'x', flush='sync')",
        "store.put_many(messages(40, MIB))",
        "store.clean()",
        "store.close()",
    ],
)
def test_the_disk_is_waited_for_beside_other_threads(child, work):
    """The checkpoint was synced with the interpreter's lock held, once a second: half a second on a busy disk."""
    child.do("store.dispatch()")
    asked, stood_still = child.do(f"watched(lambda: {work}, calls=True)")
    assert asked > 0
    assert stood_still == 0


def test_waiting_threads_are_woken_beside_other_threads(child):
    """The queues of a batch were searched for waiting threads with the lock held: 5 ms for half a million messages."""
    stood_still = child.do(
        "done = threading.Event()\n"
        "def wait():\n"
        "    while not done.is_set(): store.wait('T', 0, store.next_queue_offset('T', 0), 60)\n"
        "def put():\n"
        "    while not library.times_woken(): store.put_many(messages(1))\n"
        "waiting = threading.Thread(target=wait)\nwaiting.start()\n"
        "found = watched(put, calls=2)\n"
        "done.set()\nstore.put_many(messages(1))\nwaiting.join()\nfound[1]"
    )
    assert stood_still == 0


@pytest.mark.parametrize("given", ["list", "tuple", "iter"])
def test_a_huge_batch_lets_other_threads_run(child, given):
    """A batch of 200,000 messages was checked in one piece: 0.1 s in which no other thread ran. The last one is
    refused, so checking is all that happens. A thread that counts asks for the interpreter's lock all the time; it
    had it once or twice, and has it dozens of times."""
    turns = child.do(
        "import sys\nturns, done = [0], threading.Event()\n"
        "def count():\n    while not done.is_set(): turns[0] += 1; os.sched_yield()\n"
        "refused = cystore.Message(topic='T', body=b'', keys=('a key with spaces',))\n"
        f"batch = {given}([*messages(200_000, 1), refused])\n"
        "sys.setswitchinterval(1e-9)\ncounting = threading.Thread(target=count)\ncounting.start()\n"
        "before = turns[0]\ntry:\n    store.put_many(batch)\nexcept cystore.MessageIllegalError:\n    between "
        "= turns[0] - before\n"
        "done.set()\ncounting.join()\nbetween"
    )
    assert turns >= 10
