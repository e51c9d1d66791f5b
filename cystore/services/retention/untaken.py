"""Messages of the plugin that were delivered, and that no worker has taken yet.

Whoever has the store open delivers a due task, or a due schedule, into its topic. Only a worker takes it from there. So
that nothing is lost while no worker runs, cleaning keeps the log from the first message on that the topic's group has
not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cystore._native.memory.control import Control
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.engine.log.removal import Need
from cystore.layout import TAKEN_TOPICS

QUEUE_ID = 0  # the plugin's only one


class Untaken:
    """Finds them in one store. `group_offset` gives the offset of the group that has the topic's name; None without
    one: then nothing was taken."""

    def __init__(self, control: Control, queues: ConsumeQueues) -> None:
        self._control, self._queues = control, queues
        self.group_offset: Callable[[str], int | None] = lambda topic: None

    def needs(self) -> Iterator[Need]:
        """The need of each topic with such a message. Raises StoreError if offsets of groups cannot be read."""
        for topic in TAKEN_TOPICS:
            slot = self._control.find_queue(topic, QUEUE_ID)
            if slot < 0:
                continue
            queue = self._queues.get(slot)
            begin = max(self.group_offset(topic) or 0, self._control.queue_minimum(slot))
            at = queue.next_message(begin, queue.max_offset)
            entry = None if at is None else queue.entry(at)
            if entry is not None:
                yield Need(f"messages of {topic} that no worker has taken", entry.physical_offset)
