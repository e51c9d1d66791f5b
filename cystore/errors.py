"""The errors that users see: one small tree. Each message names path, offset or field, and says what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable


def hidden(text: str) -> str:
    """A URL or an address, for a message, in which each possible password is replaced."""
    text = re.sub(r"((?:^|://)[^/@:\s]*):(?!//).*@|(^|://)[^/\s]*@", r"\1\2:**@", text)
    return re.sub(r"(?i)([?&;][^=&;\s]*(?:pass|secret|token)[^=&;\s]*=)[^&;\s]*", r"\1**", text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known names that resemble it, in any case of letters. Empty
    without one."""
    import difflib

    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name)[:TEXT_SHOWN].lower(), by_lower, n=3)
    return f"; did you mean {', '.join(by_lower[one] for one in near)}?" if near else ""


TEXT_SHOWN, BITS_SHOWN = 200, 128
# Errors of Python itself for an argument that does not fit. The program's signal handlers may raise any other.
RAW_ERRORS = (
    ArithmeticError, AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


def shown(value: object) -> str:
    """A number or a short text unchanged, for a message; of anything else its type, because its repr may be anything,
    or raise."""
    if type(value) is int and value.bit_length() > BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    if type(value) in (str, bytes) and len(value) > TEXT_SHOWN:  # type: ignore[arg-type]
        return f"{type(value).__name__} of {len(value)}"  # type: ignore[arg-type]
    return repr(value) if type(value) in (int, float, str, bytes, bool, type(None)) else type(value).__name__


class StoreError(Exception):
    """Base of every error that cystore raises by itself.

    `path` and `offset` name the place, if they apply. An error that is raised after the commit point of a put has
    `results` (list of PutResult): the messages that were appended nevertheless.
    """

    def __init__(
        self, message: str, *, path: object = None, offset: int | None = None, results: list | None = None
    ) -> None:
        where = "".join(
            [
                f" [path {path}]" if path is not None else "",
                f" [offset {offset}]" if offset is not None else "",
            ]
        )
        super().__init__(message + where)
        self.path = path
        self.offset = offset
        self.results = results


class MessageIllegalError(StoreError, ValueError):
    """A message that cannot be stored: topic, properties, body or key out of bounds
    (PutMessageStatus.MESSAGE_ILLEGAL)."""


class StoreConfigError(StoreError, ValueError):
    """A setting with a wrong name, type or value."""


class FilterError(StoreError, ValueError):
    """A filter that cannot be used. `position` counts the characters of the expression before the error, from 0;
    None: the filter is no expression."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class StoreFullError(StoreError):
    """No space on the disk, or all queue slots taken. Puts are accepted again when there is space."""


class QueuesFullError(StoreFullError):
    """All queue slots are taken (max_queues), so no message goes to a new queue. Puts to other queues are accepted."""


class StoreNotWritableError(StoreError):
    """The store refuses writes: read-only, an fsync failed, or switched off
    (PutMessageStatus.SERVICE_NOT_AVAILABLE)."""


class StoreMovedError(StoreNotWritableError):
    """The store's path names another directory now: the directory was moved, deleted or replaced under this process.
    Nothing is written."""


class StoreIsSlaveError(StoreNotWritableError):
    """The store is a slave: only its master appends (PutMessageStatus.SERVICE_NOT_AVAILABLE). Put to the master that
    is named."""


class PageCacheBusyError(StoreError):
    """The append lock has been held for longer than os_page_cache_busy_timeout_ms, or than the call allows
    (PutMessageStatus.OS_PAGE_CACHE_BUSY)."""


class PoolDeficientError(StoreError):
    """No buffer of the pool is free (PutMessageStatus.CREATE_MAPEDFILE_FAILED), with
    fast_fail_if_no_buffer_in_store_pool. Nothing was appended. Try again after the next commit."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A bounded wait ended: a sync flush, or a lock whose live owner does not move."""


class FlushSlaveTimeoutError(StoreTimeoutError):
    """No slave had the messages within slave_timeout_ms (PutMessageStatus.FLUSH_SLAVE_TIMEOUT). The master has them:
    `results`."""


class SlaveNotAvailableError(StoreError):
    """No slave is connected, or all are further behind than ha_slave_fallbehind_max_bytes
    (PutMessageStatus.SLAVE_NOT_AVAILABLE). The master has the messages: `results`."""


class NotAcknowledgingError(StoreNotWritableError):
    """This elected master acknowledges no replicated put: its lease is over by its own clock, or the in-sync set has
    fewer members than min_in_sync_replicas. Nothing was appended. Try again, or put to the master that `cystore ha
    status` names."""


class ElectionError(StoreError):
    """etcd cannot be reached, or its content under the group's name is not a group of cystore. A change may or may not
    have been made."""


class ReplicationError(StoreError):
    """A master and its slave do not fit: the lengths of their files or their logs differ, a range of the log is gone,
    or the peer violates the protocol. Nothing was appended."""


class TransactionError(StoreError):
    """A transaction that is not open: it was committed, rolled back or discarded, or the store does not know it.
    Nothing was written."""


class FencedError(StoreError):
    """A step of a duty was refused, because another process has got the lease since. Nothing was done; the newer holder
    continues."""


class FlushFailedError(StoreError, OSError):
    """msync or fsync reported an error, so the range may not be durable. The store is read-only until reopened."""


class NotDurableError(StoreError, OSError):
    """`close` released everything, but the named part of the store may not be durable: a power cut now could lose it.
    The cause is the error that prevented this."""


class CorruptRecordError(StoreError):
    """Stored bytes that fail their checksum or contradict each other. Never returned as data."""


class OffsetError(StoreError, LookupError):
    """A physical offset at which no record can be read: below the minimum, past the end, a blank, inside a record."""


class StoreLockedError(StoreError):
    """Another process holds the store in a way that excludes this one, or its `lock` file was replaced."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreFormatError(StoreError):
    """A directory, file or control block of another layout, size or version than this build reads."""


class StorePermissionError(StoreError, PermissionError):
    """The operating system refused access."""


class StoreResourceError(StoreError, OSError):
    """The process or the host lacks descriptors or memory, or a call was interrupted (EMFILE, ENFILE, ENOMEM, EAGAIN,
    EINTR).

    This call failed and nothing else changed. Repeat it when the named resource is available.
    """


class StoreIOError(StoreError, OSError):
    """The operating system reported an input/output error."""


class SyncFailedError(StoreIOError):
    """An fsync, fdatasync or msync reported an error, `errno`. The range may not be on disk; a second try proves
    nothing."""

    @staticmethod
    def of(code: int, path: object = None) -> StoreError:
        """The error for `errno` of a sync. EINTR and EAGAIN say that the sync did not run: they are errors of the
        call alone."""
        if code in (errno.EINTR, errno.EAGAIN):
            return StoreResourceError(f"{os.strerror(code)}: the sync did not run; try again", path=path)
        error = SyncFailedError(os.strerror(code), path=path)
        error.errno = code
        return error
