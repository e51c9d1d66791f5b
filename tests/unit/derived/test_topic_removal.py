"""Goal: topics can be deleted, and queues without messages go, beside readers, writers and dispatchers of other
processes; a removed queue continues counting (I2). Method: live processes around a removal, crashes and rebuilds
behind it."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

import cystore
from cystore import clock
from cystore.cli.program import main
from tests.support.clock import stop
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, body_for, open_small

pytestmark = pytest.mark.unsanitized  # about files and processes

COUNT = 250  # entries: two whole files of 100, and half of one


def fill(store: cystore.MessageStore, topic: str = "T", count: int = COUNT, queues: int = 2) -> None:
    for n in range(count):
        for queue_id in range(queues):
            store.put(topic, b"%d" % n, queue_id=queue_id, keys=[f"k{n}"])


def bodies(store: cystore.MessageStore, topic: str, queue_id: int, begin: int) -> list[bytes]:
    found, at = [], begin
    while (got := store.get(topic, queue_id, at)).status is cystore.GetStatus.FOUND:
        found += [bytes(m.body) for m in got.messages]
        at = got.next_offset
    return found


def check_removed(store: cystore.MessageStore, end: int) -> None:
    """The topic T is gone up to a queue offset, and U is whole."""
    got = store.get("T", 0, 0)
    assert (got.messages, got.min_offset, got.next_offset) == ([], end, end)
    assert bodies(store, "U", 0, 0) == [b"%d" % n for n in range(COUNT)]


def verified(path) -> None:
    assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize("ext", [False, True])
def test_a_deleted_topic_is_gone_and_goes_on_counting(tmp_path, ext):
    """Seen: there was no way to remove a topic."""
    path = tmp_path / "s"
    with open_small(path, enable_consume_queue_ext=ext) as store:
        fill(store)
        fill(store, "U", queues=1)
        done = store.delete_topic("T")
        assert (done.queues, done.messages) == (2, 2 * COUNT)
        assert done.files >= 6
        assert not (path / "consumequeue" / "T").exists()
        assert not (path / "consumequeue_ext" / "T").exists()
        assert list(store.topics()) == ["U"]
        check_removed(store, COUNT)
        assert store.delete_topic("T").messages == 0
        assert store.put("T", b"again").queue_offset == COUNT
        assert bodies(store, "T", 0, COUNT) == [b"again"]
        assert list(store.topics()["T"]) == [0]
    verified(path)
    with open_small(path) as store:
        assert bodies(store, "T", 0, COUNT) == [b"again"]
        assert store.get("T", 0, 3).status is cystore.GetStatus.OFFSET_TOO_SMALL
        assert store.put("T", b"more").queue_offset == COUNT + 1
        assert store.put("T", b"other", queue_id=1).queue_offset == COUNT
    verified(path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("left", ["closed", "killed", "no queues", "no saved offsets", "rebuilt"])
def test_a_deleted_topic_stays_away_after(tmp_path, left):
    path = tmp_path / "s"
    with Process() as victim:
        with open_small(path) as store:
            fill(store)
            fill(store, "U", queues=1)
            if left != "killed":
                store.delete_topic("T")
        if left == "killed":
            victim.do("import cystore; store = cystore.open(path, services=())", path=str(path))
            victim.do("store.delete_topic('T')\nNone")
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
    if left == "no queues":
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index")
    if left == "no saved offsets":
        (path / "config" / "queueOffset.json").unlink()
        (path / "abort").touch()
    if left == "rebuilt":
        assert main(["rebuild", str(path)]) == 0
    for read_only in (True, False):
        with open_small(path, read_only=read_only) as store:
            check_removed(store, COUNT)
            assert list(store.topics()) == ["U"]
    assert not (path / "consumequeue" / "T").exists()
    verified(path)
    with open_small(path) as store:
        assert store.put("T", b"again").queue_offset == COUNT
        assert bodies(store, "T", 0, COUNT) == [b"again"]
    if left == "rebuilt":
        assert main(["rebuild", str(path)]) == 0
    (path / "abort").touch()
    with open_small(path) as store:
        assert bodies(store, "T", 0, COUNT) == [b"again"]
        assert store.get("T", 0, 0).min_offset == COUNT
        assert store.put("T", b"more").queue_offset == COUNT + 1
    verified(path)


READ = """
found, at = [], start
while (got := store.get('T', 0, at)).status is cystore.GetStatus.FOUND:
    found += [bytes(m.body).decode() for m in got.messages]
    at = got.next_offset
