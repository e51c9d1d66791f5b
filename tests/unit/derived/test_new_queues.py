"""Goal: the first message of a queue is acknowledged or refused with a typed error, whether or not there is space for
the queue's files; what was acknowledged is read as soon as there is space. Method: a disk that is full or has no inode
left, a process that is killed then, and a folder that may not be written to."""

from __future__ import annotations

import pytest

import cystore
from tests.support.checks import check_closed
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.small_stores import SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about full disks

NEW_QUEUES = """
import contextlib, logging, os, shutil, signal, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, missing, ending = sys.argv[1:]
path, settings = os.path.join(root, "s"), {"mapped_file_size_commit_log_bytes": 1 << 16}
def use_up():
    if missing == "space":
        with open(os.path.join(root, "rest"), "wb", buffering=0) as rest, contextlib.suppress(OSError):
            while rest.write(bytes(4096)):
                pass
        return
    os.mkdir(os.path.join(root, "many"))
    with contextlib.suppress(OSError):
        for number in range(1 << 20):
            os.close(os.open(os.path.join(root, "many", str(number)), os.O_CREAT))
def make_room():
    if missing == "space":
        os.unlink(os.path.join(root, "rest"))
    else:
        shutil.rmtree(os.path.join(root, "many"))
def put(store, number):
    body = b"%d" % number
    store.put(f"New{number}", body, keys=("k",), flush="sync" if number % 50 == 0 else None)
def without_room():
    store = open_small(path, **settings)
    store.put("T", b"before")
    store.dispatch()
    use_up()
    for number in range(300):
        try:
            put(store, number)
        except cystore.StoreFullError as error:
            assert str(error.path).startswith(path), error.path
        else:
            os.write(told, b"%d " % number)
    try:
        store.dispatch()
        raise AssertionError("there was room")
    except cystore.StoreFullError as error:
        assert "consumequeue/New" in str(error.path), error.path
    assert [bytes(m.body) for m in store.get("T", 0, 0).messages] == [b"before"]
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
acknowledged, told = os.pipe()
child = 0 if ending == "closed" else os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
else:
    without_room()
os.close(told)
found = [int(number) for number in os.read(acknowledged, 1 << 16).split()]
store = open_small(path, **settings)
make_room()
put(store, 1000)
store.dispatch()
for number in (*found, 1000):
    messages = store.get(f"New{number}", 0, 0).messages
    assert [bytes(m.body) for m in messages] == [b"%d" % number], number
store.close()
print(len(found))
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize(("missing", "least"), [("space", 1), ("inodes", 300)])
def test_new_queues_while_there_is_no_room_for_their_files(tmp_path, missing, least, ending):
    size = "5m" if missing == "space" else "16m,nr_inodes=2000"
    assert int(on_small_disk(size, tmp_path, NEW_QUEUES, missing, ending)) >= least


def test_a_folder_that_may_not_be_written_to_stops_no_put(tmp_path, unprivileged):
    path = tmp_path / "store"
    with open_small(path) as store:
        store.put("T", b"before")
        store.dispatch()
        (path / "consumequeue").chmod(0o500)
        try:
            store.put("New", b"new")
            with pytest.raises(cystore.StorePermissionError) as caught:
                store.dispatch()
            assert str(caught.value.path) == str(path / "consumequeue" / "New")
            assert store.get("New", 0, 0).messages == []
        finally:
            (path / "consumequeue").chmod(0o700)
        assert [bytes(m.body) for m in store.get("New", 0, 0).messages] == [b"new"]
    check_closed(path, SETTINGS)
