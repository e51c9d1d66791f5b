"""Truncates a log at the point where it differs from the master's: a replaced master has records that no other member
has.

No position of the log goes back while a process has the store open. So the manifest gets an order to truncate, and the
processes are asked to leave. The next process that is alone in the store carries out the order before recovery. A copy
of the truncated bytes stays in quarantine/. A kill at any step leaves the order, and the next process repeats it. The
order names the copy before the log changes, so the copy is made once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from cystore._native.system.failpoint import failpoint
from cystore.derived.files.known_queues import forget_known_queues
from cystore.derived.files.offsets import (
    CONSUMER_OFFSETS,
    QueueOffsets,
    read_offsets,
    read_queue_offsets,
    write_offsets,
    write_queue_offsets,
)
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.quarantine import copy_name, pieces_of, put_aside
from cystore.engine.files.segments import Mode
from cystore.engine.manifest.compaction_facts import compaction_of, with_compaction
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.manifest import Facts, Manifest, look
from cystore.engine.manifest.removed_queues import Removed
from cystore.errors import StoreFormatError
from cystore.ha.epochs.confirmed_file import limit_confirmed
from cystore.layout import takes_queue_offset
from cystore.recovery.apply import drop_derived
from cystore.recovery.walk.abort_file import mark_undispatched
from cystore.recovery.walk.log_reader import LogReader, queue_places
from cystore.system import files
from cystore.system.ranges import file_ranges

log = logging.getLogger("cystore")

SECTION = "cut"  # in the manifest
Queue = tuple[str, int]  # topic, queue id
CONSUMERS_TABLE = "consumers.table"  # the offsets of groups that the processes share (cystore.consumers)
CLAIMS = "claims"  # who has which message now (cystore.consumers.claims)


def order_truncation(manifest: Manifest, position: int, end: int) -> None:
    """Orders that the log is truncated from `position` to its present `end`."""
    manifest.set_section(SECTION, {"from": position, "to": end})


def ordered_truncation(facts: Facts) -> tuple[int, int] | None:
    """The range of the log that an order truncates; None without an order."""
    found: Any = facts.sections.get(SECTION)
    return None if not isinstance(found, dict) else (int(found["from"]), int(found["to"]))


def truncate_if_ordered(root: Path, file_bytes: int) -> None:
    """For the only process in the store, before recovery; `file_bytes` is the configured length of the log's files."""
    facts = look(root).facts
    order = None if facts is None else ordered_truncation(facts)
    if facts is None or order is None:
        return
    position, end = order
    manifest = Manifest.load(root, None, lambda: facts)
    kept = str(facts.sections[SECTION].get("kept", ""))
    reader = LogReader(root, file_bytes)
    try:
        if not kept and _has_content(reader, position):
            pieces = pieces_of(reader.path, reader.file_bytes, position, end)
            kept = put_aside(root, pieces, copy_name(position, end))
            failpoint("cut.kept")
            manifest.set_section(SECTION, {"from": position, "to": end, "kept": kept})
        limit_confirmed(root, position)
        lost = _lost(reader, position)
        manifest.update(lambda known: _facts_below(known, position, lost))
        _truncate(root, reader, position, lost)
    finally:
        reader.close()

    def without_the_order(known: Facts) -> Facts:
        left = replace(
            known, damaged_ranges=DamagedRanges(each for each in known.damaged_ranges if each.end <= position)
        )
        return left.with_section(SECTION, None)

    manifest.update(without_the_order)
    log.warning(
        "%s: truncated the log from %d to %d; the copy in quarantine/: %s",
        root,
        position,
        end,
        kept or "none",
    )


def _lost(reader: LogReader, position: int) -> dict[Queue, int]:
    """The queues that lose records, each with the queue offset of the first lost one."""
    found: dict[Queue, int] = {}
    for record in reader.records(position):
        if takes_queue_offset(record["sys_flag"]):
            for queue, queue_offset in queue_places(record):
                found[queue] = min(found.get(queue, queue_offset), queue_offset)
    return found


