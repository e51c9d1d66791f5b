"""Goal: a file is whole, durable and under its name, or it is not there, and what the system refuses is a typed error
with the path. Method: real files, a kill between the steps, a full disk, and the system calls in their order."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from cystore.errors import (
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreMovedError,
    StorePermissionError,
    StoreResourceError,
    SyncFailedError,
)
from cystore.system import files, folders
from cystore.system.ranges import file_ranges
from cystore.system.ranges.new_file import new_file
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import Process

pytestmark = [pytest.mark.disk, pytest.mark.unsanitized]  # Python alone


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EACCES, StorePermissionError),
        (errno.EPERM, StorePermissionError),
        (errno.EMFILE, StoreResourceError),
        (errno.ENFILE, StoreResourceError),
        (errno.ENOMEM, StoreResourceError),
        (errno.EAGAIN, StoreResourceError),
        (errno.EINTR, StoreResourceError),
        (errno.EIO, StoreIOError),
        (errno.EROFS, StoreIOError),
        (errno.ENOTDIR, StoreIOError),
    ],
)
def test_system_errors_have_a_type_and_the_path(code, kind):
    with pytest.raises(kind, match="/some/where") as caught, files.translated("/some/where"):
        raise OSError(code, os.strerror(code))
    assert type(caught.value) is kind
    assert caught.value.path == "/some/where"


def test_our_own_errors_pass_unchanged():
    with pytest.raises(StoreError, match=r"^ours$"), files.translated("/x"):
        raise StoreError("ours")


def test_descriptors_are_closed_on_exec_and_links_are_not_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    with files.opened(tmp_path / "a") as fd:
        assert not os.get_inheritable(fd)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StorePermissionError, match="link"):
        files.read_all(tmp_path / "link")


def test_written_whole_with_the_last_good_copy_beside_it(tmp_path):
    path = tmp_path / "config" / "table.json"
    files.write_whole(tmp_path, path, b"1")
    assert os.listdir(path.parent) == ["table.json"]
    files.write_whole(tmp_path, path, b"2")
    files.write_whole(tmp_path, path, b"3" * 100_000)
    assert path.read_bytes() == b"3" * 100_000
    assert path.with_name("table.json.bak").read_bytes() == b"2"
    assert path.stat().st_mode & 0o777 == 0o600
    files.write_whole(tmp_path, path, b"4", keep_last=False)
    assert path.with_name("table.json.bak").read_bytes() == b"2"
    assert os.listdir(tmp_path / "tmp") == []


CALLS_BEFORE_THE_NAME = ("write", "fsync", "rename", "fsync")


def test_name_comes_after_the_bytes_are_durable_and_is_made_durable_itself(tmp_path, monkeypatch):
    """The order of the system calls is what a power cut tests."""
    calls: list[str] = []

    def noted(name: str):
        original = getattr(os, name)

        def call(*arguments, **more):
            calls.append(name)
            return original(*arguments, **more)

        return call

    (tmp_path / "tmp").mkdir()
    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name))
    files.write_whole(tmp_path, tmp_path / "file", b"x", keep_last=False)
    assert tuple(calls) == CALLS_BEFORE_THE_NAME


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    files.write_whole(tmp_path, tmp_path / "file", b"old")

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(StoreFullError):
            files.write_whole(tmp_path, tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path / "tmp") == []


def test_sized_file_is_zero_reserved_and_named_once(tmp_path):
    path = tmp_path / "log" / "0"
    files.create_sized(tmp_path, path, 100_000, 8192)
    assert path.stat().st_size == 100_000
    assert path.stat().st_blocks * 512 == 8192
    assert path.read_bytes() == bytes(100_000)
    path.write_bytes(b"in use")
    files.create_sized(tmp_path, path, 5, 5)
    assert path.read_bytes() == b"in use"
    files.create_sized(tmp_path, path, 5, 500, replace=True)
    assert path.read_bytes() == bytes(5)
    assert os.listdir(tmp_path / "tmp") == []


def test_kill_before_the_name_leaves_a_temporary_file_that_the_next_load_clears(tmp_path):
    with Process() as process:
        process.do(
            "import os, signal; from pathlib import Path; from cystore.system import files\n"
            "files.rename_no_replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
        )
        process.send(
            "files.create_sized(Path(root), Path(root) / 'log' / '0', 4096, 4096)", root=str(tmp_path)
        )
        assert process.wait() == -9
    assert os.listdir(tmp_path / "log") == []
    assert len(os.listdir(tmp_path / "tmp")) == 1
    files.clear_temporaries(tmp_path)
    assert os.listdir(tmp_path / "tmp") == []


def test_rename_never_replaces(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        files.rename_no_replace(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileExistsError):
        files.move(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreIOError, match="none"):
        files.rename_no_replace(tmp_path / "a", tmp_path / "none" / "b")
    files.move(tmp_path / "a", tmp_path / "new" / "a")
    assert (tmp_path / "new" / "a").read_bytes() == b"a"


def test_removing_twice_is_fine(tmp_path):
    (tmp_path / "a").touch()
    files.remove(tmp_path / "a")
    files.remove(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_directory_is_made_with_its_parents(tmp_path):
    files.make_directory(tmp_path / "a" / "b" / "c")
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").stat().st_mode & 0o777 == 0o700


def test_directory_that_cannot_be_made_is_a_typed_error(tmp_path, unprivileged):
    (tmp_path / "closed").mkdir(0)
    with pytest.raises(StorePermissionError, match="closed"):
        files.make_directory(tmp_path / "closed" / "a" / "b")


def test_only_our_names_are_removed_from_the_temporary_folder(tmp_path):
    """Seen: a folder in tmp/ prevented every open for writing; later, all that was there was removed, whosever it
    was."""
    (tmp_path / "tmp" / "folder").mkdir(parents=True)
    (tmp_path / "tmp" / "folder" / "file").write_bytes(b"")
    (tmp_path / "tmp" / ("a" * 32)).write_bytes(b"")
    os.mkfifo(tmp_path / "tmp" / ("b" * 32))
    files.clear_temporaries(tmp_path)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["folder"]


@pytest.mark.parametrize("verb", [files.read_all, lambda path: file_ranges.write_at(path, [(0, b"x")])])
def test_a_fifo_in_the_place_of_a_file_is_refused(tmp_path, verb):
    """Seen: an open of it waited for ever."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises((StoreFormatError, StoreIOError), match="fifo"):
        verb(tmp_path / "fifo")


