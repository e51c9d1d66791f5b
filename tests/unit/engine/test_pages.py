"""Goal: the settings keep the pages of the active segment in memory, and a scan of old messages leaves the page cache
as it found it. Method: the kernel's own numbers of locked and cached pages, on a real file system."""

from __future__ import annotations

import mmap
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import cystore
from cystore._native.memory.mapping import MappedFile
from tests.support.small_stores import open_small

# A sanitizer takes munlock away, and its own pages count as faults.
pytestmark = [pytest.mark.disk, pytest.mark.unsanitized]

PAGE = mmap.PAGESIZE
SEGMENT_BYTES = 1 << 20


def kilobytes(name: str, pid: int | str = "self") -> int:
    """A number of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def cached(path: Path) -> bytes:
    """A byte for each page of a file that the page cache has. The look brings none in."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return MappedFile.of(fd, path, 0, path.stat().st_size, writable=False).pages_in_memory()
    finally:
        os.close(fd)


def put_segments(store: cystore.MessageStore, count: int) -> None:
    while store.wrote_position < count * SEGMENT_BYTES:
        store.put("T", b"x" * 10_000)


def mapped_kilobytes(path: Path) -> int:
    """How much of a file's mapping is in this process's memory."""
    entries = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    of_file = [entry for entry in entries if str(path) in entry.partition("\n")[0]]
    return sum(int(re.search(r"^Rss: +([0-9]+) kB", entry, re.MULTILINE)[1]) for entry in of_file)


@pytest.mark.parametrize(("synced_pages", "left"), [(256, 0), (20, 236), (15, 256), (1, 256)])
def test_a_long_sync_takes_its_pages_out_of_the_process_and_changes_no_byte(tmp_path, synced_pages, left):
    path = tmp_path / "file"
    path.write_bytes(bytes(SEGMENT_BYTES))
    with open(path, "r+b") as file:
        mapped = MappedFile.of(file.fileno(), path, 0, SEGMENT_BYTES)
    data = os.urandom(SEGMENT_BYTES)
    mapped.write(0, data)
    before = mapped_kilobytes(path)
    mapped.sync_range(0, synced_pages * PAGE)
    assert (before * 1024 // PAGE, mapped_kilobytes(path) * 1024 // PAGE) == (256, left)
    assert path.read_bytes() == data == mapped.read(0, SEGMENT_BYTES)


def test_a_long_sync_keeps_the_pages_around_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(SEGMENT_BYTES))
    with open(path, "r+b") as file:
        mapped = MappedFile.of(file.fileno(), path, 0, SEGMENT_BYTES)
    mapped.write(0, b"x" * SEGMENT_BYTES)
    mapped.sync_range(10 * PAGE + 100, 100 * PAGE + 1)  # the page of its end is the next append's
    assert mapped_kilobytes(path) * 1024 // PAGE == 256 - 90


def open_large(path: Path, **more: object) -> cystore.MessageStore:
    return open_small(path, mapped_file_size_commit_log_bytes=SEGMENT_BYTES, **more)


def test_the_active_segment_is_locked_until_the_next_one(tmp_path):
    before = kilobytes("VmLck")
    with open_large(tmp_path / "s", active_segment_memory="lock") as store:
        for count in (0, 1, 2):
            put_segments(store, count)
            store.put("T", b"x")
            assert kilobytes("VmLck") - before == SEGMENT_BYTES // 1024
            store.let_pages_go()  # a locked mapping keeps its pages
            store.put("T", b"y")
    assert kilobytes("VmLck") == before


