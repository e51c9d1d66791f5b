"""Goal: a queue of files is what its directory says, or the path that is wrong is named. Method: directories with
every kind of wrong entry, and each mode's way to make, map and drop files."""

from __future__ import annotations

import errno
import logging
import os
import threading

import pytest

from cystore._native.memory.mapping import MappedFile
from cystore.engine.files import segments
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.segments import MappedFileQueue, Mode, file_name
from cystore.errors import StoreFormatError, StoreIOError, StorePermissionError, StoreResourceError

FILE_BYTES = 8192


def queue(root, mode=Mode.WRITE, **more) -> MappedFileQueue:
    return MappedFileQueue(root, root / "commitlog", FILE_BYTES, mode, **more)


def write(root, base: int, length: int = FILE_BYTES) -> None:
    (root / "commitlog").mkdir(exist_ok=True)
    (root / "commitlog" / file_name(base)).write_bytes(b"%d" % base + bytes(length - len(b"%d" % base)))


def test_name_is_the_offset_in_twenty_digits():
    assert file_name(1073741824) == "00000000001073741824"


def test_missing_directory_is_an_empty_queue(tmp_path):
    files = queue(tmp_path, Mode.READ)
    assert files.bases() == []
    assert files.get(0) is None


def test_files_are_found_in_the_order_of_their_offsets(tmp_path):
    for base in (2 * FILE_BYTES, FILE_BYTES, 10 * FILE_BYTES):
        write(tmp_path, base)
    (tmp_path / "commitlog" / "CYSTORE").touch()
    files = queue(tmp_path)
    assert files.bases() == [FILE_BYTES, 2 * FILE_BYTES, 10 * FILE_BYTES]
    assert files.base_of(10 * FILE_BYTES + 5) == 10 * FILE_BYTES
    segment = files.get(10 * FILE_BYTES)
    assert (segment.base, segment.end) == (10 * FILE_BYTES, 11 * FILE_BYTES)
    assert segment.read(0, 5) == b"81920"


STRANGE = ["0", "00000000000000000000.tmp", "x" * 20, "0000000000000000000٠", "-0000000000000000001"]


@pytest.mark.parametrize("name", STRANGE)
def test_strange_name_is_refused_with_its_path(tmp_path, name):
    write(tmp_path, 0)
    (tmp_path / "commitlog" / name).touch()
    with pytest.raises(StoreFormatError, match="not a valid") as caught:
        queue(tmp_path)
    assert str(caught.value.path).endswith(name)


def test_folder_and_link_with_a_good_name_are_refused(tmp_path):
    write(tmp_path, 0)
    place = tmp_path / "commitlog" / file_name(FILE_BYTES)
    place.mkdir()
    with pytest.raises(StoreFormatError, match="not a valid"):
        queue(tmp_path)
    place.rmdir()
    place.symlink_to(tmp_path / "commitlog" / file_name(0))
    with pytest.raises(StorePermissionError, match="link"):
        queue(tmp_path)


def test_length_is_the_files_and_a_configuration_that_differs_is_reported_once(tmp_path, caplog):
    for base in (0, 4096):
        write(tmp_path, base, 4096)
    with caplog.at_level(logging.WARNING, "cystore"):
        files = queue(tmp_path)
        files.refresh()
    assert files.file_bytes == 4096
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path}/commitlog: files have 4096 bytes, the configuration says 8192; using the files' length"
    ]


@pytest.mark.parametrize(
    ("base", "length"), [(FILE_BYTES, 4096), (2 * FILE_BYTES, FILE_BYTES + 1), (FILE_BYTES, 0)]
)
def test_length_unlike_the_neighbours_is_refused(tmp_path, base, length):
    write(tmp_path, 0)
    write(tmp_path, base, 10)
    os.truncate(tmp_path / "commitlog" / file_name(base), length)
    with pytest.raises(StoreFormatError, match=f"has {length} bytes, its neighbours {FILE_BYTES}"):
        queue(tmp_path)


