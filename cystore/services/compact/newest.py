"""Reads the newest record of a key, or of each key of a topic: from the log, and from the compacted file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import text
from cystore._native.record.message import Message, message_at
from cystore.derived.reading.reader import Reader
from cystore.derived.reading.request import stored_topic
from cystore.engine.files.compacted_file import SEED_BYTES, TRIES, CompactedFile
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError, StoreConfigError, StoreError
from cystore.services.compact.compactor import Compactor
from cystore.services.compact.selection import Selection, matches

log = logging.getLogger("cystore")

AT_ONCE = 8  # messages of one key that are examined first


class Newest:
    """The newest records of one store's compacted topics. Safe for threads."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        reader: Reader,
        compactor: Compactor,
    ) -> None:
        self._control, self._log = control, commit_log
        self._reader, self._compactor = reader, compactor
        self._file: CompactedFile | None = None
        self._looked_at: tuple[int, tuple[str, ...]] = (-1, ())

    def latest(self, topic: str, key: str) -> Message | None:
        """See MessageStore.latest."""
        name = stored_topic(topic)
        key = text("key", key, MessageIllegalError)
        if not key or " " in key:
            raise MessageIllegalError(f"key: must not be empty and must not contain a blank, not {key!r}")
        self._check_topic(topic)
        found = self._in_log(topic, key)
        if found is None:
            found = self._in_file(name, key.encode())
        return None if found is None or self._is_gone(found) else found

    def _check_topic(self, topic: str) -> None:
        if not matches(self._compactor.topics, topic):
            raise StoreConfigError(
                f"topic {topic!r} is not compacted: `cystore config PATH --set compacted_topics=...` names the topics "
                "that are"
            )

    def _in_log(self, topic: str, key: str) -> Message | None:
        """The newest message in the log. The query also finds unique keys, which do not count here. Raises
        CorruptRecordError if a damaged record may be a newer one."""
        count = AT_ONCE
        while True:
            found = self._reader.query(topic, key, count, with_expired=True)
            for message in found:
                if key in message.keys:
                    offset = message.physical_offset or 0
                    for error in found.damaged:
                        if error.offset is None or error.offset > offset:
                            raise error
                    return message
            if len(found) < count:
                if found.damaged:
                    raise found.damaged[0]
                return None
            count *= 8

    def _in_file(self, topic: bytes, key: bytes) -> Message | None:
        """The newest record in the file. A record that left the log before the query is in the present file, unless a
        newer one replaced it."""
        file = self._file_in_force()
        if file is None:
            return None
        try:
            at = file.find(topic, key)
        except CorruptRecordError:
            mended = self._compactor.newest()
            if mended is None or mended is file:
                raise
            self._file = file = mended
            at = file.find(topic, key)
        if at < 0:
            return None
        message = message_at(file.file, at, file.records_end - at)
        return message if self._is_in_history(message) else None

    def _file_in_force(self) -> CompactedFile | None:
        """A file that covers everything that was cleaned. Lists the folder if the log's minimum is beyond the known
        file."""
        minimum, topics = self._control.min_physical_offset, self._compactor.topics
        file = self._file
        header = None if file is None else file.header
        stale = header is None or header.covered < minimum or self._compactor.lacks_topics(header)
        if stale and self._looked_at != (minimum, topics):
            self._file = file = self._compactor.newest()
            self._looked_at = minimum, topics
        return file

    def _is_in_history(self, message: Message) -> bool:
        """False for a record of a part of the log that was cut since; a slave's log may be cut."""
        offset = message.physical_offset or 0
        if offset < self._control.min_physical_offset:
            return True
        try:
            return self._log.read(offset).body_crc == message.body_crc
        except CorruptRecordError:
            return True
        except OffsetError:
            return offset < self._control.min_physical_offset

    def _is_gone(self, message: Message) -> bool:
        """Whether the key is gone: by an empty body, by the message's expiry, or by the removal of its topic."""
        if not len(message.body):
            return True
        until = message.expires_at_ms
        if until is not None and until <= clock.now_ms(self._control):
            return True
        return (message.physical_offset or 0) < self._compactor.deleted().get(message.topic, 0)

    def all_of(self, topic: str) -> Iterator[Message]:
        """See MessageStore.compacted."""
        stored_topic(topic)
        self._check_topic(topic)
        for _ in range(TRIES):
            minimum = self._control.min_physical_offset
            chosen = self._choose(topic, minimum)
            if (
                self._control.min_physical_offset == minimum
            ):  # else a clean took records before they were seen
                return (message for message in chosen.messages() if not self._is_gone(message))
        raise StoreError(
            "cleaning removes segments faster than they can be read", path=self._log.files.directory
        )

    def _choose(self, topic: str, begin: int) -> Selection:
        """The newest record of each key, from the file in force and the log from `begin` on."""
        chosen = Selection(self._log, (topic,), self._compactor.deleted(), os.urandom(SEED_BYTES))
        file, wrote = self._compactor.newest(), self._control.wrote
        if file is not None:
            header = file.header
            trusted = not (
                header is None
                or self._compactor.log_was_truncated(header)
                or self._compactor.lacks_topics(header)
            )
            if (
                chosen.take_file(file, None if trusted or header is None else begin)
                and trusted
                and header is not None
            ):
                begin = max(begin, header.covered)
        chosen.take_log(begin, wrote)
        return chosen
