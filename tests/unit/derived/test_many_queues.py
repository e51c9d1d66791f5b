"""Goal: what a store costs does not grow out of proportion with its number of queues.

Method: count what the kernel did (pages in its cache, system calls), never seconds.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import cystore

PAGE_BYTES = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def cached_pages(path: Path) -> int:
    """How many pages of a file are in the kernel's cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // PAGE_BYTES)
        found = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = _libc.mincore(
                ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), found
            )
        finally:
            del first
        assert not failed
        return sum(page & 1 for page in found)


def test_dispatch_to_many_queues_does_not_fill_the_page_cache(tmp_path: Path) -> None:
    """Seen: with 8 MiB of readahead each page fault filled the cache with the whole queue file, 6 MB of zeros. With
    10,000 queues the kernel gave up other pages for them, and an entry cost 2 to 8 ms of system time."""
    with cystore.open(tmp_path / "store", services="none") as store:
        for queue_id in range(100):
            store.put("T", b"x", queue_id=queue_id)
        store.dispatch()
        found = [
            cached_pages(tmp_path / f"store/consumequeue/T/{queue_id}/{0:020d}") for queue_id in range(100)
        ]
    assert max(found) <= 4
