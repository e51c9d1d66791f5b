"""The bytes between master and slave.

As in RocketMQ 4.9.3, the slave sends reports of 8 bytes: its log's end. The master sends frames: physical offset (8
bytes), length (4 bytes), and so many bytes of log; a heartbeat has none. Two cystore peers use negative numbers in
place of offsets for words that RocketMQ does not have. RocketMQ's master ignores HELLO, because it uses this number
for "nothing was reported yet".
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from cystore.errors import ReplicationError


class Numbers:
    """Signed big-endian numbers one after the other; `widths` are their lengths in bytes."""

    def __init__(self, *widths: int) -> None:
        self._widths = widths
        self.size = sum(widths)

    def pack(self, *numbers: int) -> bytes:
        return b"".join(
            number.to_bytes(width, "big", signed=True)
            for number, width in zip(numbers, self._widths, strict=True)
        )

    def unpack(self, data: bytes | bytearray, at: int = 0) -> tuple[int, ...]:
        found = []
        for width in self._widths:
            found.append(int.from_bytes(data[at : at + width], "big", signed=True))
            at += width
        return tuple(found)


REPORT, HEADER, RANGE, LENGTH = Numbers(8), Numbers(8, 4), Numbers(8, 8), Numbers(4)
# Between members of a group, the epoch follows in each header of the log and in each report of a position.
EPOCH_REPORT, EPOCH_HEADER = Numbers(8, 8), Numbers(8, 4, 8)
# The confirmed position follows the epoch, if both sides said so as the member joined.
CONFIRMED_HEADER = Numbers(8, 4, 8, 8)

HELLO = -1  # slave: "I am a cystore"; master: a frame of Hello
PROOF = -2  # slave: its nonce and its proof of the secret; master: its own proof
DIGEST = -3  # slave: a RANGE of the log; master: the SHA-256 of these bytes, empty if it does not have them
JOIN = -4  # slave: LENGTH and Join, as a member of the master's group; master: a frame of Joined
FACTS = -5  # slave: "send what follows besides the log"; master: frames of facts between those of the log
CONFIRMED = -6  # elected master, to a plain slave that asked for facts: the confirmed position, a REPORT
# Master with a secret, to HELLO: its nonce. Its Hello follows its own PROOF: a stranger learns nothing of the log.
CHALLENGE = -7

NONCE_BYTES = PROOF_BYTES = DIGEST_BYTES = 32
DIGEST_RANGE_MAX = 8 << 20
TALK_BYTES_MAX = 32 << 10  # of a frame without log bytes
FACTS_BYTES_MAX = 8 << 20
JOIN_BYTES_MAX = 1024
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # of a group, and of a member
FRAME_BYTES_MAX = 64 << 20  # of log in one frame; RocketMQ's slave takes no more than 4 MiB


@dataclass(frozen=True)
class Hello:
    """The greeting of a cystore master, about its log. `nonce`: hexadecimal, that of its CHALLENGE (a master of an
    earlier release sends none); empty if it asks for no secret. `epoch`: 0 if it was not elected. `home`: the id of
    the log for Celery, empty from earlier releases. `facts`: it ships them to a slave that asks (FACTS)."""

    store_id: str
    min_physical_offset: int
    wrote: int
    file_bytes: int
    nonce: str = ""
    epoch: int = 0
    home: str = ""
    facts: bool = False

    def frame(self) -> bytes:
        return talk(HELLO, json.dumps(asdict(self)).encode())

    @classmethod
    def parse(cls, data: bytes) -> Hello:
        """Raises ReplicationError."""
        try:
            fields: Any = json.loads(data)
            numbers = [fields[name] for name in ("min_physical_offset", "wrote", "file_bytes")]
            numbers.append(fields.get("epoch", 0))
            texts = [fields["store_id"], fields.get("nonce", ""), fields.get("home", "")]
            facts = fields.get("facts", False)
            bytes.fromhex(texts[1])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReplicationError(f"the master's greeting cannot be read: {error!r}") from None
        if (
            any(type(number) is not int for number in numbers)
            or not all(isinstance(text, str) for text in texts)
            or type(facts) is not bool
        ):
            raise ReplicationError(f"the master's greeting is no greeting: {fields!r}")
        begin, end, file_bytes, epoch = numbers
        if not (
            0 <= begin <= end < 1 << 62
            and 4096 <= file_bytes < 1 << 31
            and begin % file_bytes == 0
            and 0 <= epoch < 1 << 62
        ):
            raise ReplicationError(f"the master's greeting makes no sense: {fields!r}")
        return cls(texts[0], begin, end, file_bytes, texts[1], epoch, texts[2], facts)


@dataclass(frozen=True)
class Join:
    """A member's words about itself. `epoch`: the newest epoch that it knows. `log_id`: "" for an empty log.
    `confirms`: it takes the confirmed position in the headers; members of earlier releases do not."""

    group: str
    member: str
    epoch: int
    log_id: str
    confirms: bool = False

    def word(self) -> bytes:
        data = json.dumps(asdict(self)).encode()
        return REPORT.pack(JOIN) + LENGTH.pack(len(data)) + data

    @classmethod
    def parse(cls, data: bytes) -> Join:
        """Raises ReplicationError."""
        fields = _fields(data, {"confirms": False}, group=str, member=str, epoch=int, log_id=str)
        join = cls(**fields)
        if not NAME.fullmatch(join.member):
            raise ReplicationError(f"the peer joins as {join.member[:100]!r}, which is no name of a member")
        return join


@dataclass(frozen=True)
class Joined:
    """The master's epoch, and the history of its log as JSON values. `confirms`: its headers have the confirmed
    position."""

    epoch: int
    history: Any
    confirms: bool = False

    def frame(self) -> bytes:
        return talk(JOIN, json.dumps(asdict(self)).encode())

    @classmethod
    def parse(cls, data: bytes) -> Joined:
        """Raises ReplicationError."""
        return cls(**_fields(data, {"confirms": False}, epoch=int, history=dict))


def _fields(data: bytes, defaults: dict[str, Any], **types: type) -> dict[str, Any]:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReplicationError(f"the peer's words cannot be read: {error!r}") from None
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in types.items()):
        raise ReplicationError(f"the peer's words make no sense: {str(found)[:200]}")
    more = {name: found.get(name, value) for name, value in defaults.items()}
    if any(type(more[name]) is not type(value) for name, value in defaults.items()):
        raise ReplicationError(f"the peer's words make no sense: {str(found)[:200]}")
    return {**{name: found[name] for name in types}, **more}


def talk(kind: int, data: bytes) -> bytes:
    """A frame without log bytes."""
    return HEADER.pack(kind, len(data)) + data


def check_frame(offset: int, size: int) -> None:
    """Raises ReplicationError for a header that a master never sends."""
    most = FRAME_BYTES_MAX if offset >= 0 else FACTS_BYTES_MAX if offset == FACTS else TALK_BYTES_MAX
    if offset < CHALLENGE or offset >= 1 << 62 or not 0 <= size <= most:
        raise ReplicationError(f"the master sent a frame of {size} bytes at offset {offset}")
