"""The messages between a client and a home. Bytes in, checked values out; nothing here knows Redis or a store.

A request is JSON. An answer is a magic number, the length of a header, the header (JSON), and then the bytes of the
results as they stand in the store. Nothing is pickled. Each side checks every field, its type and its bounds, and
refuses a message with an unknown field: a new field needs a new `VERSION`. `docs/remote.md` lists the fields.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery.exceptions import BackendError

from cystore.celery.base import records

VERSION = 1
MAGIC, SIGNED = b"CYR1", b"CYRS"
MAC_BYTES = 32
LOOK, PART = "look", "part"
TOPICS = {"results": records.RESULTS, "groups": records.GROUPS}

IDS_MOST = 100  # the most ids of one request
ID_CHARS_MOST = 512
NAME_CHARS_MOST = 256  # the longest state, content type, encoding or error text
REQUEST_BYTES_MOST = 512 << 10
HEADER_BYTES_MOST = 1 << 20
PART_BYTES = 4 << 20  # the most bytes of results in one answer
RESULT_BYTES_MOST = (64 << 20) + (64 << 10)  # the largest result, with its meta
WAIT_MS_MOST = 20_000
SECRET_SETTING = "cystore_answers_secret_file"  # read by `routing.home_secrets`
OFFSET_MOST = (1 << 63) - 1

_REQUEST_ID = re.compile(r"[0-9a-f]{32}")
_HEAD = struct.Struct(">4sI")


class ProtocolError(BackendError):
    """An invalid message from Redis. The text names the field. No part of the message is used."""


class ForgedError(ProtocolError):
    """An answer without a proof of the home's secret, or with a wrong one. The right one may still come."""


