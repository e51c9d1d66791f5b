"""Goal: after an orderly close the next open of a store with many queues looks into no queue's files, and believes
nothing that changed.

Method: a store whose table may be written for few queues already. Whatever is done to its files between two lives,
every message is read afterwards and every queue continues counting.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cystore
from cystore._native.record.checksum import crc32c
from cystore.derived.files import known_queues
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.recovery.walk.queue_reader import list_queues

QUEUES, EACH, FILE_BYTES, SEGMENT_BYTES = 12, 3, 20 * 4, 4096
SETTINGS = {
    "services": "none",
    "mapped_file_size_commit_log_bytes": SEGMENT_BYTES,
    "mapped_file_size_consume_queue_bytes": FILE_BYTES,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def table(root: Path) -> Path:
    return root / "config" / known_queues.NAME


def queue_file(root: Path, queue_id: int, base: int = 0) -> Path:
    return root / "consumequeue" / "T" / str(queue_id) / f"{base:020d}"


def put_each(store: cystore.MessageStore, begin: int, end: int) -> None:
    for number in range(begin, end):
        for queue_id in range(QUEUES):
            assert store.put("T", b"%d %d" % (queue_id, number), queue_id=queue_id).queue_offset == number


def check_each(store: cystore.MessageStore, end: int) -> None:
    for queue_id in range(QUEUES):
        bodies: list[bytes] = []
        while messages := store.get("T", queue_id, len(bodies)).messages:  # at most those of one file
            bodies += [bytes(message.body) for message in messages]
        assert bodies == [b"%d %d" % (queue_id, n) for n in range(end)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that was closed in order, with its table."""
    monkeypatch.setattr(known_queues, "MANY_QUEUES", QUEUES)
    path = tmp_path / "store"
    with cystore.open(path, **SETTINGS) as store:
        put_each(store, 0, EACH)
    assert table(path).exists()
    return path


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One item for each time that recovery looks at the files of all queues."""
    found: list[str] = []

    def listed(*given, **named):
        found.append("looked")
        return list_queues(*given, **named)

    monkeypatch.setattr(sys.modules["cystore.recovery.scan"], "list_queues", listed)
    return found


def test_an_orderly_close_spares_the_next_open_the_queues_files(root: Path, looks: list[str]) -> None:
    """Seen: 65,536 queues cost four system calls and 45 microseconds of Python each, whenever the store was opened."""
    for life in range(3):
        with cystore.open(root, **SETTINGS) as store:
            assert not table(root).exists()
            assert store.recovery.clean and store.recovery.queues == QUEUES
            check_each(store, EACH + 2 * life)
            put_each(store, EACH + 2 * life, EACH + 2 * life + 2)
    assert looks == []
    with cystore.open(root, read_only=True, **SETTINGS) as store:
        check_each(store, EACH + 6)
    assert looks == [] and table(root).exists()


def test_few_queues_are_looked_at_always(tmp_path: Path, looks: list[str]) -> None:
    with cystore.open(tmp_path / "s", **SETTINGS) as store:
        put_each(store, 0, EACH)
    assert not table(tmp_path / "s").exists()
    with cystore.open(tmp_path / "s", **SETTINGS) as store:
        check_each(store, EACH)
    assert len(looks) == 2


def test_a_crash_leaves_no_table(root: Path, looks: list[str]) -> None:
    """A table of before must not speak of the queues after a crash."""
    before = table(root).read_bytes()
    with cystore.open(root, **SETTINGS) as store:
        put_each(store, EACH, EACH + 1)
    shutil.copyfile(root / "config/queueTable", root / "config/queueTable.later")
    (root / "abort").touch()
    with cystore.open(root, **SETTINGS) as store:
        check_each(store, EACH + 1)
    assert looks == ["looked"]
    table(root).write_bytes(before)  # of an older end of the log
    with cystore.open(root, **SETTINGS) as store:
        check_each(store, EACH + 1)
    assert looks == ["looked"] * 2


def zero_entry(root: Path) -> None:
    with queue_file(root, 5).open("r+b") as file:
        file.write(bytes(20))


def shorten(root: Path) -> None:
    os.truncate(queue_file(root, 5), 20)


def replace(root: Path) -> None:
    path = queue_file(root, 5)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes(len(data)))


def remove_offsets(root: Path) -> None:
    (root / "config/queueOffset.json").unlink()


def flip_table(root: Path) -> None:
    data = bytearray(table(root).read_bytes())
    data[len(data) // 2] ^= 4
    table(root).write_bytes(data)


HARMS: list[Callable[[Path], None]] = [
    zero_entry,
    shorten,
    replace,
    remove_offsets,
    flip_table,
    lambda root: queue_file(root, 5).unlink(),
    lambda root: shutil.rmtree(queue_file(root, 5).parent),
    lambda root: shutil.rmtree(root / "consumequeue"),
    lambda root: table(root).write_bytes(table(root).read_bytes()[:50]),
    lambda root: table(root).write_bytes(b""),
    lambda root: (root / "consumequeue" / "Other" / "0").mkdir(parents=True),
    lambda root: queue_file(root, 5, 10 * FILE_BYTES).write_bytes(bytes(FILE_BYTES)),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("harm", HARMS)
def test_what_changed_since_the_close_is_looked_at(
    root: Path, looks: list[str], harm: Callable[[Path], None]
) -> None:
    harm(root)
    with cystore.open(root, **SETTINGS) as store:
        assert looks
        check_each(store, EACH)
        put_each(store, EACH, EACH + 1)
        check_each(store, EACH + 1)
    with cystore.open(root, **SETTINGS) as store:
        check_each(store, EACH + 1)


def test_damage_in_the_log_makes_recovery_look_at_the_queues(root: Path, looks: list[str]) -> None:
    with cystore.open(root, **SETTINGS) as store:
        first = store.get("T", 3, 1).messages[0]
        at = first.physical_offset
    with (root / "commitlog" / f"{at - at % SEGMENT_BYTES:020d}").open("r+b") as file:
        file.seek(at % SEGMENT_BYTES + first.size_bytes - 4)
        file.write(b"\xff\xff")
    with cystore.open(root, **SETTINGS) as store:
        assert looks and len(store.recovery.new_holes) == 1
        assert [bytes(m.body) for m in store.get("T", 3, 0).messages] == [b"3 0", b"3 2"]
        assert store.put("T", b"3 3", queue_id=3).queue_offset == EACH


def test_a_crafted_table_leads_nowhere(root: Path, looks: list[str]) -> None:
    """Names and numbers in the table are checked although its checksum is right."""
    data = table(root).read_bytes()
    size = known_queues._HEADER.size
    for body in (data[size:].replace(b"\x01T", b"\x01/"), data[size:-8] + b"\xff" * 8):
        told = list(known_queues._HEADER.unpack_from(data))
        told[-1] = crc32c(known_queues._HEADER.pack(*told)[:-4] + body)
        table(root).write_bytes(known_queues._HEADER.pack(*told) + body)
        assert known_queues.read_known_queues(root, read_checkpoint(root), 0, FILE_BYTES) is None
    with cystore.open(root, **SETTINGS) as store:
        check_each(store, EACH)
    assert looks == ["looked"]
