"""The facts that a master ships: JSON in one frame, which the slave checks before it uses any of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from cystore.derived.files.offsets import QUEUE_ID_MAX, check_table
from cystore.engine.files.progress import Progress
from cystore.engine.manifest.removed_queues import Removed, RemovedQueue, removed_of
from cystore.engine.manifest.store_settings import DELAY_LEVELS, LIGHT_QUEUES
from cystore.engine.manifest.topic_names import is_topic
from cystore.errors import ReplicationError

# The store's settings that follow. The others of its policy are about one host's disk, or shape existing files.
FOLLOWED = (
    "file_reserved_time_h",
    "delete_when",
    "compacted_topics",
    "roll_interval_h",
    DELAY_LEVELS,
    *LIGHT_QUEUES,
)

Table = dict[str, dict[str, int]]  # "topic@group": queue id: offset; as in config/consumerOffset.json


class GroupOffsets(Protocol):
    """The offsets of a store's consumer groups. They belong to a room above this one."""

    def read(self) -> Table:
        """All offsets."""

    def follow(self, new: Table) -> None:
        """Takes a master's offsets; `work` does it, piece by piece."""

    def begin(self) -> None:
        """Forgets what the master sent so far: another master, or a later connection, begins."""

    def work(self, seconds: float) -> None:
        """Continues for about so long."""

    def save_once(self) -> Progress:
        """Makes what follows durable, from time to time. For a thread of its own."""


@dataclass(frozen=True)
class Shipment:
    """`begin`: the begin of the master's log."""

    groups: Table
    settings: dict[str, Any]
    removed: tuple[RemovedQueue, ...]
    begin: int

    def data(self) -> bytes:
        """The content of the frame."""
        content = {
            "groups": self.groups,
            "settings": self.settings,
            "removed": [list(row) for row in self.removed],
            "begin": self.begin,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Shipment:
        """Raises ReplicationError."""
        try:
            content: Any = json.loads(data)
            groups = check_table("groups", content["groups"])
            if not all(isinstance(queues, dict) for queues in groups.values()):
                raise ValueError("a group has no queues")
            settings, begin = content["settings"], content["begin"]
            if not isinstance(settings, dict) or type(begin) is not int or begin < 0:
                raise ValueError("there are no settings, or no begin of the log")
            known = {
                name: settings[name] for name in FOLLOWED if type(settings.get(name)) in (int, bool, str)
            }
            removed = tuple(Removed(removed_of(row) for row in content["removed"]))
            for row in removed:
                if not is_topic(row.topic) or row.queue_id > QUEUE_ID_MAX:
                    raise ValueError(f"{row.topic[:200]!r}/{row.queue_id} is not a queue")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ReplicationError(f"the master's facts cannot be read: {str(error)[:300]}") from None
        return cls(groups, known, removed, begin)
