"""The offsets of consumer groups between a master and its slaves (SlaveSynchronize.syncConsumerOffset).

RocketMQ's slave takes over what its master says. Here an offset only moves forward, because a slave may have been the
master before, and know more. Only a change that the master makes while the slave is connected also moves an offset back
(a reset), or removes it: as long as nobody moved the offset on the slave itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from cystore.attachment.attachment import Attachment
from cystore.clock import monotonic_s
from cystore.consumers.groups import table_of
from cystore.consumers.names import SEPARATOR, is_group
from cystore.consumers.offset_file import Key, path_of
from cystore.consumers.table import NAME, NO_OFFSET, OffsetTable
from cystore.derived.files.offsets import QUEUE_ID, QUEUE_ID_MAX
from cystore.engine.files.progress import Progress
from cystore.engine.manifest.topic_names import is_topic

SAVE_S = 5.0  # as often as a consumer saves
RETRY_S = 5.0

Table = dict[str, dict[str, int]]


class ReplicatedOffsets:
    """The offsets of one attachment; cystore.ha.facts uses them. One thread calls `save_once`, and one all else."""

    def __init__(self, parts: Attachment) -> None:
        self._parts = parts
        self._known: dict[Key, int] = {}  # what the master sent, as far as it was taken over
        self._new: dict[Key, int] | None = None  # what it sent last, until all of that is taken over
        self._work: Iterator[None] | None = None
        self._from_s = 0.0
        self._unsaved, self._saved_s = False, 0.0

    def read(self) -> Table:
        """All offsets. Makes no table in a store that has no groups."""
        root = self._parts.root
        if (
            self._parts.groups is None
            and not (root / "config" / NAME).exists()
            and not path_of(root).exists()
        ):
            return {}
        table, found = self._table(), Table()
        for (topic, group, queue_id), offset in zip(table.keys, table.offsets(), strict=False):
            if offset != NO_OFFSET and queue_id >= 0:
                found.setdefault(f"{topic}{SEPARATOR}{group}", {})[str(queue_id)] = offset
        return found

    def begin(self) -> None:
        """Forgets what the master sent so far."""
        self._known.clear()
        self._new = self._work = None

    def follow(self, new: Table) -> None:
        """Takes a master's offsets; `work` writes them."""
        self._new, self._work = dict(_keys(new)), None

    def work(self, seconds: float) -> None:
        """Continues for about so long. Raises the errors of the table of offsets; then it tries again some seconds
        later."""
        now_s = monotonic_s()
        if now_s < self._from_s:
            return
        self._from_s = now_s + RETRY_S
        if self._new is not None:
            work = self._work or self._take(self._new)
            self._work = None  # if it fails, the next call begins anew
            while monotonic_s() < now_s + seconds:
                if next(work, self) is self:
                    self._new = None
                    break
            else:
                self._work = work
        self._from_s = 0.0

    def save_once(self) -> Progress:
        """Saves the offsets if they changed, every five seconds at most. It waits for the disk, so it has a thread of
        its own: the master waits for the reports of the one that follows. Raises the errors of a save."""
        if self._unsaved and monotonic_s() - self._saved_s >= SAVE_S:
            self._saved_s, self._unsaved = monotonic_s(), False
            try:
                self._table().save()
            except BaseException:
                self._unsaved = True
                raise
        return Progress(0)

    def _take(self, new: dict[Key, int]) -> Iterator[None]:
        for key, offset in new.items():
            if self._known.get(key) != offset:
                self._move(key, offset)
                yield
        for key in [key for key in self._known if key not in new]:
            self._move(key, NO_OFFSET)
            yield

    def _move(self, key: Key, offset: int) -> None:
        table, before = self._table(), self._known.get(key, NO_OFFSET)
        row = table.row(key)
        while True:
            own = table.offset(row)
            if offset == own or (offset < own and own != before):
                break
            if table.set_offset(row, offset, expected=own):
                self._unsaved = True
                break
        if offset == NO_OFFSET:
            self._known.pop(key, None)
        else:
            self._known[key] = offset

    def _table(self) -> OffsetTable:
        return table_of(self._parts).table


def _keys(table: Table) -> Iterator[tuple[Key, int]]:
    """Without names and numbers that are those of no group here."""
    for name, queues in table.items():
        topic, separator, group = name.partition(SEPARATOR)
        if separator and is_topic(topic) and is_group(group):
            for text, offset in queues.items():
                if QUEUE_ID.match(text) and int(text) <= QUEUE_ID_MAX:
                    yield (topic, group, int(text)), offset