class Request(NamedTuple):
    """A question to one home. `part` asks for the rest of one result: (place of the record in the log, first byte).
    `signed` asks for an answer that proves the secret of the home."""

    id: str
    home: str
    ids: tuple[str, ...]
    topic: str = "results"
    wait_ms: int = 0
    part: tuple[int, int] | None = None
    signed: bool = False

    def encoded(self) -> bytes:
        """The JSON. Raises ProtocolError for a request that `parse` would refuse."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "request": self.id,
            "home": self.home,
            "op": LOOK if self.part is None else PART,
            "topic": self.topic,
            "ids": list(self.ids),
        }
        if self.part is None:
            fields["wait_ms"] = self.wait_ms
        else:
            fields["at"], fields["from"] = self.part
        if self.signed:
            fields["signed"] = True
        data = json.dumps(fields, separators=(",", ":")).encode()
        Request.parse(data)
        return data

    @classmethod
    def parse(cls, data: bytes) -> Request:
        """Raises ProtocolError."""
        if len(data) > REQUEST_BYTES_MOST:
            raise ProtocolError(f"a request of {len(data)} bytes: the limit is {REQUEST_BYTES_MOST}")
        fields = _Fields(_object(data, "request"), "request")
        fields.version()
        op = fields.one_of("op", (LOOK, PART))
        ids = fields.take("ids", list)
        if not 0 < len(ids) <= (IDS_MOST if op == LOOK else 1):
            raise ProtocolError(f"request: ids: {len(ids)} of them")
        request = cls(
            fields.request_id("request"),
            fields.home("home"),
            tuple(_text(one, "request: ids", ID_CHARS_MOST) for one in ids),
            fields.one_of("topic", TOPICS),
            fields.number("wait_ms", WAIT_MS_MOST) if op == LOOK else 0,
            (fields.number("at", OFFSET_MOST), fields.number("from", RESULT_BYTES_MOST))
            if op == PART
            else None,
            fields.has("signed") and fields.take("signed", bool),
        )
        fields.end()
        return request


class Found(NamedTuple):
    """A home's answer for one id. `state` is None if it has no result.

    `answered_by` is the home that answered, and `as_of_ms` the time of its replica's newest record, if a replica
    answered; the client notes both. `body` has the result's bytes
    from `begin` on, of `size_bytes` in all; `at` is the place of its record. `elsewhere` is the id's home, if that is
    another store. `known`: this store knows the id, and is its home.
    """

    id: str
    state: str | None = None
    known: bool = False
    elsewhere: str | None = None
    at: int = 0
    size_bytes: int = 0
    begin: int = 0
    body: bytes | memoryview = b""
    content_type: str = ""
    content_encoding: str = ""
    answered_by: str = ""
    as_of_ms: int | None = None


class Answer(NamedTuple):
    """A home's answer to one request; `refused` is the reason why it has no results, or empty. `as_of_ms`: the time of
    the newest record of the replica that answers; None from the master."""

    request_id: str
    home: str
    found: tuple[Found, ...] = ()
    refused: str = ""
    as_of_ms: int | None = None

    def encoded_for(self, request: Request, secret: bytes | None) -> bytes:
        """`encoded`, with the proof that `request` asks for. Without a `secret` there is none."""
        data = self.encoded()
        return SIGNED + _mac(secret, request, data) + data if secret and request.signed else data

    def encoded(self) -> bytes:
        """As it goes to Redis, without a proof."""
        listed = []
        for one in self.found:
            entry: dict[str, Any] = {"id": one.id, "known": one.known}
            if one.elsewhere is not None:
                entry["home"] = one.elsewhere
            if one.state is not None:
                entry |= {
                    "state": one.state, "at": one.at, "size": one.size_bytes, "from": one.begin, "here": len(one.body),
                    "type": one.content_type, "encoding": one.content_encoding,
                }  # fmt: skip
            listed.append(entry)
        fields: dict[str, Any] = {
            "v": VERSION,
            "request": self.request_id,
            "home": self.home,
            "results": listed,
        }
        if self.refused:
            fields["refused"] = self.refused[:NAME_CHARS_MOST]
        if self.as_of_ms is not None:
            fields["as_of"] = self.as_of_ms
        header = json.dumps(fields, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(MAGIC, len(header)), header, *(one.body for one in self.found)])

    @classmethod
    def parse(
        cls, data: bytes, request: Request, *, of_replica: bool = False, secret: bytes | None = None
    ) -> Answer:
        """The answer to `request`. Raises ProtocolError for anything else. The answer `of_replica`, and no other, says
        how fresh it is. With a `secret`, nothing of an answer is looked at before its proof: raises ForgedError."""
        if secret is not None:
            data = _proved(data, request, secret)
        if not _HEAD.size <= len(data) <= _HEAD.size + HEADER_BYTES_MOST + PART_BYTES:
            raise ProtocolError(f"answer: {len(data)} bytes")
        magic, header_bytes = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ProtocolError("answer: it does not begin with the magic bytes")
        begin = _HEAD.size + header_bytes
        if header_bytes > HEADER_BYTES_MOST or begin > len(data):
            raise ProtocolError(f"answer: a header of {header_bytes} bytes")
        fields = _Fields(_object(data[_HEAD.size : begin], "answer"), "answer")
        fields.version()
        if fields.request_id("request") != request.id or fields.home("home") != request.home:
            raise ProtocolError("answer: it belongs to another request")
        payload, found = memoryview(data)[begin:], []
        for one in fields.take("results", list):
            entry, here = _found(one, request)
            if here > len(payload):
                raise ProtocolError("answer: here: more bytes than the answer has")
            entry_body, payload = payload[:here], payload[here:]
            found.append(Found(**{**entry, "body": entry_body}))
        if len(payload):
            raise ProtocolError("answer: more bytes than its results have")
        if len({one.id for one in found}) != len(found):
            raise ProtocolError("answer: results: an id twice")
        refused = fields.text("refused", default="")
        as_of_ms = fields.number("as_of", OFFSET_MOST) if of_replica else None
        answer = cls(request.id, request.home, tuple(found), refused, as_of_ms)
        fields.end()
        if not answer.refused and len(found) != len(request.ids):
            raise ProtocolError("answer: results: an id is missing")
        return answer


def _found(value: Any, request: Request) -> tuple[dict[str, Any], int]:
    """The fields of a `Found`, and the number of its bytes in the answer."""
    fields = _Fields(value, "answer: results") if isinstance(value, dict) else None
    if fields is None:
        raise ProtocolError("answer: results: not an object")
    found: dict[str, Any] = {"id": fields.text("id", ID_CHARS_MOST), "known": fields.take("known", bool)}
    if found["id"] not in request.ids:
        raise ProtocolError("answer: id: the request did not ask for it")
    if fields.has("home"):
        found["elsewhere"] = fields.home("home")
    here = 0
    if fields.has("state"):
        found |= {
            "state": fields.text("state"),
            "at": fields.number("at", OFFSET_MOST),
            "size_bytes": fields.number("size", RESULT_BYTES_MOST),
            "begin": fields.number("from", RESULT_BYTES_MOST),
            "content_type": fields.text("type"),
            "content_encoding": fields.text("encoding"),
        }
        here = fields.number("here", PART_BYTES)
        if found["begin"] + here > found["size_bytes"]:
            raise ProtocolError("answer: here: beyond the result's end")
        if found["begin"] != (0 if request.part is None else request.part[1]):
            raise ProtocolError("answer: from: not the part that the request asked for")
    fields.end()
    return found, here


def _mac(secret: bytes, request: Request, data: bytes) -> bytes:
    """The proof of an answer. It covers the whole request with its random id, so no answer serves another request."""
    asked = request.encoded()
    words = (b"cystore answer 1", len(asked).to_bytes(4, "big"), asked, data)
    return hmac.digest(secret, b"".join(words), hashlib.sha256)


def _proved(data: bytes, request: Request, secret: bytes) -> bytes:
    if data[: len(SIGNED)] != SIGNED:
        raise ForgedError(
            "answer: it has no proof of the home's secret: either another program wrote it, or the home's workers lack "
            f"{SECRET_SETTING}"
        )
    begin = len(SIGNED) + MAC_BYTES
    if not secret:
        raise ForgedError(f"answer: {SECRET_SETTING} names no secret of this home")
    if not hmac.compare_digest(data[len(SIGNED) : begin], _mac(secret, request, data[begin:])):
        raise ForgedError(
            "answer: its proof is not that of the home's secret: either another program wrote it, or "
            f"{SECRET_SETTING} differs here and there"
        )
    return data[begin:]


def new_request_id() -> str:
    """An unguessable id, because it is the name under which the answer can be taken."""
    return uuid.uuid4().hex


def checked_home(value: Any, where: str) -> str:
    """A store's id, as `config/storeId` spells it. Raises ProtocolError."""
    if isinstance(value, str) and len(value) == 36:
        try:
            if str(uuid.UUID(value)) == value:
                return value
        except ValueError:
            pass
    raise ProtocolError(f"{where}: not the id of a store")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{what}: not JSON") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"{what}: not an object")
    return fields


