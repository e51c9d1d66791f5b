"""How programs that people run begin and end: standard streams, exit codes, and a hint for each kind of error."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from pathlib import Path

from cystore.config import DEFAULTS
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue_ext import DIRECTORY as EXT_QUEUES
from cystore.derived.files.index import DIRECTORY as INDEX
from cystore.errors import (
    CorruptRecordError,
    FlushFailedError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StorePermissionError,
    StoreResourceError,
    StoreTimeoutError,
)

ABOUT_SETTINGS = re.compile(rf"\bsettings?\b|\b(?:{'|'.join(DEFAULTS)})\b|NAME=VALUE")
DERIVED = {QUEUES, EXT_QUEUES, INDEX}
INTERRUPTED, TERMINATED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGPIPE

# The first one that fits gives the advice for an error.
HINTS: tuple[tuple[type[StoreError], str], ...] = (
    (StoreConfigError, "settings are the fields of cystore.StoreConfig"),
    (StoreLockedError, "`cystore info PATH` shows the process that has it; end that process, or try again"),
    (StorePermissionError, "run it as the user that owns the store, or look at a copy"),
    (StoreFormatError, "check PATH and the settings the store was made with (--set, --config)"),
    (CorruptRecordError, "`cystore verify PATH` lists all damage"),
    (FlushFailedError, "the disk reported an error: check it before the store is opened again"),
    (StoreIOError, "check the disk"),
    (StoreResourceError, "raise the limit that the message names (`ulimit -n`, memory)"),
    (StoreFullError, "`cystore info PATH` shows the disk use"),
    (StoreTimeoutError, "check whether a process that uses the store is stopped"),
)


def whole_streams() -> None:
    """Makes the standard streams whole. Output streams take any text. A closed stream is replaced: it would be None,
    and the next file that the store opens would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def hint(error: StoreError) -> str:
    """The advice for an error, as the end of its line."""
    if isinstance(error, StoreConfigError) and not ABOUT_SETTINGS.search(str(error).partition(" [path ")[0]):
        return ""  # the error is about another argument, and names it
    if isinstance(error, StoreFormatError) and DERIVED & set(Path(str(error.path)).parts):
        return "; `cystore rebuild PATH` makes queues and index anew from the log"
    return next((f"; {remedy}" for kind, remedy in HINTS if isinstance(error, kind)), "")


def leave(status: int) -> int:
    """Flushes the output streams; a failure must not come again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
