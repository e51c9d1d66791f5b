"""`celery cystore tail`: the newest entries, and new ones as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from cystore import MessageStore
from cystore.celery import history
from cystore.celery.base import records
from cystore.celery.base.events import Event
from cystore.celery.commands.shared import app_store, command_options, entry_display
from cystore.celery.history import Transition
from cystore.operate.command import FOUND_WRONG
from cystore.operate.exits import INTERRUPTED
from cystore.operate.output import write_note
from cystore.operate.wait_for_store import Place
from cystore.operate.wait_for_store import follow as follow_store


class _Tail:
    """Writes entries in the order in which they happened; `position` is the place in the log up to which that is
    done."""

    def __init__(
        self, ctx: click.Context, name: str | None, states: tuple[str, ...], lines: int, as_json: bool
    ) -> None:
        self._ctx, self._name = ctx, name and records.kept_name(name)
        self._states, self._lines, self._as_json = states, lines, as_json
        self.position: int | None = None
        self.names_nothing = False  # at the first look no task had the name
        self._place = Place()

    def look(self, store: MessageStore) -> int:
        """Writes new entries: at first the newest ones."""
        position = self._place.position_in(store, self.position or 0)
        end, begin = store.wrote_position, None if self.position is None else position
        if begin is None:
            command_options.check_states(store, self._states)
            if note := app_store.no_such_name(self._ctx, store):
                self.names_nothing = True
                write_note(note)
        entries = self._newest(store, end) if begin is None else self._later(store, min(begin, end), end)
        for entry in entries:
            entry_display.write_entry(entry, as_json=self._as_json)
        sys.stdout.flush()
        self.position = end
        return end

    def _newest(self, store: MessageStore, end: int) -> list[Event | Transition]:
        found = history.entries(store, name=self._name, states=self._states)
        return list(islice((entry for entry in found if entry.physical_offset < end), self._lines))[::-1]

    def _later(self, store: MessageStore, begin: int, end: int) -> Iterator[Event | Transition]:
        minimum = store.stats()["min_physical_offset"]
        if begin < minimum:
            write_note(f"the log from {begin} to {minimum} was cleaned before it could be shown")
            begin = minimum
        for message in store.scan(begin, end):
            entry = history.entry_of(message)
            if (
                entry is not None
                and (self._name is None or entry.name == self._name)
                and (not self._states or entry.state in self._states)
            ):
                yield entry


@click.command(
    "tail",
    epilog=command_options.examples(
        "tail -f", "tail -n 50 --name shop.charge --state FAILED --state RETRIED"
    ),
)
@click.option("-f", "--follow", "go_on", is_flag=True, help="Continue with new entries; Ctrl-C ends it.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Begin with this number of entries.",
)
@click.option("--name", help="Only tasks of this name.")
@command_options.states_option("Only this event or result state; may be repeated.")
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, go_on: bool, lines: int, name: str | None, states: tuple[str, ...], as_json: bool
) -> None:
    """The newest events and results in the order in which they happened, and with -f new ones of any process."""
    location = app_store.location_of(ctx)
    shown = _Tail(ctx, name, states, lines, as_json)
    try:
        with app_store.as_command_errors():
            follow_store(Path(location.path), lambda: app_store.reading(location), shown.look, go_on=go_on)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)
    if shown.names_nothing:
        ctx.exit(FOUND_WRONG)