@pytest.mark.parametrize(("count", "configured"), [(2, FILE_BYTES), (3, FILE_BYTES), (3, 2 * FILE_BYTES)])
def test_the_first_file_is_named_if_its_length_is_the_odd_one(tmp_path, caplog, count, configured):
    for base in range(0, count * FILE_BYTES, FILE_BYTES):
        write(tmp_path, base)
    os.truncate(tmp_path / "commitlog" / file_name(0), 4096)
    with pytest.raises(StoreFormatError, match=f"has 4096 bytes, its neighbours {FILE_BYTES}") as caught:
        MappedFileQueue(tmp_path, tmp_path / "commitlog", configured, Mode.WRITE)
    assert str(caught.value.path).endswith(file_name(0))
    assert "4096" not in caplog.text


def test_empty_files_do_not_say_how_long_the_others_should_be(tmp_path):
    for base in (0, FILE_BYTES, 2 * FILE_BYTES):
        write(tmp_path, base)
    for base in (0, FILE_BYTES):
        os.truncate(tmp_path / "commitlog" / file_name(base), 0)
    with pytest.raises(StoreFormatError, match=f"has 0 bytes, its neighbours {FILE_BYTES}") as caught:
        queue(tmp_path)
    assert str(caught.value.path).endswith(file_name(0))


@pytest.mark.parametrize(("base", "length"), [(5, FILE_BYTES), (4096, FILE_BYTES), (0, 0)])
def test_name_that_is_no_multiple_of_the_length_is_refused(tmp_path, base, length):
    write(tmp_path, base, 10)
    os.truncate(tmp_path / "commitlog" / file_name(base), length)
    with pytest.raises(StoreFormatError, match="not a multiple"):
        queue(tmp_path)


def test_unreadable_directory_is_a_typed_error(tmp_path, unprivileged):
    write(tmp_path, 0)
    (tmp_path / "commitlog").chmod(0)
    with pytest.raises(StorePermissionError, match="commitlog"):
        queue(tmp_path)


def test_unreadable_file_is_a_typed_error(tmp_path, unprivileged):
    write(tmp_path, 0)
    (tmp_path / "commitlog" / file_name(0)).chmod(0)
    with pytest.raises(StorePermissionError, match=file_name(0)):
        queue(tmp_path, Mode.READ).get(0)


def test_made_file_has_its_length_its_space_and_only_then_its_name(tmp_path):
    files = queue(tmp_path)
    segment = files.create(FILE_BYTES, 4096)
    status = files.path(FILE_BYTES).stat()
    assert segment.base == FILE_BYTES
    assert status.st_size == FILE_BYTES
    assert 4096 <= status.st_blocks * 512 < FILE_BYTES
    assert status.st_mode & 0o777 == 0o600
    assert list((tmp_path / "tmp").iterdir()) == []
    files.allocate(FILE_BYTES, 4096, 10 * FILE_BYTES)
    assert files.path(FILE_BYTES).stat().st_blocks * 512 == FILE_BYTES
    assert files.path(FILE_BYTES).stat().st_size == FILE_BYTES
    assert files.bases() == [FILE_BYTES]


def test_space_is_reserved_only_in_the_file_that_is_mapped(tmp_path):
    """A mapping keeps no descriptor: another file may have the name by then."""
    files = queue(tmp_path)
    files.create(0, 0)
    files.allocate(0, 0, FILE_BYTES)
    assert files.path(0).stat().st_blocks * 512 == FILE_BYTES
    files.path(0).rename(tmp_path / "elsewhere")
    write(tmp_path, 0)
    with pytest.raises(StoreIOError, match="removed or replaced"):
        files.allocate(0, 0, FILE_BYTES)


def test_mappings_of_all_queues_share_one_budget_of_bytes(tmp_path):
    mappings = Mappings(3 * FILE_BYTES, 100)
    queues = [queue(tmp_path / name, mappings=mappings) for name in ("a", "b")]
    for files in queues:
        files.root.mkdir()
        for number in range(3):
            write(files.root, number * FILE_BYTES)
            assert files.get(number * FILE_BYTES) is not None
    assert mappings.count == 3
    queues[1].close()
    assert mappings.count == 0


def test_what_is_needed_stays_mapped(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, FILE_BYTES)
    files = queue(tmp_path, mappings=Mappings(1, 1), needed=lambda file: file.base == 0)
    first, second = files.get(0), files.get(FILE_BYTES)
    assert files.get(0) is first
    assert files.get(FILE_BYTES) is second
    write(tmp_path, 2 * FILE_BYTES)
    files.get(2 * FILE_BYTES)
    assert files.get(0) is first
    assert files.get(FILE_BYTES) is not second


