"""Goal: a mapped file is readable as long as anybody refers to it, and no call reaches outside of it. Method: every
verb at and beyond the edges, and the process's list of mappings."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from cystore._native.memory.mapping import MappedFile
from cystore.errors import StoreError
from cystore.system import files

pytestmark = pytest.mark.disk

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (3 * PAGE // 256))
    return path


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_bytes_written_by_one_mapping_are_seen_by_another(path):
    one, other = files.map_file(path, 0, 3 * PAGE), files.map_file(path, 0, 3 * PAGE, writable=False)
    one.write(10, b"hello")
    assert other.read(10, 5) == b"hello"
    assert path.read_bytes()[10:15] == b"hello"
    one.zero(10, 12)
    assert other.read(9, 4) == b"\x09\0\0l"


def test_private_mapping_keeps_its_writes_to_itself(path):
    path.chmod(0o400)
    before = path.read_bytes()
    private = files.map_file(path, 0, 3 * PAGE, private=True)
    private.write(0, b"mine")
    private.redirty(0, 3 * PAGE)
    private.sync()
    private.sync_range(0, PAGE)
    assert private.read(0, 4) == b"mine"
    assert path.read_bytes() == before


def test_anonymous_memory_has_the_interface_of_a_file():
    file = MappedFile.anonymous(100, 50)
    assert (file.base, file.end, file.length, file.in_memory, file.path) == (100, 150, 50, True, "(memory)")
    assert file.read(0, 50) == bytes(50)
    file.write(48, b"ab")
    file.sync()
    assert file.view(48, 2) == b"ab"


@pytest.mark.parametrize("writable", [True, False])
def test_file_of_another_length_is_refused_with_both_lengths(path, writable):
    with pytest.raises(StoreError, match=f"the file has {3 * PAGE} bytes, expected {4 * PAGE}.*{path}"):
        files.map_file(path, 0, 4 * PAGE, writable=writable)


@pytest.mark.parametrize("length", [0, -1])
def test_empty_file_is_refused(tmp_path, length):
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(StoreError, match=r"0 bytes|expected -1"):
        files.map_file(path, 0, length)
    with pytest.raises(StoreError, match="cannot map"):
        MappedFile.anonymous(0, length)


def test_missing_file_and_link_are_not_followed(tmp_path, path):
    with pytest.raises(FileNotFoundError):
        files.map_file(tmp_path / "none", 0, PAGE)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        files.map_file(link, 0, 3 * PAGE)


OUTSIDE = [(-1, 5), (0, 3 * PAGE + 1), (3 * PAGE + 1, 3 * PAGE + 2), (-5, -1), ((1 << 63) - 1, (1 << 63) - 1)]


@pytest.mark.parametrize(("begin", "end"), OUTSIDE)
@pytest.mark.parametrize("verb", ["zero", "redirty", "populate", "sync_range", "read", "view", "write"])
def test_nothing_reaches_outside_the_file(path, verb, begin, end):
    file = files.map_file(path, 0, 3 * PAGE)
    last = bytes(max(end - begin, 1)) if verb == "write" else end - begin if verb in ("read", "view") else end
    with pytest.raises(StoreError, match="outside the file"):
        getattr(file, verb)(begin, last)


@pytest.mark.parametrize("verb", ["zero", "redirty", "populate", "write"])
def test_mapping_for_reading_is_not_written_to(path, verb):
    file = files.map_file(path, 0, 3 * PAGE, writable=False)
    with pytest.raises(StoreError, match="for reading only"):
        getattr(file, verb)(0, b"x" if verb == "write" else 5)
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"x").readinto(file)


def test_view_cannot_be_written_even_of_a_writable_mapping(path):
    view = files.map_file(path, 0, 3 * PAGE).view(0, 10)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_mapping_lives_as_long_as_a_view_of_it(path):
    file = files.map_file(path, 0, 3 * PAGE)
    view = file.view(PAGE, 4)
    part = view[1:3]
    del file, view
    gc.collect()
    assert is_mapped(path)
    path.unlink()
    assert bytes(part) == b"\x01\x02"
    del part
    gc.collect()
    assert not is_mapped(path)


def test_a_mapping_keeps_no_descriptor(path):
    before = os.listdir("/proc/self/fd")
    file = files.map_file(path, 0, 3 * PAGE)
    assert os.listdir("/proc/self/fd") == before
    file.write(0, b"synced")
    file.sync()
    assert path.read_bytes()[:6] == b"synced"


def test_a_mapping_knows_the_name_of_its_file(path):
    file = files.map_file(path, 0, 3 * PAGE)
    assert files.is_at(path, file)
    path.rename(path.with_name("moved"))
    assert not files.is_at(path, file)
    path.write_bytes(bytes(3 * PAGE))
    assert not files.is_at(path, file)
    assert files.is_at(path.with_name("moved"), file)


def test_the_end_of_a_large_mapping_lets_other_threads_run(tmp_path):
    """Seen: munmap of 1 GiB held the GIL for 75 ms. A thread that wants it meanwhile gets it.

    A busy machine may wake the thread only after one mapping has ended, so that several end, one after the other.
    """
    length = 1 << 27
    with open(tmp_path / "large", "wb") as file:
        file.truncate(length)
    mapped = [files.map_file(tmp_path / "large", 0, length) for _ in range(20)]
    for file in mapped:
        file.populate(0, length)
    began, ran = threading.Event(), threading.Event()

    def run() -> None:
        began.wait()
        ran.set()

    thread = threading.Thread(target=run)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody else gets the GIL unless it is given up
    try:
        began.set()
        while mapped and not ran.is_set():
            mapped.pop()
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_populate_redirty_and_sync_change_no_byte(path):
    before = path.read_bytes()
    file = files.map_file(path, 0, 3 * PAGE)
    assert file.populate(5, 2 * PAGE + 1) in (True, False)
    file.redirty(0, 3 * PAGE)
    file.redirty(7, 7)
    file.sync_range(5, 6)
    file.sync()
    assert path.read_bytes() == before


def resident_pages(path: Path) -> int:
    """How many kilobytes of a file this process has in its memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))


