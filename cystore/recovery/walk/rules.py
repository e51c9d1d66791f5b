"""The decisions of recovery that need no disk. Pure functions; docs/recovery.md names the crash that each decision
answers."""

from __future__ import annotations

from typing import NamedTuple

from cystore.engine.files.checkpoint import CheckpointFields
from cystore.engine.manifest.given_up_offsets import BELIEVED_GAP as BELIEVED_GAP
from cystore.layout import CONSTANTS, RECORD_MAGIC_CYSTORE

RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
A_BLANK = "a blank, and no file behind it"  # the reason for the end of a log without damage
CHECKPOINT_SLACK_MS = 3_000  # StoreCheckpoint.getMinTimestamp
FILES_AFTER_CLEAN_CLOSE = 3  # CommitLog.recoverNormally


class FirstRecord(NamedTuple):
    """The begin of a commit log file; `store_timestamp` in ms, 0 if it is not a record."""

    base: int
    store_timestamp: int


def start_after_clean_close(bases: list[int], file_bytes: int, check_bytes: int) -> int:
    """The position from which recovery checks after a clean close: the last three files (CommitLog.recoverNormally), or
    more files that together hold at most `check_bytes`."""
    enough = bases[-FILES_AFTER_CLEAN_CLOSE:][0]
    return min(
        enough, next(base for base in bases if bases[-1] + file_bytes - base <= max(check_bytes, file_bytes))
    )


def is_old_enough(first: FirstRecord, checkpoint: CheckpointFields) -> bool:
    """Whether log and consume queues were on disk up to this file when the checkpoint was written
    (CommitLog.isMappedFileMatchedRecover)."""
    limit = max(min(checkpoint.physic_timestamp, checkpoint.logics_timestamp) - CHECKPOINT_SLACK_MS, 0)
    return 0 < first.store_timestamp <= limit


class LastRecord(NamedTuple):
    """The record that the checkpoint names as the last below its watermark, as it is found in the log."""

    end: int
    checksum: int
    store_timestamp: int
    blank_end: int  # end of the blank behind it, -1 without one


def watermark_is_valid(checkpoint: CheckpointFields, found: LastRecord | None) -> bool:
    """Whether the checkpoint's watermark belongs to this log, and no program that ignores it has written to the log
    since.

    RocketMQ moves the physic timestamp and does not change the watermark.
    """
    return (
        found is not None
        and checkpoint.watermark > 0
        and found.checksum == checkpoint.last_record_checksum
        and checkpoint.watermark in (found.end, found.blank_end)
        and checkpoint.physic_timestamp <= found.store_timestamp
    )


def explained_by_damage(gap: int, swallowed_bytes: int) -> bool:
    """Whether `gap` records can have been in the damage stepped over since the queue's last record."""
    return 0 < gap <= swallowed_bytes // RECORD_SIZE_MIN


def header_is_proven(magic: int) -> bool:
    """A cystore record's checksum covers its queue offset; RocketMQ's covers the body alone."""
    return magic == RECORD_MAGIC_CYSTORE


def resume_is_sound(
    *, trusted: bool, store_timestamp: int, last_timestamp: int, queue_offset: int, expected: int
) -> bool:
    """Whether a valid record behind damage belongs to this log, or was left behind by an earlier truncation.

    If the watermark is ours, nothing stale can be below it, because truncated bytes are zeroed. RocketMQ leaves the
    bytes behind its truncations; a record that is older than the one before the damage, or repeats a queue offset,
    counts as such a leftover.
    """
    return trusted or (store_timestamp >= last_timestamp and queue_offset >= expected)
