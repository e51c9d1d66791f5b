"""Goal: with read_through="pread" every read works, in bounded memory, and a sector that cannot be read is an error
with path and offset. Method: stores with records of many sizes, read in every mode; reads of a range of a file fail
as the kernel lets them fail. (A mapping of such a file would not fail here: the disk is sound.)"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

import cystore
from cystore.engine.log.log_windows import WINDOW_BYTES
from cystore.results import GetStatus
from tests.support.checks import check_chain, everything
from tests.support.small_stores import SETTINGS

LOG_BYTES = 1 << 20
PREAD = {**SETTINGS, "mapped_file_size_commit_log_bytes": LOG_BYTES, "read_through": "pread"}
MODES = ["alone", "writer", "live reader"]


def fill(path: Path, count: int = 300) -> list[cystore.PutResult]:
    chance = random.Random(7)
    with cystore.open(path, **{**PREAD, "read_through": "mapping"}) as store:
        return [
            store.put(
                "T",
                chance.randbytes(
                    chance.choice((0, 10, 3_000, 20_000, 3 * WINDOW_BYTES if n % 50 == 0 else 7))
                ),
                queue_id=n % 2,
                keys=(f"k{n}",),
            )
            for n in range(count)
        ]


@pytest.fixture(params=MODES)
def opened(request, tmp_path):
    """(store, what was put), read through pread in each mode."""
    put = fill(tmp_path)
    match request.param:
        case "alone":
            with cystore.open(tmp_path, read_only=True, **PREAD) as store:
                yield store, put
        case "writer":
            with cystore.open(tmp_path, **PREAD) as store:
                yield store, put
        case _:
            with (
                cystore.open(tmp_path, **{**PREAD, "read_through": "mapping"}),
                cystore.open(tmp_path, read_only=True, **PREAD) as store,
            ):
                yield store, put


def log_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("/commitlog/" in line for line in maps)


def test_every_read_gives_what_a_mapping_gives(opened):
    store, put = opened
    before = log_mappings()
    assert check_chain(store) == len(put)
    queues = everything(store)
    assert sum(map(len, queues.values())) == len(put)
    for n, one in enumerate(put):
        message = store.read(one.physical_offset)
        assert message.keys == (f"k{n}",)
        assert [m.physical_offset for m in store.query("T", f"k{n}")] == [one.physical_offset]
        assert queues["T", n % 2][n // 2].body == message.body
        raw = store.get("T", n % 2, n // 2, 1, raw=True)
        assert len(raw.raw) == one.size_bytes
        assert store.offset_by_time("T", n % 2, message.store_timestamp_ms) <= n // 2
    with pytest.raises(cystore.StoreError):
        store.read(put[5].physical_offset + 1)
    assert log_mappings() <= before  # a service may have let one go


def test_a_writer_reads_what_it_puts(tmp_path):
    """Puts, dispatch, cleaning and a second life, with nothing read through mappings."""
    fill(tmp_path)
    for life in range(3):
        with cystore.open(tmp_path, file_reserved_time_h=0, **PREAD) as store:
            for n in range(60):
                one = store.put("T", os.urandom(5_000), queue_id=0, keys=(f"l{life}",))
                got = store.get("T", 0, one.queue_offset)
                assert got.status is GetStatus.FOUND
                assert got.messages[0].physical_offset == one.physical_offset, n
            assert len(store.query("T", f"l{life}", 100)) == 60
            store.flush()
            store.clean()
            check_chain(store)


class Sector:
    """Reads of [begin, end) of a file fail with EIO; a read that begins before gives what stands before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, begin: int, end: int) -> None:
        self.path, self._status = path, path.stat()
        whole = os.preadv

        def preadv(fd: int, buffers, offset: int) -> int:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == (self._status.st_dev, self._status.st_ino):
                if begin <= offset < end:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                if offset < begin < offset + len(buffers[0]):
                    buffers = [memoryview(buffers[0])[: begin - offset]]
            return whole(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)


def test_a_sector_that_cannot_be_read_is_an_error_that_names_it(opened, monkeypatch):
    """Only the records that lie there are concerned, also where a window with their neighbours is read at once."""
    store, put = opened
    hurt = next(n for n, one in enumerate(put) if n > 100 and one.size_bytes > 20_000)
    base = put[hurt].physical_offset - put[hurt].physical_offset % LOG_BYTES
    at = put[hurt].physical_offset - base + 9_000
    path = store.path / "commitlog" / f"{base:020d}"
    sector = Sector(monkeypatch, path, at, at + 4_096)
    for n in (hurt - 1, hurt + 1, 0, len(put) - 1):
        assert store.read(put[n].physical_offset).keys == (f"k{n}",)
        assert len(store.query("T", f"k{n}")) == 1
        assert len(store.get("T", n % 2, n // 2, 1).messages) == 1
    for read in (
        lambda: store.read(put[hurt].physical_offset),
        lambda: store.get("T", hurt % 2, hurt // 2, 1),
        lambda: store.query("T", f"k{hurt}"),
        lambda: list(store.scan()),
    ):
        with pytest.raises(cystore.StoreIOError, match="cannot be read") as caught:
            read()
        assert str(caught.value.path) == str(sector.path)
        assert caught.value.offset == base + at


def test_a_damaged_record_is_told_as_through_a_mapping(tmp_path):
    """A wrong checksum, and a size that is wrong: the records around them are whole."""
    put = fill(tmp_path)
    with (
        cystore.open(tmp_path, **{**PREAD, "read_through": "mapping"}),
        cystore.open(tmp_path, read_only=True, **PREAD) as store,
    ):
        wrong = {120: 100, 140: 1}  # before anything is read: a window keeps what was right
        for hurt, inside in wrong.items():
            place = put[hurt].physical_offset
            file = tmp_path / "commitlog" / f"{place - place % LOG_BYTES:020d}"
            with file.open("r+b") as log:
                log.seek(place % LOG_BYTES + inside)
                byte = log.read(1)
                log.seek(place % LOG_BYTES + inside)
                log.write(bytes([byte[0] ^ 0x01]))
        for hurt in wrong:
            place = put[hurt].physical_offset
            with pytest.raises(cystore.CorruptRecordError):
                store.read(place)
            for n in (hurt - 1, hurt + 1):
                assert store.read(put[n].physical_offset).keys == (f"k{n}",)
            assert [error.offset for error in store.query("T", f"k{hurt}").damaged] == [place]


def test_the_setting_has_two_values(tmp_path):
    with pytest.raises(cystore.StoreConfigError, match="read_through must be one of mapping, pread"):
        cystore.open(tmp_path, read_through="mmap")