def test_pages_that_are_let_go_leave_this_process_and_lose_nothing(path):
    file = files.map_file(path, 0, 3 * PAGE)
    file.write(PAGE + 10, b"hello")
    before = file.read(0, 3 * PAGE)
    assert resident_pages(path) > 0
    file.let_pages_go(3 * PAGE)
    assert resident_pages(path) == 0
    assert file.read(0, 3 * PAGE) == before
    for end in (-1, 3 * PAGE + 1):
        with pytest.raises(StoreError, match="outside"):
            file.let_pages_go(end)


def test_a_private_mapping_is_let_go_until_it_is_written(path):
    """Seen: a search over a store that nobody else had open kept the whole log in its process's memory."""
    file = files.map_file(path, 0, 3 * PAGE, private=True)
    before = file.read(0, 3 * PAGE)
    assert resident_pages(path) > 0
    file.let_pages_go(file.length)
    assert resident_pages(path) == 0 and file.read(0, 3 * PAGE) == before
    file.write(PAGE, b"hello")
    file.let_pages_go(file.length)
    assert file.read(PAGE, 5) == b"hello" and path.read_bytes() == before


def test_the_parts_of_a_sparse_file_are_let_go_and_the_copied_ones_stay(tmp_path):
    path, half = tmp_path / "sparse", 1 << 20
    with open(path, "wb") as opened:
        opened.write(bytes(range(256)) * (half // 256))
        opened.seek(2 * half + 10)
        opened.write(b"end")
        opened.truncate(3 * half)
    with open(path, "rb") as opened:
        data = [(0, half), (2 * half, 2 * half + PAGE)]
        file = MappedFile.of_sparse(opened.fileno(), path, 0, 3 * half, data, private=True)
    before = file.read(0, 3 * half)
    assert resident_pages(path) > 0
    file.let_pages_go(file.length)
    assert resident_pages(path) == 0
    assert file.read(0, 3 * half) == before == path.read_bytes()


def test_memory_that_is_no_file_is_never_let_go(path):
    private, anonymous = files.map_file(path, 0, 3 * PAGE, private=True), MappedFile.anonymous(0, PAGE)
    with open(path, "rb") as opened:
        copied = MappedFile.of_sparse(opened.fileno(), path, 0, 3 * PAGE, [(5, 100)])
    expected = copied.read(0, 200)
    for file in (private, anonymous):
        file.write(10, b"hello")
    for file in (private, anonymous, copied):
        file.let_pages_go(file.length)
    assert private.read(10, 5) == anonymous.read(10, 5) == b"hello"
    assert copied.read(0, 200) == expected != bytes(200)
