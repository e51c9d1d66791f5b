"""Goal: a closed store lets go of its files at once. Method: descriptors and mappings of the process, with the garbage collector off;
seen as a disk that could not be unmounted, and one without space for the next `control`, after a close."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from tests.cleaned import filled
from tests.small import open_small


def held(path: Path) -> list[str]:
    """What this process has open or mapped below a folder."""
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
