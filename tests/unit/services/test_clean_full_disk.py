"""Goal: a disk that is 100 % full can be cleaned and closed on. Method: stores on small disks of their own, filled to
the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from cystore.derived.files.offsets import QueueOffsets, read_queue_offsets, write_queue_offsets
from cystore.system import files
from cystore.system.small_files import SPARE
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about full disks


FULL = """
import logging, os, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, dispatches, queues = sys.argv[1], sys.argv[2] == "dispatched", int(sys.argv[3])
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0}
def use_up():
    rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(rest, bytes(4096)):
            pass
    except OSError:
        os.close(rest)
store = open_small(path, **settings)
put = {}
def fill():
    try:
        while True:
            queue = store.stats()["put_count"] % queues
            put[queue] = store.put("T", os.urandom(3000), queue_id=queue, keys=("k",)).queue_offset
            if dispatches:
                store.dispatch()
    except cystore.StoreFullError:
        use_up()
for turn in range(4):
    fill()
    done = store.clean()
    assert done.segments > 0, (turn, done)
    os.unlink(os.path.join(root, "rest"))
    use_up()  # somebody else takes what was cleaned: nothing is left for the state files
    done = store.clean()
    os.unlink(os.path.join(root, "rest"))
fill()
store.close()
os.unlink(os.path.join(root, "rest"))
with open_small(path, **settings) as store:
    store.clean()
    for queue, offset in put.items():
        assert store.put("T", b"", queue_id=queue).queue_offset == offset + 1, queue
print("went on")
"""


@pytest.mark.sampled(2)
@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("dispatched", ["dispatched", "nobody dispatches"])
@pytest.mark.parametrize("queues", [3, 100])
def test_a_full_disk_is_cleaned_and_closed_on(tmp_path, dispatched, queues):
    """Seen: clean needed space for a state file and gave up; where the disk was too full to dispatch, nothing could
    ever go."""
    out = on_small_disk("3m", tmp_path, FULL, dispatched, str(queues))
    assert out == "went on\n"


def table(position: int) -> QueueOffsets:
    return QueueOffsets(
        {("T", n): position + n for n in range(100)}, {("T", n): n for n in range(100)}, position
    )


def test_a_table_is_written_into_space_that_it_has(tmp_path, monkeypatch):
    """From the second time on nothing is allocated, and both what was written and the one before can be read."""
    write_queue_offsets(tmp_path, table(1))
    write_queue_offsets(tmp_path, table(2))
    write_queue_offsets(tmp_path, table(3))

    def refuse(fd, begin, end, path=""):
        raise AssertionError("space was asked for")

    monkeypatch.setattr(files, "allocate", refuse)
    for position in range(4, 10):
        write_queue_offsets(tmp_path, table(position))
        assert read_queue_offsets(tmp_path) == table(position)
        path = tmp_path / "config" / "queueOffset.json"
        whole = path.read_bytes()
        path.write_bytes(b"damaged".ljust(len(whole)))
        assert read_queue_offsets(tmp_path) == table(position - 1)
        path.write_bytes(whole)


def test_what_a_kill_left_in_the_spare_is_not_read(tmp_path):
    write_queue_offsets(tmp_path, table(1))
    write_queue_offsets(tmp_path, table(2))
    (tmp_path / "config" / f"queueOffset.json{SPARE}").write_bytes(b"half a table")
    assert read_queue_offsets(tmp_path) == table(2)
    write_queue_offsets(tmp_path, table(3))
    assert read_queue_offsets(tmp_path) == table(3)


COMPACTED = """
import logging, os, sys
import cystore
from cystore.engine.files.compacted_file import numbers
from tests.support.small_stores import open_small
from pathlib import Path
logging.disable()
root = sys.argv[1]
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0, "compacted_topics": "state"}
def use_up():
    rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(rest, bytes(4096)):
            pass
    except OSError:
        os.close(rest)
