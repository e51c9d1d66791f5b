"""A store and its host, as `cystore doctor` meets them; and the form of its findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cystore.attachment.attach import Attachment
from cystore.cli.look.clock import times
from cystore.cli.look.info import attached_to, can_be_read, from_files
from cystore.config import StoreConfig
from cystore.engine.manifest.manifest import read_facts
from cystore.engine.manifest.store_settings import sources
from cystore.errors import StoreConfigError, StoreError
from cystore.operate import facts
from cystore.operate.positions import positions
from cystore.operate.store_parts import looked_at
from cystore.services.duty_table import DUTIES, Duties, DutyRun, Lease
from cystore.system import files

Level = Literal["ok", "warn", "bad"]


class Finding(NamedTuple):
    """The answer of one check: how it is, what was found, and what to do about it (empty: nothing)."""

    level: Level
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    """It is as it should be."""
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    """It works, but somebody should look at it."""
    return Finding("warn", found, advice)


def bad(found: str, advice: str) -> Finding:
    """It does not work, or data is lost."""
    return Finding("bad", found, advice)


class Check(NamedTuple):
    """One check. `needs` is what it looks at: a check is left out where that is not there."""

    name: str
    about: str
    run: Callable[[Site], Iterable[Finding]]
    needs: Literal["", "store", "content", "redis"] = ""


class Content(NamedTuple):
    """A store's facts that only an attached process sees."""

    positions: dict[str, Any]  # as `cystore info` has them
    times: dict[str, int]  # as `cystore clock` has them
    runs: dict[str, DutyRun]
    leases: dict[str, Lease]  # in the store
    undispatched_since_ms: int  # the first message that is not in its queue yet; 0: none
    unflushed_since_ms: int


class Site:
    """The facts for the checks. Each fact is looked up at its first use; an error of it is the finding of the check."""

    def __init__(
        self,
        path: Path,
        config: StoreConfig,
        *,
        redis_url: str = "",
        no_redis: str = "",
        reads_all: bool = False,
    ) -> None:
        self.path, self.given = path, config
        self.no_redis = no_redis or "not checked: --redis URL"  # why there is no URL
        self.redis_url, self.reads_all = redis_url, reads_all
        self.redis: dict[str, Any] | None = None  # INFO, once the server has answered
        self.state: facts.State | None = None
        self.trouble: StoreError | None = None  # why there is no state
        self.is_absent = False
        try:
            self.is_absent = _is_absent(path)
            if not self.is_absent:
                self.state = facts.state(path)
        except StoreError as error:
            self.trouble = error
        self.content: Content | None = None  # set by `look`

    def has(self, what: str) -> bool:
        """Whether a check that needs this can look at it."""
        return {
            "": True,
            "store": self.state is not None,
            "content": self.content is not None,
            "redis": self.redis is not None,
        }[what]

    @cached_property
    def place(self) -> Path:
        """The store's directory, or the folder in which it would be made."""
        return next(one for one in (self.path, *self.path.parents) if os.path.isdir(one))

    @cached_property
    def config(self) -> StoreConfig:
        """The settings that a process with the given ones has."""
        if self.state is None:
            return self.given
        values = sources(self.given, read_facts(self.path)[0])
        try:
            return self.given.but(
                **{name: value for name, (value, source) in values.items() if source == "store"}
            )
        except StoreConfigError:
            return self.given

    @cached_property
    def files(self) -> dict[str, Any]:
        """The facts of `cystore info` that the files alone have."""
        assert self.state is not None
        return from_files(self.path, self.state)

    @cached_property
    def attached(self) -> dict[str, Any] | None:
        """The processes that have the store open, and their version; None while none has it."""
        return attached_to(self.path) if self.state is not None and self.state.name == "live" else None

    def look(self) -> bool:
        """Reads what an attached process sees. False if no other process may look now."""
        assert self.state is not None
        if not can_be_read(self.state, self.attached):
            return False
        reading = self.given.but(read_only=True, services=())
        self.content = looked_at(self.path, reading, _content)
        return True


def _is_absent(path: Path) -> bool:
    """Whether an open for writing would make a store. Raises StoreError where this user may not look."""
    with files.translated(path):
        try:
            path.lstat()
        except FileNotFoundError:
            return True
        return path.is_dir() and not files.names(path)


def _content(parts: Attachment) -> Content:
    control, noted = parts.control, Duties(parts.control)
    dispatched = control.dispatched
    flushed = control.flushed
    return Content(
        positions(parts),
        times(parts),
        {name: noted.last(name) for name in DUTIES},
        {name: lease for name in DUTIES if (lease := noted.lease(name)) is not None},
        _time_at(parts, dispatched),
        _time_at(parts, flushed),
    )


def _time_at(parts: Attachment, position: int) -> int:
    """When the record at a position of the log was stored; 0 if none begins there."""
    if position >= parts.control.wrote:
        return 0
    try:
        return parts.commit_log.read(position).store_timestamp_ms or 0
    except StoreError:
        return 0
