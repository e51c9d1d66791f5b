"""What keeps a store in order: cleaning, retention, holds, the archive's mark, the scrub, checkpoints and duties.

`MessageStore` has all of it; here it stands apart from what programs that put and get use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from cystore._native import store_clock
from cystore._native.exact import any_text
from cystore.archive import Archived, ArchiveMark
from cystore.attach import Attachment
from cystore.config import StoreConfig
from cystore.derived.remove import Removal
from cystore.engine.progress import Progress
from cystore.engine.store_settings import configure
from cystore.errors import StoreConfigError
from cystore.holds import Hold
from cystore.layout import FLAGS
from cystore.services.clean import Cleaned
from cystore.services.duties import Duties
from cystore.services.maintenance import Maintenance, maintenance_of
from cystore.services.scrub import SLICE_BYTES, Scrubbed, Scrubber
from cystore.system.folders import check_place


class StoreUpkeep(ABC):
    """The part of a `MessageStore` that operators and duties use."""

    __slots__ = ()

    @abstractmethod
    def _attached(self) -> Attachment: ...

    @abstractmethod
    def _writable(self) -> Attachment: ...

    def clean(self, max_segments: int | None = None) -> Cleaned:
        """Removes what expired (file_reserved_time_h), at any hour: whole segments, oldest first, then what only led there.

        Views of bodies stay readable. The service "clean" does the same at delete_when, and when the disk fills up (RocketMQ's
        executeDeleteFilesManually).
        """
        return self._writable().cleaner.clean(max_segments)

    def let_pages_go(self) -> None:
        """Takes the pages of mapped files out of this process's memory (its resident size), whether it wrote or read them. They stay in the
        page cache; the next touch is a page fault. For a process whose memory is limited: shared pages count as its own."""
        parts = self._attached()
        parts.commit_log.files.let_pages_go(parts.control.wrote)

    def delete_topic(self, topic: str) -> Removal:
        """Removes all queues of a topic with the messages that are in them by now (RocketMQ's deleteTopic), for every process.

        Readers get OFFSET_TOO_SMALL. The topic goes on counting: a message that is put later gets the next queue offset. Records stay
        in the log until their segment expires, so `query`, `read` and `scan` find them till then. Delayed messages are still delivered.
        Raises StoreConfigError for the topic of delayed messages.
        """
        return self._writable().remover.delete_topic(any_text("topic", topic, StoreConfigError))

    def remove_unused_queues(self) -> Removal:
        """Removes the files of queues that have no message any more (cleanExpiredConsumerQueue, cleanUnusedTopic). They go on
        counting. Every clean does the same."""
        return self._writable().remover.settle()

    def configure(self, **settings: Any) -> None:
        """Changes the store's retention policy, for every process that has it open or opens it: it wins over their own settings. Other
        delay levels hold from the next first open on. None takes a value away again. Raises StoreConfigError."""
        configure(self._writable().manifest, settings)

    @property
    def settings(self) -> StoreConfig:
        """The settings that hold now. What shapes the files, and the retention policy, are the store's; `config` is what was given."""
        return self._attached().cleaner.settings

    def hold(self, name: str, physical_offset: int, *, max_age_ms: int | None = None) -> Hold:
        """From now on no clean removes what is at `physical_offset` or behind it, until the hold moves on or is released.

        Records older than `max_age_ms` go all the same, with a warning: a hold that was forgotten does not fill the disk. The
        answer says where the hold begins: at the log's minimum where that is beyond `physical_offset`. Holds outlive processes.
        Raises StoreConfigError.
        """
        return self._writable().cleaner.holds.set(name, physical_offset, max_age_ms)

    def release(self, name: str) -> bool:
        """Ends a hold; False when there was none of that name."""
        return self._writable().cleaner.holds.release(any_text("name of the hold", name, StoreConfigError))

    def holds(self) -> Mapping[str, Hold]:
        """Every hold by name."""
        return self._attached().cleaner.holds.read()

    def archived(self) -> Archived | None:
        """What of the log is in an archive; from its `up_to` on no clean removes anything. None: there is no archive, and no such
        hold. Raises StoreFormatError when that cannot be told."""
        return self._attached().cleaner.archive.read()

    def resume_cleaning(self) -> bool:
        """Whoever needs old records holds them now, an operator says: ends the pause that a manifest which could not be read begins."""
        return self._writable().manifest.resume_cleaning()

    @property
    def archive_mark(self) -> ArchiveMark:
        """Where an archive job says what is archived."""
        return self._writable().cleaner.archive

    def clean_due(self) -> Progress:
        """One turn of the service "clean": what `clean` does when its hour has come (delete_when) or the disk fills up, at most ten
        segments; begins a new segment by time (roll_interval_h), and switches writing off on a full disk."""
        return self._writable().cleaner.run_once()

    def flush_log(self) -> int:
        """Makes what was appended so far durable, and no more; returns how many bytes were not. Raises FlushFailedError,
        StoreTimeoutError after sync_flush_timeout_ms."""
        parts = self._writable()
        wrote, before = parts.control.wrote, parts.control.flushed
        parts.flusher.flush_to(wrote)
        return max(wrote - before, 0)

    def checkpoint(self) -> int:
        """Makes queues and index durable as far as they are dispatched, then the checkpoint and the queues' next offsets; returns
        how many bytes of log the index was behind. Raises what `flush_log` raises."""
        parts = self._writable()
        behind = parts.control.dispatched - parts.control.index_flushed
        parts.derived_flusher.flush_dispatched()
        parts.derived_flusher.save_queue_offsets()
        return max(behind, 0)

    def scrub(self, max_bytes: int = SLICE_BYTES, *, pause_ms: int = 0) -> Scrubbed:
        """Verifies the next slice of the store, about `max_bytes` of log: checksums, and queues and index against the records.

        Where it is stands in the manifest; wrong queue entries of whole records are written again. A new round begins
        `pause_ms` after the last one. Raises StoreIOError for what cannot be read.
        """
        parts = self._writable()
        scrubber = Scrubber(
            parts.root, parts.config, parts.control, parts.queues, parts.dispatcher, parts.manifest
        )
        return scrubber.run_once(max_bytes, pause_ms=pause_ms)

    @property
    def duties(self) -> Duties:
        """Who may do the work that is done for the whole store by one process at a time, and what came of it last."""
        return Duties(self._writable().control)

    @property
    def maintenance(self) -> Maintenance:
        """What the store needs to have done now. Cheap: for whoever does duties, to ask before."""
        return maintenance_of(self._writable())

    def used_disk_percent(self) -> float:
        """How much of the file system that holds the store is taken, as `df` counts."""
        return self._attached().cleaner.used_percent()

    def check_usable(self) -> None:
        """Raises what keeps every put from this process out until somebody mends it: StoreMovedError when the path leads elsewhere
        now, FlushFailedError after a failed sync. Costs 2 microseconds."""
        parts = self._attached()
        check_place(parts.root)
        parts.flusher.check()

    def check_room(self, *, refused: bool = False) -> None:
        """Raises StoreFullError while puts are refused because the disk is full. Looks at the disk in that case, or where a put was
        `refused`; else it costs a microsecond."""
        cleaner = self._writable().cleaner
        if refused:
            cleaner.watch_space()
        cleaner.check_space()

    def asked_to_leave(self) -> bool:
        """Whether `cystore handover` asks the processes of this store to close it, so that another version can open it. Everything works
        as before until then. Costs 1 microsecond."""
        return self._attached().control.handover

    def set_writable(self, writable: bool) -> None:
        """Switches writing off (or on again) for every attached process (RunningFlags)."""
        control = self._writable().control
        flag = FLAGS["FLAG_NOT_WRITABLE"][0]
        if writable:
            control.clear_flag(flag)
        else:
            control.set_flag(flag)

    def believe_clock(self) -> None:
        """The wall clock is right, an operator says: every process goes by it from now on, also after a jump (max_clock_jump_s)."""
        parts = self._writable()
        store_clock.believe(parts.control)
        parts.clock.look()
