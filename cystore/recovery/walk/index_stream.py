"""The entries of all index files in one sequence, read with pread, for verify's comparison with the keys of the log."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from cystore._native.derived import index_chains
from cystore.derived.files.index_layout import ENTRY_BYTES, SLOT_BYTES
from cystore.layout import field_of
from cystore.recovery.walk.index_reader import IndexReader

ENTRIES_AT_ONCE = 50_000
PHYSICAL_OFFSET = field_of("index_entry", "physical_offset")
NEAR_ENTRIES = 2000


class IndexStream:
    """Entries are numbered over all files, from 0."""

    def __init__(self, readers: list[IndexReader]) -> None:
        self._readers = [reader for reader in readers if reader.count > 1]
        self._starts: list[int] = []
        total = 0
        for reader in self._readers:
            self._starts.append(total)
            total += reader.count - 1
        self.limit = total

    def same_entries(self, other: IndexStream) -> bool:
        """Whether both have the same entries of the same files."""
        mine, others = self._readers, other._readers
        return [(r.path, r.count) for r in mine] == [(r.path, r.count) for r in others]

    @property
    def files(self) -> list[tuple[int, int]]:
        """Number of the first entry of each file, and the time in ms that its entries' seconds count from."""
        return [
            (start, reader.header.begin_timestamp_ms)
            for start, reader in zip(self._starts, self._readers, strict=True)
        ]

    def place(self, number: int) -> tuple[IndexReader, int]:
        """The file that holds an entry, and its number in there."""
        at = bisect_right(self._starts, number) - 1
        return self._readers[at], number - self._starts[at] + 1

    def read(self, number: int, count: int = ENTRIES_AT_ONCE) -> bytes:
        """`count` entries from `number` on, fewer at the end."""
        parts = []
        while count > 0 and number < self.limit:
            reader, inside = self.place(number)
            parts.append(reader.read_entries(inside, min(count, reader.count - inside)))
            taken = len(parts[-1]) // ENTRY_BYTES
            number, count = number + taken, count - taken
        return b"".join(parts)

    def physical_offset(self, number: int) -> int:
        reader, inside = self.place(number)
        return reader.physical_offset(inside)

    def below(self, physical_offset: int) -> int:
        """The number behind the last entry that points below a log position; entries ascend."""
        for start, reader in zip(reversed(self._starts), reversed(self._readers), strict=True):
            inside = reader.below(physical_offset)
            if inside > 1:
                return start + inside - 1
        return 0

    def near(self, physical_offset: int) -> int:
        """The first entry for records from a log position on. If some entries are damaged, the number that the fewest
        entries contradict."""
        at = self.below(physical_offset)
        first, last = max(at - NEAR_ENTRIES, 0), min(at + NEAR_ENTRIES, self.limit)
        best = self._best_border(first, last, physical_offset)
        inside = first < best < last or (best == first == 0) or (best == last == self.limit)
        return best if inside else self._best_border(0, self.limit, physical_offset)

    def _best_border(self, first: int, last: int, physical_offset: int) -> int:
        """The number in [first, last] with the fewest entries before it that lead to or behind a log position, and
        behind it that lead before."""
        best, score, lowest = first, 0, 0
        number = first
        while number < last:
            data = self.read(number, min(ENTRIES_AT_ONCE, last - number))
            for at in range(0, len(data), ENTRY_BYTES):
                before = PHYSICAL_OFFSET.read(data, at) < physical_offset
                number += 1
                score += -1 if before else 1
                if score < lowest:
                    best, lowest = number, score
        return best

    def first_from(self, number: int, physical_offset: int) -> int:
        """The first entry at or behind `number` that points at or past a log position; `limit` if there is none."""
        while number < self.limit:
            data = self.read(number)
            for at in range(0, len(data), ENTRY_BYTES):
                if not 0 <= PHYSICAL_OFFSET.read(data, at) < physical_offset:
                    return number + at // ENTRY_BYTES
            number += len(data) // ENTRY_BYTES
        return self.limit

    def broken_chains(self) -> list[tuple[Path, int, str]]:
        """Files in which an entry cannot be found by its key: (path, number of the entry, reason)."""
        found = []
        for reader in self._readers:
            slots, count = bytearray(SLOT_BYTES * reader.slots), reader.count
            for first in range(1, count, ENTRIES_AT_ONCE):
                bad = index_chains.chain(
                    slots, reader.read_entries(first, min(ENTRIES_AT_ONCE, count - first)), first
                )
                if bad >= 0:
                    found.append(
                        (reader.path, bad, "the entry does not point to the one before it in its slot")
                    )
                    break
            else:
                bad = index_chains.other_slot(slots, reader.read_slots(), count)
                if bad >= 0:
                    found.append((reader.path, bad, f"hash slot {bad} does not point to its newest entry"))
        return found
