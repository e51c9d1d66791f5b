"""Removal of queues: topics that an operator deletes, and queues whose messages are all gone.

Source: DefaultMessageStore.deleteTopics, cleanUnusedTopic and cleanExpiredConsumerQueue. One difference: a removed
queue continues to count. RocketMQ forgets the count, and gives queue offsets out twice.

Readers, writers and dispatchers of other processes continue meanwhile. First the manifest records the removal. Then the
queue's minimum moves, so readers get OFFSET_TOO_SMALL. Then the files are removed, under the dispatch lock, one queue a
turn. The remover raises the queue's `removals` in the control block before and after that. A process that sees another
number there ends its mappings of the queue: dispatchers compare it for each entry, under the dispatch lock, and readers
before each look at a file. After a kill between two steps the next `settle` of any process, or recovery, does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from cystore._native.derived import queue as kernel
from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.engine.manifest.removed_queues import RemovedQueue
from cystore.errors import StoreConfigError
from cystore.layout import refuse_own_topic
from cystore.system.threads.reentry import undisturbed
from cystore.value_class import value_class

log = logging.getLogger("cystore")

LOCK_WAIT_MS = 1_000


@value_class(frozen=True)
class Removal:
    """The removed queues, messages (places in queues), and files, as numbers."""

    queues: int = 0
    messages: int = 0
    files: int = 0


class QueueRemover:
    """Removes queues of one store. Any process may do it."""

    def __init__(
        self, control: Control, queues: ConsumeQueues, dispatcher: Dispatcher, manifest: Manifest
    ) -> None:
        self._control, self._queues, self._dispatcher, self._manifest = control, queues, dispatcher, manifest
        self._settled = -1  # the version of the manifest whose removals this process has finished

    def delete_topic(self, topic: str, with_it: Callable[[Facts], Facts] = lambda facts: facts) -> Removal:
        """Removes every queue of a topic, with all messages that are in it by now. `with_it` changes the manifest by
        the same write that enters the removal. Raises StoreConfigError for a topic that the store writes for
        itself."""
        refuse_own_topic(topic, "delete_topic", StoreConfigError)
        self._dispatcher.run_to_end()
        control, rows, messages = self._control, [], 0
        known = self._manifest.snapshot().removed
        for slot in range(control.queue_count):
            name, queue_id, _, _, minimum = control.queue(slot)
            if name != topic:
                continue
            # In this order: every record below the queue offset is below the physical offset.
            end = control.queue_dispatched(slot)
            if end > known.end((topic, queue_id)):
                rows.append(RemovedQueue(topic, queue_id, end, control.dispatched))
                messages += max(end - minimum, 0)
        self._manifest.remove_queues(rows, with_it)
        if not rows:
            return Removal()
        failpoint("remove.listed")
        removed = self.settle()
        log.warning(
            "%s: deleted the topic %s: %d queues, %d messages", control.file.path, topic, len(rows), messages
        )
        return Removal(len(rows), messages, removed.files)

    def settle(self, until_s: float | None = None) -> Removal:
        """Finishes the removals that the manifest records, and removes the files of queues without messages, until the
        time is up."""
        facts = self._manifest.snapshot()
        if facts.sequence != self._settled:
            for row in facts.removed:
                slot = self._control.find_queue(row.topic, row.queue_id)
                if slot >= 0:
                    self._control.raise_queue_minimum(slot, row.end)
                    failpoint("remove.minimum")
            self._settled = facts.sequence
        unused = kernel.queues_unused(self._control)
        self._list(unused)
        queues = removed = 0
        for slot in unused:
            if until_s is not None and monotonic_s() >= until_s:
                break
            count = undisturbed(partial(self._remove, slot))
            queues, removed = queues + (count > 0), removed + count
            failpoint("remove.queue")
        self._manifest.forget_removed(self._control.min_physical_offset)
        return Removal(queues, 0, removed)

    def _remove(self, slot: int) -> int:
        control, listed = self._control, self._manifest.snapshot().removed
        with (
            control.held(
                "clean", timeout_ms=LOCK_WAIT_MS
            ),  # no follower reads entries in these files meanwhile
            control.held("dispatch", timeout_ms=LOCK_WAIT_MS),
        ):
            queue = self._queues.get(slot)
            if queue.max_offset > listed.end((queue.topic, queue.queue_id)):
                return 0  # a message was appended since
            removed = queue.remove_unused()
            self._dispatcher.forget_queue(slot)
        return removed

    def _list(self, unused: list[int]) -> None:
        """Enters the counts of unused queues in the manifest before their files are removed: config/queueOffset.json
        alone may be damaged."""
        known, rows = self._manifest.snapshot().removed, []
        for slot in unused:
            # The minimum is read last. A message that was dispatched since the look for unused queues is at or behind
            # it, and stays.
            topic, queue_id, _, dispatched, minimum = self._control.queue(slot)
            if minimum >= dispatched > known.end((topic, queue_id)):
                rows.append(RemovedQueue(topic, queue_id, dispatched, self._control.dispatched))
        if rows:
            self._manifest.remove_queues(rows)
            failpoint("remove.listed")
