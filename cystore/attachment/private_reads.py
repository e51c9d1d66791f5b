"""Reads of a handle that recovered privately. Each read shows one state of the files: if another process comes
meanwhile, the read is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from cystore._native.filters.program import FilterProgram
from cystore._native.memory.control import CONFIRMED
from cystore._native.record.message import Message
from cystore.attachment.attach import Attachment
from cystore.engine.log.commit_log import check_offset, tell_cleaned
from cystore.errors import StoreError
from cystore.system.other_processes import View

# Methods of a store that look at it once. `scan`, `wait` and `wait_log` repeat their looks themselves.
FOLLOWED = (
    "get",
    "query",
    "query_many",
    "latest",
    "read",
    "offset_by_time",
    "next_queue_offset",
    "catch_up",
    "snapshot",
    "topics",
    "stats",
    "holds",
    "archived",
)

P = ParamSpec("P")
R = TypeVar("R")


def has_moved(parts: Attachment) -> bool:
    """Whether a read of these parts may be outdated: they are a private view of files, and another process came."""
    return parts.ground is not None and parts.ground.moved()


def followed(
    attached: Callable[[], Attachment], view: View, read: Callable[P, R], read_newest: Callable[P, R]
) -> Callable[P, R]:
    """Calls `read` of a private view until the view is outdated. Then calls `read_newest`, again on the newest parts
    until no process comes meanwhile. `attached()` gives the newest parts."""

    def newest(*arguments: P.args, **named: P.kwargs) -> R:
        while True:
            parts = attached()
            try:
                result = read_newest(*arguments, **named)
            except StoreError:
                if not has_moved(parts):
                    raise
                continue
            if not has_moved(parts):
                return result

    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if view.is_still or not view.moved():
            try:
                result = read(*arguments, **named)
            except StoreError:
                if not view.moved():
                    raise
            else:
                if not view.moved():
                    return result
        return newest(*arguments, **named)

    return call


def follow(store: Any, attached: Callable[[], Attachment], view: View) -> None:
    """Puts `followed` in front of a store's methods, also those that the kernel provides."""
    for name in FOLLOWED:
        method = getattr(type(store), name).__get__(store)
        setattr(store, name, followed(attached, view, getattr(store, name), method))


def scan(
    attached: Callable[[], Attachment],
    begin: int | None,
    end: int | None,
    texts: FilterProgram | None = None,
) -> Iterator[Message]:
    """`CommitLog.scan` of the newest parts, which steps over segments that are cleaned meanwhile. For a private view, a
    scan that follows the parts."""
    parts = attached()
    if parts.ground is None:
        if parts.control.confirming and parts.reader.read_end == CONFIRMED:
            end = parts.reader.log_end if end is None else min(check_offset(end), parts.reader.log_end)
        return parts.commit_log.scan(begin, end, over_cleaned=True, texts=texts)
    first, last = (None if at is None else check_offset(at) for at in (begin, end))
    return _followed_scan(attached, first, last, texts)


def _followed_scan(
    attached: Callable[[], Attachment], begin: int | None, end: int | None, texts: FilterProgram | None
) -> Iterator[Message]:
    """`CommitLog.scan` that continues with the newest parts if the old ones fail. Only the cleaner changes the log
    below the end."""
    control = attached().control
    at = control.min_physical_offset if begin is None else begin
    until = control.wrote if end is None else min(end, control.wrote)
    while True:
        parts = attached()
        minimum = parts.control.min_physical_offset
        if at < minimum and at != begin:
            tell_cleaned(parts.commit_log, at, minimum)
            at = minimum
        try:
            for message in parts.commit_log.scan(at, until, over_cleaned=True, texts=texts):
                at = (message.physical_offset or 0) + (message.size_bytes or 0)
                yield message
        except StoreError:
            if not has_moved(parts):
                raise
        else:
            return