def test_a_path_of_a_held_folder_leads_to_what_was_opened(tmp_path):
    """Wherever its name leads now, and never out of it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(b"opened")
    place = folders.held_open(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(b"another")
    assert files.read_all(place / "a") == b"opened"
    assert files.names(place) == {"a"}
    assert (place / "a").stat().st_size == 6
    with pytest.raises(StoreMovedError):
        files.write_whole(place, place / "b", b"")
    files.remove(place / "a")
    assert not (place / "a").exists()
    assert (tmp_path / "store" / "a").exists()
    with pytest.raises(StoreIOError):
        files.read_all(place / ".." / "store" / "a")
    assert type(pickle.loads(pickle.dumps(place / "a"))) is type(tmp_path)
    folders.let_go(place)
    with pytest.raises(StoreClosedError):
        files.read_all(place / "a")


@pytest.mark.parametrize(
    ("offset", "count", "found"), [(0, 4, b"0123"), (8, 5, b"89"), (10, 5, b""), (50, 1, b""), (3, 0, b"")]
)
def test_reading_ends_at_the_end_of_the_file(tmp_path, offset, count, found):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with files.opened(path) as fd:
        assert files.pread_full(fd, offset, count, path) == found
        buffer = bytearray(count)
        assert file_ranges.pread_into(fd, offset, memoryview(buffer), path) == len(found)
        assert buffer[: len(found)] == found


def test_a_place_that_cannot_be_read_is_an_error_with_its_offset(tmp_path):
    with files.opened(tmp_path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        with pytest.raises(StoreIOError, match="offset 7"):
            file_ranges.pread_into(fd, 7, memoryview(bytearray(3)), tmp_path)
        with pytest.raises(StoreIOError, match=str(tmp_path)):
            files.pread_full(fd, 7, 3, tmp_path)


@pytest.fixture
def with_hole(tmp_path):
    """64 KiB: data at both ends, nothing between."""
    path = tmp_path / "sparse"
    with open(path, "wb") as out:
        out.write(b"a" * 4096)
        out.seek(60 * 1024)
        out.write(b"z" * 4096)
    return path


def test_ranges_of_data_leave_holes_out(with_hole):
    with files.opened(with_hole) as fd:
        assert files.data_ranges(fd, 0, 65536) == [(0, 4096), (61440, 65536)]
        assert files.data_ranges(fd, 100, 62000) == [(100, 4096), (61440, 62000)]
        assert files.data_ranges(fd, 5000, 6000) == []
        assert files.data_ranges(fd, 65536, 70000) == []


def test_zeroing_keeps_the_hole(with_hole):
    blocks = with_hole.stat().st_blocks
    file_ranges.zero_range(with_hole, 100, 65536)
    assert with_hole.read_bytes() == b"a" * 100 + bytes(65436)
    assert with_hole.stat().st_blocks == blocks


def test_pieces_are_copied_with_their_holes(tmp_path, with_hole):
    other = tmp_path / "other"
    other.write_bytes(b"0123456789")
    pieces = [(with_hole, 4000, 65536), (other, 2, 5)]
    target = tmp_path / "quarantine" / "copy"
    file_ranges.copy_ranges(tmp_path, pieces, target)
    assert target.read_bytes() == with_hole.read_bytes()[4000:] + b"234"
    assert target.stat().st_blocks * 512 < 65536
    assert file_ranges.same_bytes(pieces, target)
    other.write_bytes(b"012x456789")
    assert not file_ranges.same_bytes(pieces, target)
    with pytest.raises(FileExistsError):
        file_ranges.copy_ranges(tmp_path, pieces, target)
    assert os.listdir(tmp_path / "tmp") == []


def test_bytes_are_written_in_place(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file_ranges.write_at(path, [(2, b"ab"), (9, b"cd")])
    assert path.read_bytes() == b"01ab45678cd"


def test_extending_never_shortens(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file_ranges.extend(path, 5)
    assert path.stat().st_size == 10
    file_ranges.extend(path, 12)
    assert path.read_bytes() == b"0123456789\0\0"


def test_free_space_is_what_the_system_says(tmp_path):
    free, total = files.free_space(tmp_path)
    status = os.statvfs(tmp_path)
    assert total == status.f_blocks * status.f_frsize
    assert 0 < free <= total


ON_A_SMALL_DISK = """
import os, sys
from pathlib import Path
from cystore.system import files
from cystore.errors import StoreFullError
root = Path(sys.argv[1])
try:
    files.create_sized(root, root / "log" / "0", 64 << 20, 64 << 20)