def _facts_below(facts: Facts, position: int, lost: dict[Queue, int]) -> Facts:
    """The facts without what they say of lost records. Other records take their queue offsets and their places: these
    are neither removed nor given up."""
    removed = (
        row._replace(
            end=min(row.end, lost.get((row.topic, row.queue_id), row.end)),
            physical_end=min(row.physical_end, position),
        )
        for row in facts.removed
    )
    given_up = (
        each._replace(end=min(each.end, lost.get((each.topic, each.queue_id), each.end)))
        for each in facts.given_up
    )
    compaction = compaction_of(facts)
    deleted = {topic: min(end, position) for topic, end in compaction.deleted.items()}
    if deleted != compaction.deleted:
        facts = with_compaction(facts, replace(compaction, deleted=deleted))
    return replace(
        facts,
        removed=Removed(row for row in removed if row.end),
        given_up=GivenUp(each for each in given_up if each.begin < each.end),
    )


def _truncate(root: Path, reader: LogReader, position: int, lost: dict[Queue, int]) -> None:
    base = reader.base_of(position)
    mark_undispatched(root)
    _count_back(root, position, lost)
    _say_durable(root, reader, position)
    failpoint("cut.counted_back")
    drop_derived(root)
    forget_known_queues(root)
    failpoint("cut.derived_dropped")
    for later in sorted((one for one in reader.bases if one > base), reverse=True):
        files.remove(reader.path(later))
        failpoint("cut.file_removed")
    if reader.has(base):
        file_ranges.zero_range(reader.path(base), position - base, reader.file_bytes)
    failpoint("cut.zeroed")


def _has_content(reader: LogReader, position: int) -> bool:
    begins = [max(position, base) for base in reader.bases if base + reader.file_bytes > position]
    return any(
        reader.nonzero(begin, reader.base_of(begin) + reader.file_bytes) is not None for begin in begins
    )


def _count_back(root: Path, position: int, lost: dict[Queue, int]) -> None:
    """Sets back the queue offsets: a queue that loses records continues with the offset of the first lost record."""
    saved = read_queue_offsets(root)
    following = dict(saved.next)
    for queue, first in lost.items():
        following[queue] = min(following.get(queue, first), first)
    _count_groups_back(root, {queue: following[queue] for queue in lost})
    minimum = {queue: min(first, following.get(queue, first)) for queue, first in saved.minimum.items()}
    write_queue_offsets(root, QueueOffsets(following, minimum, min(saved.physical_offset, position)))


def _count_groups_back(root: Path, ends: dict[tuple[str, int], int]) -> None:
    """Sets back the groups that are behind the end of a queue that loses records: they would not get the messages that
    take the place of the lost ones. Without its table the file counts."""
    if not ends:
        return
    try:
        found = read_offsets(root, CONSUMER_OFFSETS)
    except StoreFormatError as error:
        log.warning("%s; its groups are not set back", error)
        return
    table: dict[str, Any] = {}
    for name, queues in found.table.items():
        topic = name.partition("@")[0]
        table[name] = (
            {
                int(queue_id): min(offset, ends.get((topic, int(queue_id)), offset))
                for queue_id, offset in queues.items()
            }
            if isinstance(queues, dict) and all(queue_id.isdecimal() for queue_id in queues)
            else queues
        )
    if table:
        write_offsets(root, CONSUMER_OFFSETS, table)
    files.remove(root / "config" / CONSUMERS_TABLE)
    files.remove_tree(root / CLAIMS)


def _say_durable(root: Path, reader: LogReader, position: int) -> None:
    """Makes the rest of the log durable, and the checkpoint records that: recovery then takes damage in it for damage,
    not for the log's end."""
    last: dict[str, Any] | None = None
    begin = reader.base_of(max(position - 1, reader.begin))
    for record in reader.records(begin):
        if record["physical_offset"] >= position:
            break
        last = record
    for base in reader.bases:
        if base < position:
            with files.opened(reader.path(base)) as fd:
                files.sync(fd, reader.path(base))
    checkpoint = Checkpoint(root, Mode.WRITE)
    if last is None:
        checkpoint.set_watermark(0, 0, 0)
    else:
        checkpoint.set_watermark(position, last["physical_offset"], last["checksum"])
        checkpoint.physic_timestamp = last["store_timestamp"]
    checkpoint.sync()
    checkpoint.close()