found
"""


@pytest.mark.parametrize("ext", [False, True])
def test_other_processes_go_on_beside_a_removal(tmp_path, ext):
    """A writer that dispatches and a reader have the removed files mapped; both must let go of them. The writer
    dispatches into the new file, and everybody reads from that."""
    path = tmp_path / "s"
    with open_small(path, enable_consume_queue_ext=ext) as store, Process() as writer, Process() as reader:
        fill(store, "U", 3, queues=1)
        writer.do("import cystore; store = cystore.open(path, services=())", path=str(path))
        reader.do("import cystore; store = cystore.open(path, read_only=True)", path=str(path))
        writer.do("for n in range(250): store.put('T', b'%d' % n, tags='t')\nstore.dispatch()")
        assert len(reader.do(READ, start=0)) == len(writer.do(READ, start=0)) == COUNT
        end = COUNT
        for _ in range(3):
            store.delete_topic("T")
            assert not (path / "consumequeue" / "T").exists()
            for each in (writer, reader):
                assert each.do("got = store.get('T', 0, 3); len(got.messages), got.next_offset") == [0, end]
            assert (
                writer.do("offset = store.put('T', b'new', tags='t').queue_offset; store.dispatch(); offset")
                == end
            )
            assert reader.do(READ, start=end) == writer.do(READ, start=end) == ["new"]
            assert bodies(store, "T", 0, end) == [b"new"]
            end += 1
    verified(path)


def test_a_queue_whose_messages_all_expired_goes_and_counts_on(tmp_path, monkeypatch):
    """Seen: queues were never removed; a folder and a file of each stayed for good (cleanExpiredConsumerQueue)."""
    path = tmp_path / "s"
    with open_small(path, file_reserved_time_h=1) as store:
        fill(store, "T", 20)
        for _ in range(3 * LOG_BYTES // 1024):
            store.put("U", body_for(1024, "U"))
        store.dispatch()
        stop(monkeypatch, clock.now_ms() + 3 * 3_600_000)
        store.put("U", body_for(1024, "U"))
        done = store.clean()
        assert done.segments > 0
        assert done.queue_files >= 2
        assert not (path / "consumequeue" / "T").exists()
        assert list(store.topics()) == ["U"]
    # The count stands in two places: either may rot.
    for rotten in ("config/queueOffset.json", "manifest"):
        copy = tmp_path / rotten.replace("/", "-")
        shutil.copytree(path, copy)
        (copy / rotten).write_bytes(b"rot")
        with open_small(copy) as store:
            assert store.put("T", b"again").queue_offset == 20
    with open_small(path) as store:
        assert store.put("T", b"again", queue_id=1).queue_offset == 20
        assert bodies(store, "T", 1, 20) == [b"again"]
    verified(path)


def test_unused_queues_go_by_hand_too(tmp_path, capsys):
    path = tmp_path / "s"
    with open_small(path) as store:
        fill(store, "T", 5)
    assert main(["topics", "delete", str(path), "T", "--json"]) == 0
    assert '"messages":10' in capsys.readouterr().out.replace(" ", "")
    assert main(["topics", "clean", str(path)]) == 0
    assert "removed 0 files" in capsys.readouterr().out
    assert main(["topics", "delete", str(path), "T2"]) == 1
    assert main(["topics", "delete", str(path), "SCHEDULE_TOPIC_XXXX"]) == 2
    assert main(["topics", str(path)]) == 0
    assert "topics: 0, queues: 0" in capsys.readouterr().out


def test_a_reader_cannot_delete(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, "T", 5)
        with (
            open_small(tmp_path / "s", read_only=True) as reader,
            pytest.raises(cystore.StoreNotWritableError),
        ):
            reader.delete_topic("T")


KILL = """
import os, signal
import cystore
from cystore.derived.files import consume_queue
from cystore.derived.dispatch import remove
def kill_at(name):
    if name == place:
        os.kill(os.getpid(), signal.SIGKILL)
consume_queue.failpoint = remove.failpoint = kill_at
store = cystore.open(path, services=())
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place",
    ["remove.listed", "remove.minimum", "queue.removal_begun", "queue.file_removed", "remove.queue"],
)
def test_i2_a_kill_while_a_topic_is_deleted(tmp_path, place, survivors):
    """From the entry in the manifest on the removal is a fact: the next `settle`, or recovery, does the rest."""
    path = tmp_path / "s"
    with Process() as victim:
        store = open_small(path)
        fill(store)
        fill(store, "U", queues=1)
        assert bodies(store, "T", 0, 0)
        victim.do(KILL, path=str(path), place=place)
        if not survivors:
            store.close()
        with pytest.raises(EOFError):
            victim.do("store.delete_topic('T')\nNone")
        assert victim.wait() == -signal.SIGKILL
    if survivors:
        store.remove_unused_queues()
    else:
        store = open_small(path)
    with store:
        check_removed(store, COUNT)
        assert list(store.topics()) == ["U"]
        assert not (path / "consumequeue" / "T").exists()
        assert store.put("T", b"again").queue_offset == COUNT
        assert bodies(store, "T", 0, COUNT) == [b"again"]
    verified(path)
    with open_small(path) as store:
        assert bodies(store, "T", 0, COUNT) == [b"again"]
        assert store.put("T", b"more").queue_offset == COUNT + 1