@pytest.mark.parametrize(("code", "kept"), [(errno.EMFILE, 3), (errno.ENFILE, 0), (errno.ENOMEM, 0)])
def test_mappings_end_for_memory_but_not_for_descriptors_of_the_process(tmp_path, monkeypatch, code, kept):
    """Seen: one map without a descriptor ended all mappings, which need none. Reads that had gone on failed then.
    The host counts a mapped file among its open files (ENFILE)."""
    mappings = Mappings(100 * FILE_BYTES, 100)
    files = queue(tmp_path, mappings=mappings)
    for number in range(4):
        write(tmp_path, number * FILE_BYTES)
    assert all(files.get(number * FILE_BYTES) for number in range(3))

    def refuse(*given, **named):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(segments.files, "map_file", refuse)
    with pytest.raises(StoreResourceError):
        files.get(3 * FILE_BYTES)
    assert mappings.count == kept


def test_room_is_made_while_readers_ask_for_mappings(tmp_path):
    """Seen: RuntimeError. A reader takes no lock, and the mapping that it gets becomes the one used last."""
    mappings = Mappings(100 * FILE_BYTES, 100)

    def not_needed(file: MappedFile) -> bool:
        files.get(0)  # as another thread does meanwhile
        return False

    files = queue(tmp_path, mappings=mappings, needed=not_needed)
    for number in range(4):
        write(tmp_path, number * FILE_BYTES)
        files.get(number * FILE_BYTES)
    assert mappings.make_room()
    assert mappings.count == 2


def test_making_a_file_that_is_there_keeps_it(tmp_path):
    write(tmp_path, 0)
    assert queue(tmp_path).create(0, FILE_BYTES).read(0, 1) == b"0"


