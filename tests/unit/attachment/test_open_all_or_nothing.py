"""Goal: `open`, a put and `close` that fail leave nothing behind. Method: the n-th system call fails, for every n
until all succeed, in a process of its own; after each failure its descriptors, mappings and threads are counted. One
process takes every third n: opening a store needs hundreds of calls."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest

from tests.crash.faults.errors import SOURCE
from tests.support.small_stores import SETTINGS

pytestmark = [
    pytest.mark.unsanitized,  # preloads a library of its own
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)"),
]

EACH = 3
LIFE = """
import ctypes, gc, logging, os, sys
import cystore
from tests.support.interrupts import alone_again, descriptors, mapped, threads
logging.disable()
library = ctypes.CDLL(None)
path, call, code, first = *sys.argv[1:4], int(sys.argv[4])
os.environ["CYSTORE_FAIL_UNDER"] = path
store = None
def live():
    global store
    store = cystore.open(path, **SETTINGS)
    store.put("T", b"x", keys=("k",), flush="sync")
    store.close()
def end():
    global store
    try:
        if store is not None:
            store.close()
    except cystore.StoreError:
        pass  # says what may not be durable
    store = None
live()
end()
gc.collect()
before, threads_before, place, failures = descriptors(), threads(), first - EACH, 1
while failures:
    place += EACH
    library.cystore_count_anew()
    os.environ.update(CYSTORE_FAIL_CALL=call, CYSTORE_FAIL_AT=str(place), CYSTORE_FAIL_ERRNO=code)
    try:
        live()
    except cystore.StoreError:
        pass
    failures = library.cystore_failures()
    del os.environ["CYSTORE_FAIL_CALL"]
    end()
    assert alone_again(threads_before), place
    gc.collect()
    assert (descriptors(), threads() - threads_before, mapped(path)) == (before, set(), []), place
print(place)
cystore.open(path, **SETTINGS | {"exclusive": True}).close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library that lets system calls fail, built."""
    built = tmp_path_factory.mktemp("preloaded") / "fail_calls.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(1, EACH + 1))
@pytest.mark.parametrize(
    ("call", "code", "least"),
    [
        ("thread", errno.EAGAIN, 5),
        ("any", errno.EMFILE, 100),
        ("any", errno.ENOMEM, 100),
        ("any", errno.ENOSPC, 100),
        ("any", errno.EIO, 100),
    ],
)
def test_a_system_call_that_fails_leaves_nothing(tmp_path, library, call, code, least, first):
    settings = {**SETTINGS, "services": ["flush", "allocate"]}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"SETTINGS, EACH = {settings!r}, {EACH}\n{LIFE}",
            str(tmp_path / "s"),
            call,
            str(code),
            str(first),
        ],
        env={**os.environ, "LD_PRELOAD": str(library)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least
