"""The slave's side: takes over its master's facts, durably.

| fact | rule |
|---|---|
| offset of a group | the higher one of both; a reset on the master while the slave is connected moves it back |
| setting | the master's, unless the process that follows gives its own |
| queue without messages | continues to count where the master's does |
| deleted topic | is deleted here too |

A removal may be a topic's deletion, or the end of a queue whose messages all expired. Expired messages stay here until
they expire here. The last message of a deleted queue is still in the master's log, and that tells the two apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.remove import QueueRemover
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.engine.log.append_policy import FLUSH_SYNC, AppendPolicy
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.engine.manifest.removed_queues import RemovedQueue
from cystore.engine.manifest.store_settings import LIGHT_QUEUES, configure
from cystore.errors import OffsetError, StoreClosedError, StoreConfigError, StoreError
from cystore.ha.facts.shipment import GroupOffsets, Shipment
from cystore.layout import SCHEDULE_TOPIC
from cystore.services.compact.compactor import Compactor

log = logging.getLogger("cystore")

WORK_S = 0.02  # of one turn: the master waits for this thread's reports
FINISH_S = 2.0
RETRY_S = 5.0


class FollowedFacts:
    """The facts of a slave's store. One thread uses it, in the process that follows."""

    def __init__(
        self,
        control: Control,
        manifest: Manifest,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        remover: QueueRemover,
        compactor: Compactor,
        policy: AppendPolicy,
        groups: GroupOffsets | None,
        config: StoreConfig,
    ) -> None:
        self._control, self._manifest, self._queues = control, manifest, queues
        self._dispatcher, self._remover, self._compactor = dispatcher, remover, compactor
        self._policy, self._groups, self._config = policy, groups, config
        self._left: set[RemovedQueue] = set()  # removals that are none here
        self._again: Shipment | None = None  # could not be taken over completely
        self._again_s = 0.0
        self._failed = ""

    def begin(self) -> None:
        """A connection begins: the master's next facts are its first ones."""
        self._left.clear()
        self._again = None
        if self._groups is not None:
            self._groups.begin()

    def take(self, data: bytes) -> None:
        """Takes over the facts in a frame. This log has all records that they speak of. Raises ReplicationError for
        facts that cannot be read. Tries again later if the store cannot take them over, for example on a full disk."""
        self._take(Shipment.parse(data))

    def work(self) -> None:
        """Continues what `take` began, for a short while."""
        if self._again is not None and monotonic_s() >= self._again_s:
            self._take(self._again)
        if self._groups is not None:
            groups = self._groups
            self._attempt(lambda: groups.work(WORK_S))

    def finish(self) -> None:
        """The connection is over. This store may become the master at once, so it continues for longer."""
        if self._groups is not None:
            try:
                self._groups.work(FINISH_S)
            except StoreError as error:
                log.info("%s: %s", self._manifest.root, error)

    def _take(self, shipment: Shipment) -> None:
        done = [
            self._attempt(lambda: self._settings(shipment)),
            self._attempt(lambda: self._removed(shipment)),
        ]
        if self._groups is not None:
            self._groups.follow(shipment.groups)
        self._again = None if all(done) else shipment
        if all(done):
            self._failed = ""
        self._again_s = monotonic_s() + RETRY_S

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except StoreClosedError:
            raise
        except StoreError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("%s: cannot take over facts of its master yet: %s", self._manifest.root, error)
            return False
        return True

    # ------------------------------------------------------------------------------------------------ settings

    def _settings(self, shipment: Shipment) -> None:
        known = self._manifest.snapshot().settings
        own = {name for name in shipment.settings if self._config.gives(name)}
        if own & set(LIGHT_QUEUES):
            own |= set(LIGHT_QUEUES)
        wanted = {
            name: value
            for name, value in shipment.settings.items()
            if name not in own and known.get(name) != value
        }
        if not wanted:
            return
        try:
            configure(self._manifest, wanted)
        except StoreConfigError as error:  # a master of a later release may know more values
            raise StoreError(f"the master's settings: {error}", path=self._manifest.root) from error
        log.info("%s: has its master's settings now: %s", self._manifest.root, wanted)

    # ------------------------------------------------------------------------------------------------ queues

    def _removed(self, shipment: Shipment) -> None:
        known = self._manifest.snapshot().removed
        rows = [
            row
            for row in shipment.removed
            if row.end > known.end((row.topic, row.queue_id)) and row not in self._left
        ]
        if not rows:
            return
        self._dispatcher.run_to_end()
        taken: list[RemovedQueue] = []
        deleted: dict[str, int] = {}
        for row in rows:
            slot = self._control.find_queue(row.topic, row.queue_id)
            if slot < 0 or not self._control.queue_end(slot):
                self._count_from(row)
                taken.append(row)
            elif row.topic != SCHEDULE_TOPIC and self._is_deleted(row, slot, shipment.begin):
                taken.append(row)
                deleted[row.topic] = max(row.physical_end, deleted.get(row.topic, 0))
            else:
                self._left.add(row)
        if not taken:
            return
        self._policy.reach(self._control.wrote, FLUSH_SYNC)  # no deletion outlives its records in a power cut
        changes = [self._compactor.deletion(topic, end) for topic, end in deleted.items()]

        def with_deletions(facts: Facts) -> Facts:
            for change in changes:
                facts = change(facts)
            return facts

        self._manifest.remove_queues(taken, with_deletions)
        self._remover.settle()
        for topic in deleted:
            log.warning("%s: deleted the topic %s, as its master did", self._manifest.root, topic)

    def _count_from(self, row: RemovedQueue) -> None:
        """Adds a queue whose messages are all gone: its next message gets the next queue offset."""
        control = self._control
        while control.queue_count >= control.queue_capacity:
            self._policy.more_queues()
        with control.held("dispatch"), control.held("append"):
            slot = control.find_queue(row.topic, row.queue_id)
            if slot < 0:
                control.add_queue(row.topic, row.queue_id, next=row.end, dispatched=row.end, minimum=row.end)
            elif not control.queue_end(slot):  # a process was killed before it had added it
                control.set_queue_dispatched(slot, row.end)
                control.raise_queue_minimum(slot, row.end)
                control.set_queue_next(slot, row.end)

    def _is_deleted(self, row: RemovedQueue, slot: int, begin: int) -> bool:
        queue = self._queues.get(slot)
        if not queue.min_offset < row.end <= queue.max_offset:
            return False
        try:
            entry = queue.entry(row.end - 1)
        except OffsetError:
            return False
        return entry is not None and begin <= entry.physical_offset < row.physical_end