def test_many_make_one_file_at_once(tmp_path):
    queues = [queue(tmp_path) for _ in range(8)]
    start, made = threading.Barrier(8), []

    def make(files: MappedFileQueue) -> None:
        start.wait()
        made.append(files.create(0, 4096))

    threads = [threading.Thread(target=make, args=(files,)) for files in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made[0].write(0, b"one file")
    assert {segment.read(0, 8) for segment in made} == {b"one file"}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_file_that_another_process_made_is_found_when_asked_for(tmp_path):
    here, there = queue(tmp_path), queue(tmp_path)
    there.create(0, 4096)
    assert here.bases() == []
    assert here.get(0) is not None
    assert here.bases() == [0]


def test_mappings_used_longest_ago_are_let_go(tmp_path):
    for number in range(4):
        write(tmp_path, number * FILE_BYTES)
    files = queue(tmp_path, max_mapped=2)
    first, second = files.get(0), files.get(FILE_BYTES)
    assert files.get(0) is first
    files.get(2 * FILE_BYTES)
    assert files.get(0) is first
    assert files.get(FILE_BYTES) is not second
    assert second.read(0, 4) == b"8192"


def test_removed_file_stays_readable_for_who_holds_it(tmp_path):
    write(tmp_path, 0)
    files = queue(tmp_path)
    held = files.get(0)
    files.remove(0)
    assert files.bases() == []
    assert files.get(0) is None
    assert not files.path(0).exists()
    assert held.read(0, 1) == b"0"
    files.remove(0)


def test_forgetting_what_another_process_removed(tmp_path):
    for number in range(3):
        write(tmp_path, number * FILE_BYTES)
    here, there = queue(tmp_path), queue(tmp_path)
    held = here.get(0)
    there.remove(0)
    assert here.get(0) is held
    here.forget_below(FILE_BYTES)
    assert here.get(0) is None
    assert here.bases() == [FILE_BYTES, 2 * FILE_BYTES]


class AtItsEnd:
    """Stands for a mapping; calls `look` when it ends."""

    def __init__(self, look) -> None:
        self._look = look

    def __del__(self) -> None:
        self._look()


@pytest.mark.parametrize("way", ["forget", "forget_below", "forget_all", "remove", "too many"])
def test_a_mapping_ends_under_no_lock(tmp_path, monkeypatch, way):
    """Seen: a put waited 268 ms for the lock of the segments. The thread that lets cleaned segments go held it while
    it ended the last mapping of a removed file, which waits until the disk has freed the file's blocks."""
    for number in range(3):
        write(tmp_path, number * FILE_BYTES)
    here, free = queue(tmp_path, max_mapped=2 if way == "too many" else None), []

    def try_lock() -> None:
        free.append(here._lock.acquire(blocking=False))
        if free[-1]:
            here._lock.release()

    def look() -> None:
        other = threading.Thread(target=try_lock)
        other.start()
        other.join()

    drop = Mappings.drop
    monkeypatch.setattr(Mappings, "drop", lambda *key: [drop(*key), AtItsEnd(look)])
    for base in range(0, 2 * FILE_BYTES, FILE_BYTES):
        here.get(base)
    match way:
        case "forget" | "remove":
            getattr(here, way)(0)
        case "forget_below":
            here.forget_below(FILE_BYTES)
        case "forget_all":
            here.forget_all()
        case _:
            here.get(2 * FILE_BYTES)
    assert free and all(free)


def test_private_mode_changes_nothing_on_disk(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, FILE_BYTES)
    before = {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    files = queue(tmp_path, Mode.PRIVATE, max_mapped=1)
    files.get(0).write(0, b"private")
    files.get(FILE_BYTES).write(0, b"private")
    files.create(2 * FILE_BYTES, FILE_BYTES).write(0, b"new")
    files.allocate(2 * FILE_BYTES, 0, FILE_BYTES)
    files.remove(FILE_BYTES)
    assert files.refresh() == [0, 2 * FILE_BYTES]
    assert files.get(0).read(0, 7) == b"private"
    assert files.get(2 * FILE_BYTES).read(0, 3) == b"new"
    assert files.get(FILE_BYTES) is None
    assert {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    assert not (tmp_path / "tmp").exists()


def test_reading_mode_makes_nothing_and_reserves_nothing(tmp_path):
    write(tmp_path, 0)
    os.truncate(tmp_path / "commitlog" / file_name(0), 0)
    os.truncate(tmp_path / "commitlog" / file_name(0), FILE_BYTES)
    files = queue(tmp_path, Mode.READ)
    files.allocate(0, 0, FILE_BYTES)
    assert files.path(0).stat().st_blocks == 0
    assert not files.get(0).writable


@pytest.mark.parametrize("there_before", [False, True])
def test_a_file_that_goes_while_it_is_made_is_made_again(tmp_path, monkeypatch, there_before):
    """Seen: a file of an extended queue was deleted between the look for its name and the mapping; a `get` that
    dispatched raised StoreFormatError."""
    made = queue(tmp_path)
    if there_before:
        write(tmp_path, 0)
    map_file, removed = segments.files.map_file, []

    def removed_first(path, *arguments, **more):
        if not removed:
            removed.append(path)
            path.unlink()
        return map_file(path, *arguments, **more)

    monkeypatch.setattr(segments.files, "map_file", removed_first)
    assert made.create(0, 4096).length == FILE_BYTES
    assert removed[0].stat().st_size == FILE_BYTES


def test_a_new_file_is_reserved_once(tmp_path, monkeypatch):
    """Its maker reserved the space."""
    grown = []
    monkeypatch.setattr(
        segments.files,
        "allocate_mapped",
        lambda path, file, begin, end, zeros_from: grown.append((begin, end)),
    )
    files = queue(tmp_path)
    files.create(0, 4096)
    files.allocate(0, 0, 4096)
    assert grown == []
    files.allocate(0, 4096, FILE_BYTES)
    files.create(FILE_BYTES, 4096)
    files.allocate(FILE_BYTES, 0, FILE_BYTES)
    assert grown == [(4096, FILE_BYTES), (0, FILE_BYTES)]


def test_a_new_file_that_is_replaced_is_reserved_again(tmp_path):
    files = queue(tmp_path)
    path = files.path(0)
    files.create(0, 4096)
    path.unlink()
    with pytest.raises(segments.files.FileReplacedError):
        files.allocate(0, 0, 4096)
    files.forget(0)
    files.create(0, 4096)
    path.unlink()
    segments.files.create_sized(tmp_path, path, FILE_BYTES, 0)
    assert path.stat().st_blocks == 0
    files.forget(0)
    files.allocate(0, 0, 4096)
    assert path.stat().st_blocks * segments.files.BLOCK_BYTES >= 4096