except StoreFullError as error:
    print("full", os.listdir(root / "log"), os.listdir(root / "tmp"))
files.create_sized(root, root / "log" / "0", 64 << 20, 4096)
with files.opened(root / "log" / "0", os.O_RDWR) as fd:
    try:
        files.allocate(fd, 4096, 64 << 20, root / "log" / "0")
    except StoreFullError as error:
        print("full", (root / "log" / "0").stat().st_size)
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_full_disk_is_an_error_of_the_reservation(tmp_path):
    out = on_small_disk("1m", tmp_path, ON_A_SMALL_DISK)
    assert out == f"full [] []\nfull {64 << 20}\n"


def test_error_is_told_although_the_temporary_file_cannot_be_removed_either(tmp_path, monkeypatch):
    """A disk that fails does so for every call."""

    def refuse(*_, **__):
        raise OSError(errno.EIO, "the disk is gone")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    for make in (
        lambda: files.create_sized(tmp_path, tmp_path / "a", 4096, 4096),
        lambda: files.write_whole(tmp_path, tmp_path / "b", b"b"),
        lambda: file_ranges.copy_ranges(tmp_path, [], tmp_path / "c"),
    ):
        with pytest.raises(SyncFailedError, match="Input/output error"):
            make()


def test_file_whose_name_may_not_be_durable_is_not_left_there(tmp_path, monkeypatch):
    """The next one to look would find it and believe in it: a second sync of the folder proves nothing."""
    (tmp_path / "log").mkdir()

    def refuse(path):
        raise StoreIOError("the disk is gone", path=path)

    with monkeypatch.context() as patched:
        (tmp_path / "tmp").mkdir()
        patched.setattr(files, "sync_directory", refuse)
        with pytest.raises(StoreIOError, match="the disk is gone"):
            files.create_sized(tmp_path, tmp_path / "log" / "0", 4096, 4096)
    assert os.listdir(tmp_path / "log") == []


MAKERS = {
    "whole": lambda root, path: files.write_whole(root, path, b"x"),
    "sized": lambda root, path: files.create_sized(root, path, 8, 8),
    "copied": lambda root, path: file_ranges.copy_ranges(root, [], path),
    "new": lambda root, path: new_file(root, path).__enter__(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_error_names_the_file_and_not_its_draft(tmp_path, monkeypatch, make):
    """Seen: a service whose disk became read-only logged fifty tracebacks in a second, because the name of each draft
    made another text."""
    open_in = files.open_in

    def refuse(folder, name, flags, *mode):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_in(folder, name, flags, *mode)

    monkeypatch.setattr(files, "open_in", refuse)
    with pytest.raises(StoreIOError, match="Read-only") as caught:
        make(tmp_path, tmp_path / "a")
    assert caught.value.path == tmp_path / "a"
