"""Goal: a closed store lets go of its files at once. Method: descriptors and mappings of the process, with the
garbage collector off; seen as a disk that could not be unmounted, and one without space for the next `control`, after
a close."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

from cystore.errors import StoreClosedError
from cystore.system import folders
from tests.support.cleaning import filled
from tests.support.small_stores import open_small


def held(path: Path) -> list[str]:
    """The files that this process has open or mapped below a folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = Path("/proc/self/fd", name)
        if fd.is_symlink():  # the listing's own is gone
            found.append(os.readlink(fd))
    found += Path("/proc/self/maps").read_text().splitlines()
    return [one for one in found if str(path) in one]


def test_closed_store_holds_no_file(tmp_path):
    path = tmp_path / "store"
    gc.collect()
    gc.disable()
    try:
        with open_small(path, file_reserved_time_h=0) as store:
            filled(store)
            assert store.clean().segments
            assert held(path)
        del store
        assert held(path) == []
    finally:
        gc.enable()


def test_a_store_that_was_read_by_time_holds_no_file(tmp_path):
    """Seen: the first times of segments were kept in a cache of the class, for as long as the process lived, and with
    each of them the snapshot that it came from, the control block and the segments."""
    path = tmp_path / "store"
    gc.collect()
    gc.disable()
    try:
        with open_small(path) as store:
            filled(store)
            snapshot = store.snapshot()
            ranges = list(snapshot.segments(0, snapshot.end))
            assert len(ranges) > 2
            assert list(snapshot.begins_after(ranges, 1 << 50)) == ranges
            assert list(snapshot.ends_before(ranges, 1)) == ranges
        del store, snapshot
        assert held(path) == []
    finally:
        gc.enable()


def test_directory_is_let_go_beside_threads_that_look_paths_up(tmp_path):
    """Seen: a thread that looked a path up while another closed the store used a deleted object, and the process
    died. The place of the open directory was a class attribute that was replaced at close, and Python's attribute
    cache still had the old value."""
    for _ in range(200):
        place = folders.held_open(tmp_path)
        home, looked = type(place).__dict__["home"], threading.Barrier(3)

        def look(place=place, looked=looked) -> None:
            place.stat()
            looked.wait()
            with contextlib.suppress(StoreClosedError):
                while True:
                    place.stat()

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        looked.wait()
        folders.let_go(place)
        for thread in threads:
            thread.join()
        assert type(place).__dict__["home"] is home
    assert held(tmp_path) == []
