"""What the commands share: the app's store, opened for reading; conditions as options; how an entry is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import MessageStore, StoreConfig, StoreError
from cystore.celery import homes
from cystore.celery.backend import CystoreBackend
from cystore.celery.events import Event
from cystore.celery.history import Transition
from cystore.celery.stores import DEFAULTS, EXAMPLE, Location
from cystore.cli.command import FAILED, FOUND_WRONG, for_reading
from cystore.cli.output import one_line, time_text, write_json, write_line, write_note
from cystore.cli.program import hint
from cystore.cli.progress import progress
from cystore.clock import now_ms

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SHOWN = ("worker", "queue", "runtime", "retries", "exception")  # of an event's details, on a line for people
RESULT_SHOWN = ("result", "traceback", "worker", "retries", "queue")  # of a result's meta, for programs
Function = TypeVar("Function", bound=Callable[..., Any])


class CommandError(click.ClickException):
    """One line on standard error, and exit code 2."""

    exit_code = FAILED


class Moment(click.ParamType):
    """A time, as ms since 1970: ISO 8601 (UTC where it does not say), or how long ago: 90s, 15m, 2h, 7d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms; fails with what is accepted."""
        if isinstance(value, int):
            return value
        ago = re.fullmatch(r"(\d{1,9})([smhd])", value)
        if ago:
            return now_ms() - int(ago[1]) * UNITS_MS[ago[2]]
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: give 2026-01-31T12:00:00Z, 2026-01-31, or 90s, 15m, 2h, 7d ago")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)


def conditions(function: Function) -> Function:
    """The options --name, --since and --until."""
    for option in (
        click.option("--until", "end_ms", type=Moment(), help="Not later than this."),
        click.option(
            "--since", "begin_ms", type=Moment(), default=0,
            help="Not before this: ISO 8601 (UTC), or 90s, 15m, 2h, 7d ago.",
        ),
        click.option("--name", help="Only tasks of this name."),
    ):  # fmt: skip
        function = option(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def limit_option(default: int) -> Callable[[Function], Function]:
    """The option --limit."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        help="At most so many; 0: all.",
    )


def examples(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  celery -A shop cystore {line}" for line in lines)


def location_of(ctx: click.Context) -> Location:
    """Where the app's store is."""
    try:
        backend = ctx.obj.app.backend
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if not isinstance(backend, CystoreBackend):
        raise CommandError(
            f"the app's result_backend is {backend.as_uri()}: these commands need {EXAMPLE}; name the app with "
            f"celery -A APP, or the store with --result-backend"
        )
    if not backend.location.path:
        raise CommandError(str(homes.no_store(backend)))
    return backend.location


@contextmanager
def told_errors() -> Iterator[None]:
    """Turns an error of the store into one line that says what to do."""
    try:
        yield
    except StoreError as error:
        raise CommandError(one_line(f"{error}{hint(error)}")) from error


def settings_of(location: Location) -> StoreConfig:
    """The store's settings, for reading."""
    return for_reading(StoreConfig.from_mapping({**DEFAULTS, **location.settings}))


@contextmanager
def reading(location: Location) -> Iterator[MessageStore]:
    """The store, opened for reading only: it is neither made nor changed."""
    with told_errors():
        config = settings_of(location)
        with progress() as report, cystore.open(Path(location.path), config=config, progress=report) as store:
            yield store


def entry_object(entry: Event | Transition) -> dict[str, Any]:
    """An entry for programs: what is common to all, then an event's details, or a result's."""
    common: dict[str, Any] = {
        "kind": "event" if isinstance(entry, Event) else "result",
        "time_ms": entry.time_ms,
        "time": time_text(entry.time_ms),
        "task_id": entry.task_id,
        "state": entry.state,
        "name": entry.name,
        "physical_offset": entry.physical_offset,
    }
    if isinstance(entry, Event):
        return {**common, "root_id": entry.root_id, "group_id": entry.group_id, **entry.details}
    meta = entry.meta
    told: dict[str, Any] = {key: meta[key] for key in RESULT_SHOWN if key in meta}
    return {**common, "content_type": entry.content_type, "size_bytes": entry.size_bytes, **told}


def entry_line(entry: Event | Transition) -> str:
    """An entry for people."""
    words = [
        time_text(entry.time_ms),
        f"{entry.state or '?':<14}" if isinstance(entry, Event) else f"={entry.state or '?':<13}",
        entry.task_id or "-",
        entry.name or "-",
    ]
    if isinstance(entry, Event):
        details = entry.details
        words += [f"{key}={details[key]}" for key in SHOWN if key in details]
    else:
        words.append(f"{entry.size_bytes} bytes of {entry.content_type}" if entry.content_type else "")
    return one_line("  ".join(words)).rstrip()


def write_entry(entry: Event | Transition, *, as_json: bool, with_traceback: bool = False) -> None:
    """One entry on one line; its traceback below it where that is asked for."""
    if as_json:
        write_json(entry_object(entry))
        return
    write_line(entry_line(entry))
    if with_traceback:
        for line in (entry.traceback or "").rstrip().splitlines():
            write_line(f"    {one_line(line)}")


def nothing_found(ctx: click.Context, what: str) -> None:
    """Ends the command with a note and exit code 1."""
    write_note(what)
    ctx.exit(FOUND_WRONG)
