"""The streams of a pack: compressed as its name says, written under another name until it is whole; read whatever the
compression is."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from cystore.errors import StoreError
from cystore.operate.packs.members import PackError
from cystore.system import files

STANDARD = Path("-")  # standard output, or standard input
DRAFT_SUFFIX = ".incomplete"
ZSTD_SUFFIXES, GZIP_SUFFIXES, PLAIN_SUFFIXES = (".tar.zst", ".tzst"), (".tar.gz", ".tgz"), (".tar",)
ZSTD_MAGIC, GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
ZSTD_LEVEL, GZIP_LEVEL = 3, 6
ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024  # memory that a reader gives to a foreign archive
READ_BYTES = 1024 * 1024
NEEDS_ZSTD = "needs zstd: pip install 'cystore[zstd]'"


class TargetError(StoreError):
    """The copy cannot be made at this target."""


class Sink(Protocol):
    """Takes the bytes of a pack."""

    def write(self, data: bytes, /) -> object:
        """Writes all of it."""


class _File:
    """An open file that takes all of a write. A full disk is a StoreFullError with the path."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        length = len(view)
        with files.translated(self._path):
            while view:
                view = view[os.write(self._fd, view) :]
        return length

    def flush(self) -> None:
        """Every write went to the file."""


def check_writable(path: Path) -> None:
    """Raises TargetError unless a pack can be made with this name: its suffix, its folder, the names beside it."""
    if path == STANDARD:
        return
    if not path.name.endswith(ZSTD_SUFFIXES + GZIP_SUFFIXES + PLAIN_SUFFIXES):
        raise TargetError("the name of a pack ends in .tar.zst, .tar.gz or .tar: choose one", path=path)
    if path.name.endswith(ZSTD_SUFFIXES) and importlib.util.find_spec("zstandard") is None:
        raise TargetError(f"{NEEDS_ZSTD}; or name a file that ends in .tar.gz", path=path)
    check_free(path, draft_of(path), "pack")


def draft_of(path: Path) -> Path:
    """The name that stands for `path` until it is whole."""
    return path.with_name(path.name + DRAFT_SUFFIX)


def check_free(target: Path, draft: Path, what: str = "copy") -> None:
    """Raises TargetError unless the folder is there, and neither of the names."""
    if not target.parent.is_dir():
        raise TargetError(
            f"the parent directory of the {what} does not exist: make it first", path=target.parent
        )
    if os.path.lexists(target):
        raise TargetError(
            f"already exists: a {what} never replaces anything; name another target", path=target
        )
    if os.path.lexists(draft):
        raise TargetError(
            f"left by an interrupted {what}, or another process is making it now; if no process is, remove it",
            path=draft,
        )


@contextmanager
def written(path: Path) -> Iterator[Sink]:
    """A with block that writes a pack. It gets its name, durably, when the block ends without an error; after an error
    nothing is left."""
    if path == STANDARD:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = draft_of(path)
    with files.opened_draft(draft, path) as fd:
        try:
            with _compressed(path, _File(fd, path)) as sink:
                yield sink
            files.sync(fd, path, named=False)
            files.rename_no_replace(draft, path)
        except BaseException:
            with contextlib.suppress(StoreError, OSError):
                files.remove(draft)
            raise
    files.sync_directory(path.parent)


@contextmanager
def _compressed(path: Path, file: Any) -> Iterator[Sink]:
    """A sink whose bytes go to the file, compressed as its name says."""
    if path.name.endswith(PLAIN_SUFFIXES):
        yield file
        return
    stream: Any
    if path.name.endswith(GZIP_SUFFIXES):
        stream = gzip.GzipFile("", "wb", GZIP_LEVEL, file, 0)
    else:
        import zstandard

        packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
        stream = packer.stream_writer(file, closefd=False)
    yield stream
    stream.close()  # writes the end; after an error nobody needs one


@contextmanager
def read(path: Path) -> Iterator[Callable[[int], bytes]]:
    """A with block that reads a pack. The function returns so many bytes; fewer at the end only. It raises PackError
    for a damaged stream."""
    if path == STANDARD:
        with _decompressed(sys.stdin.buffer, path) as function:
            yield function
        return
    if os.path.isdir(path):
        raise PackError(
            "is a folder: restore a copy that is a store with `cystore snapshot PATH TARGET`", path=path
        )
    with files.opened(path) as fd, open(fd, "rb", closefd=False) as raw, _decompressed(raw, path) as function:
        yield function


@contextmanager
def _decompressed(raw: Any, path: Path) -> Iterator[Callable[[int], bytes]]:
    stream: IO[bytes] | Any = raw
    errors: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    with files.translated(path):
        head = raw.peek(len(ZSTD_MAGIC))[: len(ZSTD_MAGIC)]
    if head.startswith(GZIP_MAGIC):
        stream = gzip.GzipFile(fileobj=raw, mode="rb")
    elif head == ZSTD_MAGIC:
        if importlib.util.find_spec("zstandard") is None:
            raise PackError(NEEDS_ZSTD, path=path)
        import zstandard

        errors = (*errors, zstandard.ZstdError)
        unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        stream = unpacker.stream_reader(raw, read_across_frames=True, closefd=False)

    def take(count: int) -> bytes:
        parts: list[bytes] = []
        with files.translated(path):
            try:
                while count > 0 and (part := stream.read(min(count, READ_BYTES))):
                    parts.append(part)
                    count -= len(part)
            except errors as error:
                raise PackError(f"is damaged: {error}", path=path) from error
        return b"".join(parts)

    yield take
