"""The last record that two logs without epochs have in common: a slave compares its records with its master's bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from cystore.engine.log.commit_log import CommitLog
from cystore.errors import ReplicationError
from cystore.ha.link.wire import DIGEST_RANGE_MAX

HasSame = Callable[[int, int], bool]


def common_end(commit_log: CommitLog, begin: int, end: int, has_same: HasSame) -> int:
    """The end of the last common record in [begin, end); -1 if there is none. `has_same(begin, end)` says whether the
    master has the same bytes there.

    The search takes the logs for equal below a common record, as RocketMQ takes them for equal below any offset. It
    compares the bytes before that record too, as many as one question may be about. Raises ReplicationError if they
    differ.
    """
    file_bytes = commit_log.files.file_bytes
    base = commit_log.files.base_of(end - 1)
    while base + file_bytes > begin:
        found = _in_file(commit_log, max(base, begin), min(base + file_bytes, end), has_same)
        if found >= 0:
            return found
        base -= file_bytes
    return -1


def _in_file(commit_log: CommitLog, begin: int, end: int, has_same: HasSame) -> int:
    begins, ends = array("q"), array("q")
    for message in commit_log.scan(begin, end):
        at = message.physical_offset or 0
        if at + (message.size_bytes or 0) > end:
            break
        begins.append(at)
        ends.append(at + (message.size_bytes or 0))
    if not begins or not has_same(begins[0], ends[0]):
        return -1
    low, high = 1, len(begins)  # so many records are equal, at least and at most
    while low < high:
        middle = (low + high + 1) // 2
        if has_same(begins[middle - 1], ends[middle - 1]):
            low = middle
        else:
            high = middle - 1
    position = ends[low - 1]
    before = max(begin, position - DIGEST_RANGE_MAX)
    if not has_same(before, position):
        raise ReplicationError(
            f"this log and the master's have the same record before {position}, and differ from {before} on: start "
            "with an empty directory",
            offset=before,
        )
    return position
