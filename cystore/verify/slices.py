"""Verifies a slice of a live store: the records of a range of the log, with their entries in queues and index. Changes
nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cystore._native.read import scan as kernel
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.recovery.walk.index_reader import list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_pass import Key
from cystore.recovery.walk.model import Damage
from cystore.recovery.walk.queue_reader import QueueReader, open_queue
from cystore.verify.verifier import Verifier


class WrongEntry(NamedTuple):
    """A consume queue entry that disagrees with its intact record."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    damage: Damage


class SliceVerifier(Verifier):
    """Verifies [bounds.begin, bounds.end), which begins at a record. It ignores other entries of queues and index, so a
    slice costs only its own records. The files must exist: below the log's minimum there is nothing to verify.

    When `run` has ended, `position` is the begin of the next slice, `records` the number of intact records,
    `wrong_entries` the damaged entries that the log can correct.
    """

    position = 0
    records = 0

    def _list_queues(self) -> Mapping[Key, QueueReader]:
        self.wrong_entries: list[WrongEntry] = []
        return {}

    def _queue(self, key: Key) -> QueueReader | None:
        return open_queue(self._root, *key, self._config.mapped_file_size_consume_queue_bytes)

    def run(self) -> Iterator[Damage]:
        """The damage of the slice."""
        scanner = kernel.LogScanner(compare_tags=True)
        begin, end = self._bounds.begin, self._bounds.end
        if self._config.message_index_enable:
            readers, _ = list_readable_index(self._root, self._config)
            self._stream = IndexStream([reader for reader in readers if reader.sound])
            scanner.compare_keys(self._stream.below(begin), self._stream.limit, self._stream.files)
        yield from self._walk(scanner, begin, end)
        yield from self._wrong.values()
        if self._unkeyed is not None:
            yield self._unkeyed
        self.position, self.records = scanner.position, scanner.record_count

    def _other_entry(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        """Each entry by itself, because it may be mended. A dispatched record has its entry, so an all-zero entry is
        wrong too."""
        topic, queue_id, queue_offset, size, *_ = scanner.record()
        number, reader = scanner.wanted, self._readers[scanner.slot]
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        damage = Damage(
            "consume_queue",
            reader.path(base),
            position - base,
            position - base + ENTRY_BYTES,
            "not the entry of the record",
        )
        self.wrong_entries.append(
            WrongEntry(topic.decode("ascii"), queue_id, queue_offset, scanner.position, size, damage)
        )
        yield damage
        scanner.accept_entry()
