"""Goal: pages that are made ahead change no other byte, and whatever fails there ends nothing."""

from __future__ import annotations

import errno
import os

import pytest

from cystore._native.memory.mapping import MappedFile
from cystore._native.system.pages import read_pages, write_zeros
from cystore.system.files import write_zeros_ahead
from cystore.system.ranges.pages_ahead import PagesAhead
from tests.support.disks.small_disk import on_small_disk

BEGIN, END, LENGTH = 100_000, 300_001, 400_000


def test_zeros_ahead_change_nothing_before_them_or_behind(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * LENGTH)
    with path.open("r+b") as file:
        write_zeros_ahead(file.fileno(), BEGIN, END)
        assert path.read_bytes() == b"x" * BEGIN + bytes(END - BEGIN) + b"x" * (LENGTH - END)
        write_zeros_ahead(file.fileno(), 10, 10)
        assert path.read_bytes()[:BEGIN] == b"x" * BEGIN


def test_zeros_that_cannot_be_written_end_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * LENGTH)
    with path.open("rb") as file:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as raised:
            write_zeros(file.fileno(), BEGIN, END)
        assert raised.value.errno == errno.EBADF
        write_zeros_ahead(file.fileno(), BEGIN, END)
    assert path.read_bytes() == b"x" * LENGTH


@pytest.mark.disk
def test_pages_that_are_read_ahead_are_in_memory(tmp_path):
    path, length = tmp_path / "file", 1 << 20
    with path.open("w+b") as file:
        file.write(bytes(length))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = MappedFile.of(file.fileno(), path, 0, length)
        if any(mapped.pages_in_memory()):
            pytest.skip("this file system keeps all pages in memory")
        with PagesAhead(path) as pages:
            pages.read(0, length // 2)
            pages.read(length // 2, 2 * length)  # beyond its end
        assert set(mapped.pages_in_memory()) == {1}


def test_pages_that_cannot_be_read_end_nothing(tmp_path):
    with PagesAhead(tmp_path / "no such file") as pages:
        pages.read(0, 1000)
    (tmp_path / "file").write_bytes(bytes(1000))
    with (
        (tmp_path / "file").open("wb") as file,
        pytest.raises(OSError, match=os.strerror(errno.EBADF)) as raised,
    ):
        read_pages(file.fileno(), 0, 1000)
    assert raised.value.errno == errno.EBADF


FULL = """
import os, sys
from pathlib import Path
from cystore._native.memory.mapping import MappedFile
from cystore.errors import StoreError
from cystore.system.files import translated
path = Path(sys.argv[1]) / "sparse"
with open(path, "w+b") as file:
    file.truncate(1 << 20)
    mapped = MappedFile.of(file.fileno(), path, 0, 1 << 20)
with open(path.with_name("rest"), "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError:
        pass
    for free in (True, False):
        try:
            with translated(path):
                mapped.populate(0, 1 << 20)
        except StoreError as error:
            print(type(error).__name__, error.path == path)
        rest.truncate(0)
        os.truncate(path, 0)
"""


def test_a_page_without_a_block_is_a_full_disk_and_a_cut_file_is_not(tmp_path):
    """Seen: a put on a disk without a free block raised StoreIOError "Bad address"."""
    assert on_small_disk("3m", tmp_path, FULL).split() == ["StoreFullError", "True", "StoreIOError", "True"]
