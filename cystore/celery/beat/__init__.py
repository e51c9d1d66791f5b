"""`celery -A APP beat -S cystore.celery.beat:Scheduler`: a beat whose schedules are in the store of the result backend.

The app's `beat_schedule` is taken over when it starts; other schedules are made and changed while it runs
(`cystore.celery.schedules.entries`, `celery -A APP cystore schedules`). A run is an append to the store, so none is
lost and none happens twice, over kills and with several beats at once: they share a lease. The workers of the store run
its schedules as well, so beat only has to take over the app's own.

Source: celery.beat.Scheduler.

May import `cystore.celery.tasks` and what is below it: docs/architecture.md.
"""

from __future__ import annotations

from typing import Any

from celery.beat import ScheduleEntry
from celery.beat import Scheduler as CelerysScheduler
from celery.exceptions import ImproperlyConfigured

from cystore.celery.duties import duty_runs
from cystore.celery.schedules import due_times, entries
from cystore.celery.schedules.due_times import ScheduleError

LOOK_S = 1.0  # a schedule that is added meanwhile may be due soon


class Scheduler(CelerysScheduler):
    """Beat's schedule, in the store. Raises ImproperlyConfigured for an app without a store on this host, and for a
    schedule of a class that the store does not keep."""

    def setup_schedule(self) -> None:
        """Takes over the app's schedule."""
        self.install_default_entries(self.data)
        try:
            entries.merge(self.app, self._store())
        except ScheduleError as error:
            raise ImproperlyConfigured(str(error)) from error

    def _store(self) -> Any:
        store = duty_runs.store_of(self.app)
        if not self.app.backend.location.path:
            raise ImproperlyConfigured(
                "this beat needs the store on its host: result_backend = cystore:///path"
            )
        return store

    def tick(self, *unused: Any, **also_unused: Any) -> float:
        """Runs what is due, unless another process does; returns the seconds until the next look."""
        store = self._store()
        duty_runs.run(self.app, duty_runs.DELIVER_DELAYED, fleet=False)
        if duty_runs.has_left_work(store):
            return 0.0
        due_in_ms = store.maintenance.due_in_ms
        return LOOK_S if due_in_ms is None else min(max(due_in_ms / 1000, 0.01), LOOK_S)

    def get_schedule(self) -> dict[str, Any]:
        """The schedules of the store as Celery's entries, by name; for people, and for remote control."""
        found = {}
        for entry in entries.listed(self._store()):
            made = ScheduleEntry(
                name=entry.name, task=entry.task, schedule=due_times.EVERY_MS_LEAST / 1000, args=tuple(entry.args),
                kwargs=dict(entry.kwargs), options=dict(entry.options), total_run_count=entry.runs, app=self.app,
            )  # fmt: skip
            found[entry.name] = made
        return found

    def set_schedule(self, schedule: Any) -> None:
        """Nothing: schedules are changed in the store."""

    schedule = property(get_schedule, set_schedule)

    @property
    def info(self) -> str:
        """Where the schedules are."""
        return f"    . store -> {self.app.backend.location.path}"
