"""The light queues of an event: one of the worker that wrote it, and one of its workflow; the record is stored once.

The app's setting `cystore_lifecycle_light_queues` says which ones a process makes. A queue that exists gets all of its
events, whatever the setting of a process is: a reader relies on that from the queue's oldest event on. Events from
before it are found as in a store without the queue.

A light queue never costs an event. It is made only while the store has room for it: queues of tasks come first. If the
store refuses it all the same, the event is written without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery.exceptions import ImproperlyConfigured

from cystore.celery.base import events
from cystore.errors import did_you_mean

if TYPE_CHECKING:
    from cystore import MessageStore

SETTING = "cystore_lifecycle_light_queues"
WORKER, WORKFLOW, OFF = "worker", "workflow", "off"
DEFAULT = WORKER
NAMES_KEPT = 10_000
QUEUES_MOST = (
    8_192  # each place, even of a removed queue, adds a tenth of a millisecond to the store's first open
)


def kinds_of(conf: Any) -> frozenset[str]:
    """The kinds of light queues that the app asks for. Raises ImproperlyConfigured for other words."""
    value = conf.get(SETTING, DEFAULT)
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else [value]
    if words == [OFF]:
        return frozenset()
    if not words or not all(word in (WORKER, WORKFLOW) for word in words):
        raise ImproperlyConfigured(
            f'{SETTING} must be "{WORKER}", "{WORKER},{WORKFLOW}", "{WORKFLOW}" or "{OFF}", not {value!r}'
            f"{did_you_mean(value, (WORKER, WORKFLOW, OFF))}"
        )
    return frozenset(words)


def queues_most(store: MessageStore) -> int:
    """A store with so many queues gets no more light queues from the log. It never forgets a queue, so at least half of
    the places are left for those of topics."""
    settings = store.settings
    return min(QUEUES_MOST, settings.max_lmq_consume_queue_num, settings.max_queues // 2)


class LightQueues:
    """Which light queues this process names for an event."""

    def __init__(self, conf: Any) -> None:
        self._kinds = kinds_of(conf)
        self.forget()

    def forget(self) -> None:
        """Looks at the store anew: it was opened again, or this is a child."""
        self._enabled: bool | None = None
        self._there: set[str] = set()
        self._too_many: set[str] = set()
        self._of_worker: dict[str, str] = {}

    def of(
        self, store: MessageStore, task_id: str | None, root_id: str | None, parent_id: str | None,
        group_id: str | None, worker: Any
    ) -> Sequence[str]:  # fmt: skip
        """The light queues of an event."""
        if self._enabled is None:
            self._enabled = events.has_light_queues(store)
        if not self._enabled:
            return ()
        found = []
        if isinstance(worker, str) and worker:
            name = self._of_worker.get(worker) or self._name_of(worker)
            if name in self._there or self._may_be_named(store, WORKER, name):
                found.append(name)
        if task_id and events.is_in_canvas(task_id, root_id, parent_id, group_id):
            name = events.workflow_queue(root_id or task_id)
            if name in self._there or self._may_be_named(store, WORKFLOW, name):
                found.append(name)
        return found

    def stays(self, names: Sequence[str], worker: Any) -> bool:
        """Whether `of` gives these names for each later event of the worker, of a task that stands alone. A queue that
        is there stays; one that is not there may be made by another process."""
        if not self._enabled or not worker:
            return True
        return bool(names) and self._there.issuperset(names)

    def there(self, store: MessageStore, names: Sequence[str]) -> Sequence[str]:
        """Those of the queues that the store has: it never refuses them."""
        return [name for name in names if self._is_there(store, name)]

    def _name_of(self, worker: str) -> str:
        if len(self._of_worker) >= NAMES_KEPT:
            self._of_worker.clear()
        name = self._of_worker[worker] = events.worker_queue(worker)
        return name

    def _is_there(self, store: MessageStore, name: str) -> bool:
        if store.next_queue_offset(name, 0) == 0:
            return False
        if len(self._there) >= NAMES_KEPT:
            self._there.clear()
        self._there.add(name)
        return True

    def _may_be_named(self, store: MessageStore, kind: str, name: str) -> bool:
        if self._is_there(store, name):
            return True
        if kind not in self._kinds or name in self._too_many:
            return False
        if store.stats()["queues"] < queues_most(store):
            return True
        if len(self._too_many) >= NAMES_KEPT:
            self._too_many.clear()
        self._too_many.add(name)
        return False