def _text(value: Any, where: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise ProtocolError(f"{where}: not a text of 1 to {most} characters")
    return value


class _Fields:
    """The fields of one object; each is taken once, and at the end none may be left."""

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        self._left, self._what = dict(fields), what

    def has(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, kind: type) -> Any:
        value = self._left.pop(name, None)
        if type(value) is not kind:
            raise ProtocolError(f"{self._what}: {name}: missing, or not {kind.__name__}")
        return value

    def version(self) -> None:
        found = self.take("v", int)
        if found != VERSION:
            raise ProtocolError(f"{self._what}: version {found}; this side speaks {VERSION}")

    def number(self, name: str, most: int) -> int:
        value: int = self.take(name, int)
        if not 0 <= value <= most:
            raise ProtocolError(f"{self._what}: {name}: not from 0 to {most}")
        return value

    def text(self, name: str, most: int = NAME_CHARS_MOST, *, default: str | None = None) -> str:
        if default is not None and name not in self._left:
            return default
        return _text(self.take(name, str), f"{self._what}: {name}", most)

    def one_of(self, name: str, among: Sequence[str] | Mapping[str, Any]) -> str:
        value: str = self.take(name, str)
        if value not in among:
            raise ProtocolError(f"{self._what}: {name}: not one of {', '.join(among)}")
        return value

    def request_id(self, name: str) -> str:
        value: str = self.take(name, str)
        if not _REQUEST_ID.fullmatch(value):
            raise ProtocolError(f"{self._what}: {name}: not 32 hexadecimal digits")
        return value

    def home(self, name: str) -> str:
        return checked_home(self._left.pop(name, None), f"{self._what}: {name}")

    def end(self) -> None:
        if self._left:
            raise ProtocolError(f"{self._what}: an unknown field")


def filled(found: Sequence[Found], whole: Callable[[Found], bytes | memoryview]) -> tuple[Found, ...]:
    """The results with as much of their bodies as one answer may hold: the whole body, its beginning, or nothing."""
    room, out = PART_BYTES, []
    for one in found:
        body = whole(one)[one.begin : one.begin + room] if one.state is not None else b""
        room -= len(body)
        out.append(one._replace(body=body))
    return tuple(out)