with open_small(path, **settings) as store:
    model = {}
    def fill(count, size):
        for number in range(count):
            model[f"k{number % 20}"] = os.urandom(size)
            store.put("state", model[f"k{number % 20}"], keys=[f"k{number % 20}"])
        store.flush()
    def check():
        assert {key: bytes(store.latest("state", key).body) for key in model} == model
    fill(100, 3000)
    store.compact()
    store.clean()
    fill(100, 3000)
    store.dispatch()
    os.unlink(os.path.join(path, "compacted", "reserve"))
    use_up()
    try:
        store.compact()
    except cystore.StoreFullError as error:
        assert error.path is not None
        print("full")
    assert numbers(Path(path)) == [0]
    check()
    done = store.clean()
    assert done.segments > 0
    check()
    os.unlink(os.path.join(root, "rest"))
    assert store.clean().segments + done.segments > 3
    check()
with open_small(path, **settings) as store:
    check()
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_a_full_disk_keeps_the_compacted_file_in_force(tmp_path):
    assert on_small_disk("6m", tmp_path, COMPACTED) == "full\nwent on\n"


COMPACTED_AND_FULL = """
import logging, os, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, dispatches = sys.argv[1], sys.argv[2] == "dispatched"
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0, "compacted_topics": "state"}
store = open_small(path, **settings)
model = {}
def fill():
    number = 0
    try:
        while True:
            key = f"k{number % 15}"
            value = os.urandom(3000)
            store.put("state", value, keys=[key])
            model[key] = value
            number += 1
            if dispatches:
                store.dispatch()
    except cystore.StoreFullError:
        pass
for turn in range(4):
    fill()
    done = store.clean()
    assert done.segments > 0, (turn, done)
    store.dispatch()
    found = {key: store.latest("state", key) for key in model}
    assert {key: one and bytes(one.body) for key, one in found.items()} == model, turn
fill()
store.close()
with open_small(path, **settings) as store:
    assert store.clean().segments > 0
    store.dispatch()
    assert {key: bytes(store.latest("state", key).body) for key in model} == model
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("dispatched", ["dispatched", "nobody dispatches"])
def test_a_full_disk_is_cleaned_while_topics_are_compacted(tmp_path, dispatched):
    """Seen: compaction waited for records that no process could dispatch or flush; cleaning waited for compaction."""
    assert on_small_disk("3m", tmp_path, COMPACTED_AND_FULL, dispatched) == "went on\n"


REOPENED = """
import contextlib, logging, os, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, ends, wanted = sys.argv[1:]
path = os.path.join(root, "s")
settings = {
    "mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0, "disk_space_warning_level_ratio": 100,
}
def use_up(name):
    rest = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while os.write(rest, bytes(4096)):
            pass
    os.close(rest)
def life(work):
    "In a process of its own, which may be killed."
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
def end(store):
    if ends == "closed":
        with contextlib.suppress(cystore.NotDurableError):
            store.close()
    os._exit(0)
def first():
    store = open_small(path, **settings)
    for number in range(400):
        store.put(f"T{number % 20}", bytes(1000), keys=(f"k{number}",))
    store.dispatch()
    use_up("other")
    with contextlib.suppress(cystore.StoreFullError):
        for number in range(9000):
            store.put(f"N{number % 20}", bytes(1000), keys=(f"n{number}",))
    use_up("more")
    end(store)
def again():
    use_up("closed")
    store = open_small(path, **settings)
    use_up("opened")
    end(store)
