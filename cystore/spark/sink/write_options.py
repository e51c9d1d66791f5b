"""Options of a write: its place, its topic and its writer. The writer's name keeps rows from being appended twice.

This module refuses every user error before a task stages rows, with a StoreConfigError that names the option.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cystore.columns.object_store import ObjectStore, is_url, local_path
from cystore.config import StoreConfig
from cystore.config_sources import resolve
from cystore.errors import StoreConfigError
from cystore.spark.options import (
    NAMES,
    OF_SQL,
    SETTING_PREFIX,
    settings_of,
    whole_number,
)
from cystore.system.links import real_path

WRITE_NAMES = (
    *("path", "topic", "stagingPath", "sinkId", "txnAppId", "txnVersion", "checkpointLocation"),
    "dropUnfinished",
)
OF_STREAMS = frozenset({"queryname"})  # Spark passes it on
STAGING_SUFFIX = ".staging"
NAME_MAX = 1000  # of what a sink is called


@dataclass(frozen=True)
class Sink:
    """The writer: a stream or an application, with numbered batches, so that each is appended once."""

    kind: str  # the user's option that gave the name: "sinkId", "checkpointLocation", "txnAppId"
    name: str

    @property
    def is_stream(self) -> bool:
        return self.kind != "txnAppId"

    @property
    def id(self) -> str:
        """A short text for file names, the same for the same name."""
        return hashlib.sha256(f"{self.kind}:{self.name}".encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class WriteOptions:
    """Checked options. Without a `sink`, a repeated job may append its rows again."""

    path: str
    staging: str
    topic: str | None = None
    sink: Sink | None = None
    version: int | None = None  # of a batch write; a stream's comes with each batch
    given_up: int | None = None  # the number of an unfinished batch that is not to be finished
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> StoreConfig:
        return resolve(dict(self.settings))


def parse_write(given: Mapping[str, str], *, overwrite: bool, stream: bool) -> WriteOptions:
    """Checks the options of a batch or stream write. Raises StoreConfigError."""
    if overwrite:
        raise StoreConfigError(
            "a log is append-only: "
            + ('write with .outputMode("append")' if stream else 'write with .mode("append"), not overwrite')
        )
    options = {name.lower(): value for name, value in given.items()}
    settings = settings_of(options)
    if settings.get("read_only"):
        raise StoreConfigError(f"{SETTING_PREFIX}read_only is for reading only")
    known = {name.lower() for name in WRITE_NAMES} | OF_SQL | (OF_STREAMS if stream else frozenset())
    reading = {name.lower() for name in NAMES}
    for name in options:
        if name not in known and not name.startswith("option."):
            why = "is for reading only" if name in reading else "is not known"
            raise StoreConfigError(
                f"option {name} {why}; a write takes {', '.join(WRITE_NAMES)} and {SETTING_PREFIX}SETTING"
            )
    path = _store_path(options)
    staging = options.get("stagingpath")
    if staging is not None and not staging:
        raise StoreConfigError("stagingPath is empty: name a folder that the driver and every executor share")
    if staging is not None and is_url(local_path(staging)):
        _, url = ObjectStore.of(staging, {})
        raise StoreConfigError(
            f"stagingPath {url} is a URL: name a folder that the driver and every executor share"
        )
    sink = _stream_sink(options) if stream else _application(options)
    version = None
    if not stream and sink is not None:
        version = whole_number("txnVersion", options["txnversion"], 0)
    given_up = options.get("dropunfinished")
    if given_up is not None and sink is None:
        raise StoreConfigError(
            "dropUnfinished gives up a version of an application: name it with txnAppId and txnVersion"
        )
    return WriteOptions(
        path=path,
        staging=str(real_path(local_path(staging))) if staging else path + STAGING_SUFFIX,
        topic=options.get("topic"),
        sink=sink,
        version=version,
        given_up=None if given_up is None else whole_number("dropUnfinished", given_up, 0),
        settings=settings,
    )


def _store_path(options: Mapping[str, str]) -> str:
    path = local_path(options.get("path") or options.get("location") or "")
    if not path:
        raise StoreConfigError('no path: name the store\'s directory, as in .save("/var/lib/app/store")')
    if is_url(path):
        _, url = ObjectStore.of(path, {})
        raise StoreConfigError(f"path {url} is a URL, and URLs are read-only: write to a store on its host")
    found = real_path(path)
    if found.exists() and not found.is_dir():
        raise StoreConfigError(f"path {path} is a file; a store is a directory")
    return str(found)


def _stream_sink(options: Mapping[str, str]) -> Sink:
    for name in ("txnAppId", "txnVersion"):
        if name.lower() in options:
            raise StoreConfigError(f"option {name} is for batches only; a stream has sinkId")
    for name in ("sinkId", "checkpointLocation"):
        if name.lower() in options:
            text = options[name.lower()]
            return Sink(
                name, _checked_length(name, text.rstrip("/") if name == "checkpointLocation" else text)
            )
    raise StoreConfigError(
        "a stream needs a name, or a batch that Spark repeats would be appended twice: give option sinkId, or option "
        "checkpointLocation (one in Spark's configuration is not seen here)"
    )


def _application(options: Mapping[str, str]) -> Sink | None:
    if "sinkid" in options:
        raise StoreConfigError("option sinkId is for streams only; a batch has txnAppId and txnVersion")
    if ("txnappid" in options) != ("txnversion" in options):
        raise StoreConfigError("txnAppId and txnVersion go together: the version is the number of one write")
    return (
        Sink("txnAppId", _checked_length("txnAppId", options["txnappid"])) if "txnappid" in options else None
    )


def _checked_length(name: str, text: str) -> str:
    if not 0 < len(text) <= NAME_MAX:
        raise StoreConfigError(f"{name} must be 1 to {NAME_MAX} characters, not {len(text)}")
    return text
