"""The members of a pack: a store in one file, in the format of tar.

All members are plain files with ustar headers:

    cystore-pack.json        first: the format's version, the length of segments, the part of the log at the beginning
    NAME@OFFSET              a piece of a file of the store: its bytes from OFFSET on, 1 MiB at most
    cystore-pack-end.json    last: the part of the log in the pack, the number of pieces, and a CRC-32 of them all

Ranges of a segment that no piece has are zeros; they take no space in the pack or on the disk. Pieces of a file
follow each other in order, between pieces of others. A pack without its last member is half of one.
"""

from __future__ import annotations

import json
import re
import tarfile
from typing import Any, NamedTuple

from cystore.consumers.table import NAME as GROUP_TABLE
from cystore.derived.files.known_queues import NAME as QUEUE_TABLE
from cystore.engine.files import checkpoint
from cystore.engine.files.compacted_file import FOLDER as COMPACTED
from cystore.engine.files.log_folders import FILE as LOG_FOLDERS
from cystore.engine.files.quarantine import QUARANTINE
from cystore.engine.log.commit_log import DIRECTORY as LOG
from cystore.engine.log.commit_log import MARKER
from cystore.engine.manifest import manifest_file
from cystore.errors import StoreError
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.system.files import SMALL_FILE_BYTES_MAX

FIRST, LAST = "cystore-pack.json", "cystore-pack-end.json"
VERSION = 1
BLOCK_BYTES = tarfile.BLOCKSIZE
PIECE_BYTES = 1024 * 1024
FACTS_BYTES_MAX = 64 * 1024  # of the first and the last member
SEGMENTS_MAX, FILES_MAX = 1 << 20, 1 << 16  # in one pack
CONFIG = "config"
NAME_BYTES_MAX = 255
OFFSET_MAX = (1 << 63) - 1
# Files of config/ that belong to the running processes, or to the folders of one host.
NOT_CARRIED = (QUEUE_TABLE, GROUP_TABLE, LOG_FOLDERS)

_OFFSET = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_SEGMENT = re.compile(rf"{LOG}/([0-9]{{20}})", re.ASCII)
_COMPACTED = re.compile(rf"{COMPACTED}/[0-9]{{20}}", re.ASCII)
_OF_ANY_NAME = re.compile(rf"({CONFIG}|{QUARANTINE})/([^/]+)")
_LONGEST = {
    checkpoint.FILE_NAME: SMALL_FILE_BYTES_MAX,
    manifest_file.FILE_NAME: 2 * manifest_file.SLOT_BYTES_MAX,
    ABORT_NAME: 0,
    f"{LOG}/{MARKER}": 0,
}


class PackError(StoreError):
    """A file that is no whole pack, or that has what no pack may have."""

    def __init__(self, message: str, *, path: object) -> None:
        super().__init__(f"the pack {message}", path=path)


class PackFacts(NamedTuple):
    """The content of the first member, or the last."""

    begin: int
    end: int
    file_bytes: int = 0
    pieces: int = 0
    checksum: int = 0


def segment_base(name: str) -> int | None:
    """The log position of a segment's first byte, from its name in the store; None for another file."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else int(found[1])


def longest(name: str, path: object) -> int:
    """The most bytes that a file of this name may have. Raises PackError for a name that no pack has: a path that
    leads out of the store, a file that cystore does not know."""
    if name in _LONGEST:
        return _LONGEST[name]
    if segment_base(name) is not None or _COMPACTED.fullmatch(name):
        return OFFSET_MAX
    found = _OF_ANY_NAME.fullmatch(name)
    if found is not None and _is_plain(found[2]):
        if found[1] == QUARANTINE:
            return OFFSET_MAX
        if found[2] not in NOT_CARRIED:
            return SMALL_FILE_BYTES_MAX
    raise PackError(f"has a member {name!r}, which is no file of a packed store", path=path)


def _is_plain(name: str) -> bool:
    return (
        name not in (".", "..")
        and len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX
        and all(" " <= letter != "\x7f" for letter in name)
    )


def place_of(member: str, path: object) -> tuple[str, int]:
    """File and offset of a piece. Raises PackError."""
    name, _, offset = member.rpartition("@")
    if not _OFFSET.fullmatch(offset) or int(offset) > OFFSET_MAX:
        raise PackError(f"has a member {member!r}, which is no piece of a packed store", path=path)
    return name, int(offset)


def header(member: str, size: int, path: object) -> bytes:
    """The header of a member. Raises PackError for a name that ustar cannot hold."""
    info = tarfile.TarInfo(member)
    info.size, info.mode = size, 0o600
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError as error:
        raise PackError(f"cannot hold the name {member!r}: {error}", path=path) from error


def padding(size: int) -> bytes:
    """The zeros behind a member of that size."""
    return bytes(-size % BLOCK_BYTES)


def parse_header(block: bytes, path: object) -> tuple[str, int]:
    """Name and size of a member. Raises PackError unless it is a plain file."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise PackError(f"is damaged: a member's header is wrong ({error})", path=path) from error
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.linkname:
        raise PackError(
            f"has a member {info.name!r} that is no plain file (type {info.type!r}): a pack has no links, devices or "
            "folders",
            path=path,
        )
    most = FACTS_BYTES_MAX if info.name in (FIRST, LAST) else PIECE_BYTES
    if not 0 <= info.size <= most:
        raise PackError(f"has a member {info.name!r} of {info.size} bytes; {most} are the most", path=path)
    return info.name, info.size


def render_facts(facts: PackFacts) -> bytes:
    """The content of the first or the last member."""
    return json.dumps({"cystore_pack": VERSION, **facts._asdict()}).encode() + b"\n"


def parse_facts(data: bytes, path: object) -> PackFacts:
    """The facts that these bytes are. Raises PackError."""
    try:
        found: dict[str, Any] = json.loads(data)
        version = found.pop("cystore_pack")
        if version != VERSION:
            raise PackError(
                f"is a pack of version {version!r}; this cystore reads version {VERSION}: use the cystore that made it",
                path=path,
            )
        facts = PackFacts(**found)
        if not all(type(value) is int and 0 <= value <= OFFSET_MAX for value in facts):
            raise ValueError("a number is out of bounds")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise PackError(f"is damaged: {FIRST} or {LAST} cannot be read ({error})", path=path) from error
    if facts.begin > facts.end:
        raise PackError(f"is damaged: its log begins at {facts.begin} and ends at {facts.end}", path=path)
    return facts
