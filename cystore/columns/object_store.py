"""Places by URL: folders and files of an object store or another file system, through pyarrow.fs, or fsspec for other
schemes.

This module maps and locks nothing, so files that it reads must not change any more. It writes a file whole. A URL
never holds credentials: the file system's library takes them from the environment, or the caller gives options. No
error and no `repr` contains them.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from cystore.errors import StoreConfigError, StoreError, StoreFormatError, StoreIOError, StorePermissionError
from cystore.system.threads.thread_pool import ThreadPool

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAGIC = re.compile(r"[*?\[]")
# pyarrow's schemes, with the class that takes their options. fsspec handles the other schemes.
_CLASSES = {
    "file": "LocalFileSystem",
    "s3": "S3FileSystem",
    "gs": "GcsFileSystem",
    "gcs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem",
}
_BY_URI = ("hdfs", "viewfs")  # configured by their own files
_REFUSED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "FORBIDDEN",
    "HTTP status 403",
)
REQUESTS = 32  # listings and other small requests at once
_SHOWN_MIN = 4  # a shorter value of an option is no secret, and may occur in any text

Item = TypeVar("Item")
Found = TypeVar("Found")


def is_url(text: str) -> bool:
    """Whether a text begins with a scheme and `://`."""
    return _URL.match(text) is not None


def local_path(text: str) -> str:
    """A path without the scheme `file:`, which Spark may have put before it."""
    return re.sub("^file:(//(?=/))?", "", text)


@dataclass(frozen=True)
class ObjectStore:
    """The file system of URLs: `scheme`, `host` (a bucket), and its options. Picklable, because executors get it."""

    scheme: str
    host: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, options: dict[str, str]) -> tuple[ObjectStore, str]:
        """The file system of a URL, and the URL in its normal form. Raises StoreConfigError."""
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        plain = f"{parts.scheme}://{host}{parts.path}"
        if user and (":" in user or not parts.scheme.startswith("abfs")):
            raise StoreConfigError(
                "plans show URLs, so a URL must not contain credentials: put them into the environment, or "
                f"give {plain} "
                "and options fs.NAME"
            )
        if parts.query or parts.fragment:
            raise StoreConfigError(
                f"a URL must end with its path ({plain}): give options of its file system as fs.NAME"
            )
        netloc = f"{user}@{host}" if user else host
        if parts.scheme in ("s3", "gs", "gcs") and not host:
            raise StoreConfigError(f"{url} names no bucket: it should be like {parts.scheme}://bucket/path")
        if parts.scheme == "file" and host not in ("", "localhost"):
            raise StoreConfigError(f"{url} names the host {host}: it should be like file:///path")
        object_store = cls(parts.scheme, netloc, tuple(sorted(options.items())))
        return object_store, f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"

    def opened(self, url: str) -> tuple[fs.FileSystem, str]:
        """The file system, one for each process, and the URL's path in it. Raises StoreConfigError, StoreIOError."""
        with self.translated(url), _making:  # pyarrow and fsspec initialize themselves at the first use
            system, root = _made(self)
        path = url.removeprefix(f"{self.scheme}://{self.host}")
        return system, path if self.scheme == "file" else (root.rstrip("/") + path if root else path)

    # ------------------------------------------------------------------------------------- what is there

    def files(self, folder: str) -> dict[str, int]:
        """Names and lengths of the files directly in a folder; empty if the folder does not exist."""
        found = self._entries(folder)
        return {entry.base_name: entry.size for entry in found if entry.type == fs.FileType.File}

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder, in order."""
        found = self._entries(folder)
        return sorted(entry.base_name for entry in found if entry.type == fs.FileType.Directory)

    def _entries(self, folder: str) -> list[fs.FileInfo]:
        with self.translated(folder):
            system, path = self.opened(folder)
            return [
                entry
                for entry in system.get_file_info(fs.FileSelector(path, allow_not_found=True))
                if entry.base_name
            ]

    def check_folder(self, url: str) -> None:
        """Raises StoreFormatError if the place does not exist, and says whether the bucket is missing."""
        with self.translated(url):
            system, path = self.opened(url)
            if system.get_file_info(path).type == fs.FileType.Directory:
                return
            self.check_bucket(url)
            raise StoreFormatError("there is no store here", path=url)

    def check_bucket(self, url: str) -> None:
        """Raises StoreFormatError if the URL's bucket does not exist. Not every file system has buckets."""
        with self.translated(url):
            system, path = self.opened(url)
            bucket = path.strip("/").partition("/")[0]
            has_buckets = self.scheme in ("s3", "gs", "gcs")
            if has_buckets and system.get_file_info(bucket).type != fs.FileType.Directory:
                raise StoreFormatError(f"there is no bucket {bucket}", path=url)

    def matching(self, pattern: str) -> list[str]:
        """The folders whose URL matches a pattern with `*` or `[...]`, in order. A URL without these, and one that is
        the name of a folder, stands for itself."""
        if not _MAGIC.search(pattern) or self._is_folder(pattern):
            return [pattern]
        root = f"{self.scheme}://{self.host}"
        found = [root]
        for part in pattern.removeprefix(root).strip("/").split("/"):
            if _MAGIC.search(part):
                names = in_parallel(self.folders, found)
                found = [
                    f"{at}/{name}"
                    for at, inside in zip(found, names, strict=True)
                    for name in inside
                    if fnmatchcase(name, part)
                ]
            else:
                found = [f"{at}/{part}" for at in found]
        return [url for url, there in zip(found, in_parallel(self._is_folder, found), strict=True) if there]

    def _is_folder(self, url: str) -> bool:
        with self.translated(url):
            system, path = self.opened(url)
            return bool(system.get_file_info(path).type == fs.FileType.Directory)

    # ------------------------------------------------------------------------------------------- reading

    def open_file(self, url: str) -> pa.NativeFile:
        """A file for reads at any position. Raises FileNotFoundError if the file was removed."""
        with self.translated(url, missing=FileNotFoundError(url)):
            system, path = self.opened(url)
            return system.open_input_file(path)

    def read(self, file: pa.NativeFile, url: str, at: int, count: int) -> bytes:
        """Exactly `count` bytes. Raises StoreFormatError if the file ends before them."""
        with self.translated(url):
            data: bytes = file.read_at(count, at)
        if len(data) != count:
            raise StoreFormatError(
                f"the file ends at {at + len(data)}, before {at + count}: copy it again", path=url
            )
        return data

    def read_whole(self, url: str) -> bytes:
        """All bytes of a file."""
        with self.open_file(url) as file:
            return self.read(file, url, 0, file.size())

    def write_whole(self, url: str, content: bytes) -> None:
        """Makes or replaces a file. In an object store it appears with all its bytes or not at all."""
        with self.translated(url):
            system, path = self.opened(url)
            with system.open_output_stream(path) as out:
                out.write(content)

    @contextmanager
    def translated(self, url: str, *, missing: Exception | None = None) -> Iterator[None]:
        """Turns a file system's errors into the store's errors with the URL; their text contains no option's value."""
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise (missing or StoreIOError(self._text_without_secrets(error), path=url)) from None
        except (OSError, pa.ArrowException) as error:
            text = self._text_without_secrets(error)
            if isinstance(error, PermissionError) or any(word in text for word in _REFUSED):
                raise StorePermissionError(f"access refused: {text}", path=url) from None
            raise StoreIOError(text, path=url) from None

    def _text_without_secrets(self, error: BaseException) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        for _, value in self.options:
            if len(value) >= _SHOWN_MIN:
                text = text.replace(value, "***")
        return text


