"""Shared by the commands: the app's store, opened for reading; conditions as options; the display of an entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from celery import states
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import MessageStore, StoreConfig, StoreConfigError, StoreError, StoreFormatError
from cystore.celery import history
from cystore.celery.backend import CystoreBackend
from cystore.celery.base import events, records
from cystore.celery.base.events import Event
from cystore.celery.history import Transition
from cystore.celery.lifecycle.task_lives import Life, life_of
from cystore.celery.stores import DEFAULTS, EXAMPLE, Location
from cystore.clock import now_ms
from cystore.operate.command import FAILED, FOUND_WRONG, for_reading
from cystore.operate.exits import hint
from cystore.operate.output import one_line, time_text, write_json, write_line, write_note
from cystore.operate.progress import progress

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
MS_FROM = (
    10**11
)  # a number from here on is ms since 1970 (1973 and later), a smaller one is seconds (up to the year 5138)
STATES = (*events.KINDS, *sorted(states.ALL_STATES), records.FORGET)
# The first that fits takes the place of the one of the program `cystore`.
HINTS: tuple[tuple[type[StoreError], str], ...] = (
    (StoreConfigError, "settings are the options in result_backend and result_backend_transport_options"),
    (StoreFormatError, "check the path and the options in result_backend"),
)
SHOWN = ("worker", "queue", "runtime", "retries", "exception")  # of an event's details, on a line for people
RESULT_SHOWN = ("result", "traceback", "worker", "retries", "queue")  # of a result's meta, for programs
Function = TypeVar("Function", bound=Callable[..., Any])


class CommandError(click.ClickException):
    """One line on standard error, and exit code 2."""

    exit_code = FAILED


class Moment(click.ParamType):
    """A time, as ms since 1970: ISO 8601 (UTC by default), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d,
    2w."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms; fails with a list of accepted forms."""
        if isinstance(value, int):
            return value
        ago = re.fullmatch(r"([0-9]{1,9})([smhdw])", value)
        if ago:
            return now_ms() - int(ago[1]) * UNITS_MS[ago[2]]
        since_1970 = re.fullmatch(r"[0-9]{9,15}|[0-9]{9,11}\.[0-9]{1,9}", value)
        if since_1970:
            return int(value if "." not in value and int(value) >= MS_FROM else float(value) * 1000)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time: give 2026-01-31T12:00:00Z, 2026-01-31, 1769860800 or 1769860800000 since "
                "1970, or an age: 90s, 15m, "
                "2h, 7d, 2w"
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)


def conditions(function: Function) -> Function:
    """The options --name (or --task), --since and --until."""
    for option in (
        click.option("--until", "end_ms", type=Moment(), help="Not later than this."),
        click.option(
            "--since", "begin_ms", type=Moment(), default=0,
            help="Not before this: ISO 8601 (UTC), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w.",
        ),
        click.option("--name", "--task", "name", help="Only tasks of this name."),
    ):  # fmt: skip
        function = option(function)
    return function


def states_option(text: str) -> Callable[[Function], Function]:
    """The option --state, which may be repeated. `check_states` refuses impossible states."""
    return click.option("--state", "states", multiple=True, callback=_known_spelling, help=text)


def _known_spelling(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """States as they are stored: `failed` is FAILED. Another name may be a state of the app's own."""
    return tuple(one.upper() if one.upper() in STATES else one for one in given)


def check_states(store: MessageStore, given: Sequence[str]) -> None:
    """Refuses a state that is neither the lifecycle log's nor Celery's, unless the store has it: apps make states of
    their own."""
    for one in given:
        if one not in STATES and not any(True for _ in islice(history.entries(store, states=(one,)), 1)):
            raise CommandError(
                one_line(
                    f"--state {one}: no task had this state, and it is not one of {', '.join(dict.fromkeys(STATES))}"
                )
            )


json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def limit_option(default: int) -> Callable[[Function], Function]:
    """The option --limit."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        help="Show at most this number; 0: all.",
    )


def examples(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  celery -A shop cystore {line}" for line in lines)


def location_of(ctx: click.Context) -> Location:
    """The place of the app's store."""
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
        raise CommandError(
            f"this command needs a store on this host, and result_backend is {backend.as_uri()!r}, which names "
            "no store: run it on the "
            f"host of the store, and name the store there with --result-backend {EXAMPLE}"
        )
    return backend.location


@contextmanager
def told_errors() -> Iterator[None]:
    """Turns an error of the store into one line with advice."""
    try:
        yield
    except StoreError as error:
        raise CommandError(one_line(f"{error}{_hint(error)}")) from error


def _hint(error: StoreError) -> str:
    """The advice for an error. These commands have no --set: the app's settings are the store's."""
    return next((f"; {remedy}" for kind, remedy in HINTS if isinstance(error, kind)), "") or hint(error)


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
    """An entry for programs: the common fields, then an event's details, or a result's."""
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
    """One entry on one line; its traceback below it, if wanted."""
    if as_json:
        write_json(entry_object(entry))
        return
    write_line(entry_line(entry))
    if with_traceback:
        for line in (entry.traceback or "").rstrip().splitlines():
            write_line(f"    {one_line(line)}")


def nothing_found(ctx: click.Context, what: str) -> NoReturn:
    """Ends the command with a note and exit code 1."""
    write_note(what)
    ctx.exit(FOUND_WRONG)


def known_life(ctx: click.Context, store: MessageStore, task_id: str) -> Life:
    """A task's life. Ends the command with a note and exit code 1 if the log does not know the task."""
    life = life_of(store, task_id) if task_id else None
    if life is None:
        nothing_found(ctx, f"the store knows no task {task_id!r}")
    return life