def earlier():
    "What an earlier version left: its reserved space is gone."
    if wanted == "earlier":
        store = open_small(path, **settings)
        store._parts.allocator._has_headroom = True  # so it dispatches into what is left
        with contextlib.suppress(cystore.StoreFullError):
            store.dispatch()
        for name in ("headroom", "config/queueOffset.json.spare", "config/queueOffset.json.bak"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
        use_up("eaten")
        end(store)
def last():
    store = open_small(path, **settings)
    if wanted == "topic":
        store.delete_topic("T1")
    else:
        done = store.clean()
        assert done.segments > 3 and not done.unexpired, done
    for number in range(20):
        assert store.next_queue_offset(f"T{number}", 0) == 20, number
    assert store.put("T0", b"").queue_offset == 20
    store.dispatch()
    store.close()
life(first)
for _ in range(3):
    life(again)
life(earlier)
life(last)
print("cleaned")
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("wanted", ["clean", "topic", "earlier"])
def test_a_store_that_was_opened_again_on_a_full_disk_is_cleaned(tmp_path, ends, wanted):
    """Seen: each open gave back the reserved space and dispatched into it; then nothing could be cleaned any more."""
    assert on_small_disk("5m", tmp_path, REOPENED, ends, wanted) == "cleaned\n"


UNEXPIRED = """
import contextlib, os, re, shlex, subprocess, sys
import cystore
from pathlib import Path
from tests.support.small_stores import SETTINGS, open_small
root, page, elsewhere = sys.argv[1:]
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "disk_space_warning_level_ratio": 100}
section = Path(page).read_text().split("## A full disk")[1].split("\\n## ")[0]
commands = re.findall(r"^cystore (.*?)(?: +#.*)?$", section, re.M)
commands = [one.replace("/var/lib/app/store", path).replace("/mnt/other/quarantine", elsewhere) for one in commands]
def run(command):
    return subprocess.run([sys.executable, "-m", "cystore", *shlex.split(command)], capture_output=True, text=True)
def use_up(name):
    rest = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while os.write(rest, bytes(4096)):
            pass
    os.close(rest)
def child(work):
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    os.waitpid(pid, 0)
def fill():
    store = open_small(path, **settings, file_reserved_time_h=72)
    for number in range(1000):
        store.put("T", bytes(1000), keys=(f"k{number}",))
        if number % 100 == 0:
            store.dispatch()
    use_up("other")
    with contextlib.suppress(cystore.StoreFullError):
        while True:
            store.put("T", bytes(1000))
    os.unlink(os.path.join(path, "headroom"))  # as a recovery that needed it leaves the store
    use_up("more")
child(fill)
clean, forcibly, quarantine = commands
done = run(clean)
assert done.returncode == 2 and "bytes free" in done.stderr and "--forcibly" in done.stderr, done
done = run(forcibly)
assert done.returncode == 0 and "had not expired" in done.stdout, done
with open_small(path, **settings) as store:
    assert store.stats()["min_physical_offset"] > 0
    store.put("T", b"goes on")
    end = store.wrote_position
    use_up("rest")
# A torn tail for which the disk has no space.
log = Path(path) / "commitlog"
last = sorted(log.iterdir())[end // (1 << 16) - int(sorted(log.iterdir())[0].name) // (1 << 16)]
with open(last, "r+b") as file:
    file.seek(end % (1 << 16))
    file.write(b"t" * ((1 << 16) - end % (1 << 16)))
(Path(path) / "abort").touch()
(Path(path) / "headroom").unlink(missing_ok=True)
use_up("again")
done = run(clean)
assert done.returncode == 2 and "--quarantine DIR" in done.stderr, done
done = run(quarantine)
copies = os.listdir(elsewhere)
assert done.returncode in (0, 2), done
assert len(copies) == 1 and copies[0].startswith("commitlog-"), (copies, done)
os.unlink(os.path.join(root, "other"))
with open_small(path, **settings) as store:
    assert store.wrote_position == end
    assert os.listdir(Path(path) / "quarantine") == []
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_the_commands_of_the_page_help_a_store_in_which_nothing_has_expired(tmp_path):
    """docs/recovery.md, word for word: the first one says what is missing, the second one lets the oldest messages go,
    the third one puts a torn tail on another disk."""
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    page = Path(__file__).parents[3] / "docs" / "recovery.md"
    assert on_small_disk("5m", disk, UNEXPIRED, str(page), str(elsewhere)) == "went on\n"


def test_the_spare_has_room_for_the_table_of_all_queues(tmp_path):
    """Seen: a table of 3,000 queues did not fit into the space that was reserved for a few."""
    with open_small(tmp_path / "s", max_queues=4096) as store:
        for number in range(1500):
            store.put(f"a-topic-with-a-longer-name-{number}", b"")
        spare = store.path / "config" / f"queueOffset.json{SPARE}"
        reserved = spare.stat().st_blocks * 512
        store.dispatch()
        store.flush()
        assert len((store.path / "config" / "queueOffset.json").read_bytes().rstrip()) <= reserved
