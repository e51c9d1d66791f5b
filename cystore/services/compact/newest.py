"""Reads the newest record of a key, or of each key of a topic: from the log, and from the compacted file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from cystore._native.lookup.visible import has_expired
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import text
from cystore._native.record.message import Message, message_at
from cystore.derived.reading.reader import Reader
from cystore.derived.reading.request import stored_topic
from cystore.engine.files.compacted_file import SEED_BYTES, TRIES, CompactedFile, path_of
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError, StoreConfigError, StoreError
from cystore.services.compact.compactor import Compactor
from cystore.services.compact.in_force import Standing, Verdict
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
        self._is_sound = False
        self._looked_at: tuple[int, tuple[str, ...], int] = (-1, (), -1)

    def latest(self, topic: str, key: str, *, certain: bool = False) -> Message | None:
        """See MessageStore.latest."""
        name = stored_topic(topic)
        key = text("key", key, MessageIllegalError)
        if not key or " " in key:
            raise MessageIllegalError(f"key: must not be empty and must not contain a blank, not {key!r}")
        self._check_topic(topic)
        found = self._in_log(topic, key)
        if found is None:
            found = self._in_file(name, key.encode())
        if certain:
            self._check_certain(topic, key, found)
        return None if found is None or self._is_gone(found) else found

    def _check_certain(self, topic: str, key: str, found: Message | None) -> None:
        """Raises CorruptRecordError if a newer record of the key may have been damaged."""
        in_force = self._compactor.in_force
        below = in_force.uncertain_below(in_force.verdict())
        if (0 if found is None else found.physical_offset or 0) < below:
            raise CorruptRecordError(
                f"the newest message of key {key!r} of topic {topic!r} is uncertain: records with unknown keys were "
                f"damaged or lost below {below} in the log",
                offset=None if found is None else found.physical_offset,
                path=self._log.files.directory,
            )

    def _check_topic(self, topic: str) -> None:
        if topic.endswith("*"):
            raise MessageIllegalError(
                f"topic: {topic!r} is a pattern of compacted_topics; ask for one topic at a time"
            )
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
            mended = self._compactor.in_force.verdict().file
            if mended is None or mended is file:
                raise
            self._file = file = mended
            at = file.find(topic, key)
        if at < 0:
            return None
        message = message_at(file.file, at, file.records_end - at)
        return message if self._is_in_history(message) else None

    def _file_in_force(self) -> CompactedFile | None:
        """A file that covers everything that was cleaned; None: no value counts but those of the log. Lists the folder
        if the log's minimum is beyond the known file. Raises CorruptRecordError if the file is missing."""
        minimum, topics, in_force = (
            self._control.min_physical_offset,
            self._compactor.topics,
            self._compactor.in_force,
        )
        header = None if self._file is None else self._file.header
        stale = (
            not self._is_sound
            or header is None
            or header.covered < minimum
            or self._compactor.lacks_topics(header)
        )
        seen = minimum, topics, in_force.version
        if stale and self._looked_at != seen:
            verdict = in_force.verdict()
            self._is_sound = verdict.standing is Standing.SOUND
            self._file = None if verdict.standing in (Standing.GAP, Standing.LOST) else verdict.file
            self._check_there(verdict)
            self._looked_at = seen
        return self._file

    def _check_there(self, verdict: Verdict) -> None:
        known = verdict.facts.file
        if verdict.standing is Standing.LOST and known is not None and self._control.min_physical_offset > 0:
            raise CorruptRecordError(
                "the compacted file is missing, and with it values that left the log: put it back from a copy, or let "
                "`cystore compact PATH` begin anew",
                path=path_of(self._compactor.root, known.number),
            )

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
        if not len(message.body) or has_expired(self._control, message):
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
        wrote = self._reader.log_end
        verdict = self._compactor.in_force.verdict()
        self._check_there(verdict)
        file, header = verdict.file, verdict.header
        sound = verdict.standing is Standing.SOUND and not verdict.lacks(self._compactor.topics)
        if file is not None and verdict.standing not in (Standing.GAP, Standing.LOST):
            known = verdict.facts.file
            end = known.records_end if header is None and known is not None else 0
            whole = chosen.take_file(file, begin if verdict.standing is Standing.CUT else None, end=end)
            if whole and sound and header is not None:
                begin = max(begin, header.covered)
        chosen.take_log(begin, wrote)
        return chosen
