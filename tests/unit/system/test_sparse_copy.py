"""Goal: a sparse copy of a store on a disk that is full, or nearly so, is read and opened without a signal (I5).
Method: stores with zeros in them are copied to a small tmpfs, where also a read of a hole through an ordinary mapping
takes space."""

from __future__ import annotations

import pytest

from tests.support.disks.small_disk import NOT_ASKED, on_small_disk

pytestmark = pytest.mark.unsanitized  # about full disks


COMMON = """
import logging, os, shutil, subprocess, sys
import cystore
from tests.support.child import in_child
from tests.support.small_stores import SETTINGS
logging.disable()
root, source = sys.argv[1], sys.argv[2]
SETTINGS = {**SETTINGS, "mapped_file_size_commit_log_bytes": 1 << 20, "max_hash_slot_num": 50_000}
SETTINGS["max_index_num"] = 100_000
path = os.path.join(root, "s")
bodies = [bytes(60_000) + b"%d" % n for n in range(40)]
def put_all():
    store = cystore.open(source, **SETTINGS)
    for n, body in enumerate(bodies):
        store.put("T", body, keys=(f"k{n}",))
    return store
def copy():
    subprocess.run(["cp", "-a", "--sparse=always", source, path], check=True)
def use_up():
    rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(rest, bytes(4096)):
            pass
    except OSError:
        os.close(rest)
def check(**more):
    with cystore.open(path, **SETTINGS, **more) as store:
        assert [bytes(m.body) for m in store.scan()] == bodies
        for n, body in enumerate(bodies):
            assert [bytes(m.body) for m in store.query("T", f"k{n}")] == [body]
            got = store.get("T", 0, n, 1)  # a full disk stops dispatch
            assert got.behind or bytes(got.messages[0].body) == body
        assert store.query("T", "none") == []
"""

READ = """
with put_all() as store:
    pass
copy()
use_up()
assert in_child(lambda: check(read_only=True)) == 0
print("read")
"""

OPEN = """
def crash():
    store = put_all()
    os._exit(0)
assert in_child(crash) == 0
copy()
FULL = 3
def attempt():
    try:
        check()
    except cystore.StoreFullError:
        os._exit(FULL)
use_up()
rest, codes = os.path.join(root, "rest"), []
while not codes or codes[-1]:
    assert in_child(lambda: check(read_only=True)) == 0
    codes.append(in_child(attempt))
    assert codes[-1] in (0, FULL), codes
    os.truncate(rest, max(os.path.getsize(rest) - 65536, 0))
assert FULL in codes, codes
bodies.append(bytes(60_000))
os.unlink(rest)
with cystore.open(path, **SETTINGS) as store:
    store.put("T", bodies[-1], keys=("k0",))
    assert [bytes(m.body) for m in store.scan()] == bodies
    assert len(store.query("T", "k0")) == 2
print("opened", codes)
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize(("script", "says"), [(READ, "read"), (OPEN, "opened")], ids=["read", "open"])
def test_on_a_full_tmpfs(tmp_path, script, says):
    """Seen: SIGBUS in `query` of a copy on a full tmpfs, which had a hole among the slots of its index; and in the
    recovery of a crashed store on a disk that was nearly full, which made a hole in a body dirty."""
    (tmp_path / "mount").mkdir()
    out = on_small_disk("8m", tmp_path / "mount", COMMON + script, str(tmp_path / "source"))
    assert out.startswith(says)
