"""Goal: two names are exchanged on every file system. Method: `move_onto` where the kernel refuses RENAME_EXCHANGE,
as it does on FUSE; seen as StoreIOError (EINVAL) out of every write of config/queueOffset.json there."""

from __future__ import annotations

import ctypes
import errno

import pytest

from cystore.system import file_system

pytestmark = pytest.mark.unsanitized  # Python alone


class Refusing:
    """A C library whose renameat2 knows no flags."""

    def renameat2(self, *_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1


def test_names_are_exchanged_where_the_file_system_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, "LIBC", Refusing())
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")
    (tmp_path / ("one" + file_system.KEPT)).write_text("left by a kill")
    file_system.move_onto(one, other, exchange=True)
    assert (one.read_text(), other.read_text()) == ("2", "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