def in_parallel(work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """Calls `work` for each item, many at the same time, because each call waits for a server."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPool(min(REQUESTS, len(items)), "cystore-requests") as pool:
        return list(pool.map(work, items))


_making = threading.Lock()


@functools.lru_cache(maxsize=64)
def _made(object_store: ObjectStore) -> tuple[fs.FileSystem, str]:
    """The file system, and the path of the first part of its URLs; "" if paths begin with a slash."""
    name, root = _CLASSES.get(object_store.scheme), f"{object_store.scheme}://{object_store.host}"
    if name is None and object_store.scheme not in _BY_URI:
        return _by_fsspec(object_store, root)
    if name is None or (not object_store.options and object_store.scheme != "file"):
        system, path = fs.FileSystem.from_uri(root + "/")
        return system, path
    kind = getattr(fs, name, None)
    if kind is None:
        raise StoreConfigError(f"this pyarrow was built without {name}, so {root} cannot be read")
    options = {key: _value(key, text) for key, text in object_store.options}
    try:
        system = kind(**options)
    except (TypeError, ValueError) as error:
        names = ", ".join(f"fs.{key}" for key, _ in object_store.options)
        raise StoreConfigError(
            f"{name} of pyarrow does not accept the options {names}: {object_store._text_without_secrets(error)}"
        ) from None
    return system, "" if object_store.scheme == "file" else object_store.host.partition("@")[0]


def _value(name: str, text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if not name.endswith("_timeout"):
        return text
    try:
        return float(text)
    except ValueError:
        raise StoreConfigError(f"fs.{name} must be a number of seconds, not {text!r}") from None


def _by_fsspec(object_store: ObjectStore, root: str) -> tuple[fs.FileSystem, str]:
    known = ", ".join(sorted((*_CLASSES, *_BY_URI)))
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise StoreConfigError(
            f"scheme {object_store.scheme} is not one of {known}; `pip install fsspec` adds more"
        ) from None
    try:
        system, path = url_to_fs(root + "/", **dict(object_store.options))
    except ImportError as error:
        raise StoreConfigError(
            f"scheme {object_store.scheme} needs a package: {object_store._text_without_secrets(error)}"
        ) from None
    except (ValueError, TypeError) as error:
        raise StoreConfigError(
            f"scheme {object_store.scheme} cannot be read ({object_store._text_without_secrets(error)}); "
            f"pyarrow has {known}"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path