def test_a_lock_that_the_system_refuses_is_told_once(tmp_path):
    program = """
import logging, sys, resource, cystore
logging.basicConfig(stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
with cystore.open(sys.argv[1], active_segment_memory="lock", mapped_file_size_commit_log_bytes=1 << 20) as store:
    while store.wrote_position < 3 << 20:
        store.put("T", b"x" * 10_000)
    logging.warning("%d messages", len(list(store.scan())))  # no print: a thread may log at the same moment
"""
    drops = [] if os.geteuid() else ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-all"]
    done = subprocess.run(
        [*drops, sys.executable, "-c", program, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("RLIMIT_MEMLOCK") == 1, done
    (count,) = re.findall(r"(\d+) messages", done.stdout)
    assert int(count) > 300


def test_advice_is_taken(tmp_path):
    before = kilobytes("VmLck")
    with open_large(tmp_path / "s", active_segment_memory="advise") as store:
        put_segments(store, 2)
        assert len(list(store.scan())) > 200
        assert kilobytes("VmLck") == before  # nothing is locked


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_warm_up_makes_the_segment_and_the_next_one_ready(tmp_path, flush):
    with open_large(
        tmp_path / "s",
        warm_mapped_file_enable=True,
        flush_least_pages_when_warm_mapped_file=16,
        flush_disk_type=flush,
    ) as store:
        store.put("T", b"x")
        allocator = store._attached().allocator
        while allocator.run_once().done:
            pass
        assert store.stats()["allocated"] == 2 * SEGMENT_BYTES
        files = sorted((store.path / "commitlog").glob("0*"))[:2]
        for file in files:
            assert set(cached(file)) == {1}
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(80):
            store.put("T", b"x" * 10_000, flush="async")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 80 * 10_000 // PAGE
        assert [bytes(message.body)[:1] for message in store.scan()] == [b"x"] * 81


def old_store(path: Path) -> list[Path]:
    """A store of four segments on the disk, none of which is in the page cache."""
    with open_large(path) as store:
        put_segments(store, 4)
    segments = sorted((path / "commitlog").glob("0*"))[:4]
    for segment in segments:
        fd = os.open(segment, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if any(cached(segment)):
            pytest.skip("this file system keeps its page cache")
    return segments


@pytest.mark.parametrize("ratio", [0, 40])
def test_a_scan_of_old_messages_leaves_the_cache_as_it_was(tmp_path, ratio):
    segments = old_store(tmp_path / "s")
    hot = range(100, 110)
    with cystore.open(
        tmp_path / "s", read_only=True, access_message_in_memory_max_ratio=ratio
    ) as store:  # recovery has looked at what it wanted
        for segment in segments[:3]:
            fd = os.open(segment, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for page in hot:
                os.pread(fd, 1, page * PAGE)
            os.close(fd)
        before = [cached(segment) for segment in segments[:3]]
        assert len(list(store.scan())) > 400
        after = [cached(segment) for segment in segments[:3]]
    for was, now in zip(before, after, strict=True):
        assert all(now[page] for page in hot)  # others have use for it
        if ratio == 0:
            assert sum(now) <= sum(was)
        else:
            assert sum(now) > len(now) // 2


def test_a_put_at_missing_pages_makes_no_others(tmp_path):
    """Seen: the kernel's read-ahead made up to 8 MiB of pages there, 20 ms of a put's processor time where memory is
    scarce. Pages of segments that others append to now are read in order again."""
    with open_large(tmp_path / "s") as store:
        for base in (0, SEGMENT_BYTES):
            store.put("T", b"x" * 100)
            segment = store._parts.commit_log.files.get(base)
            assert 0 < sum(segment.pages_in_memory()) <= 128 * 1024 // PAGE
            assert "rr" in flags_of_mapping(segment.path)
            store.put("T", b"x" * (SEGMENT_BYTES - 400))
        store.put("T", b"x" * 1000)
        store.put("T", b"x" * 1000)
        first = str(store.path / "commitlog" / f"{0:020d}")
        assert "rr" not in flags_of_mapping(first)


def flags_of_mapping(path: str) -> set[str]:
    """The kernel's flags of this process's mappings of a file."""
    flags: set[str] = set()
    at = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and not line.split(" ")[0].endswith(":"):
            at = line.split(None, 5)[5] if len(line.split(None, 5)) == 6 else None
        elif line.startswith("VmFlags:") and at == path:
            flags |= set(line.split()[1:])
    return flags
