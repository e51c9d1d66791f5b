"""The store of the app: where it is, opened for reading, and its errors as one line with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import NoReturn

import click
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import Message, MessageStore, StoreConfig, StoreConfigError, StoreError, StoreFormatError
from cystore.celery import history, replicas
from cystore.celery.backend import CystoreBackend
from cystore.celery.base.reading import Source, Stores
from cystore.celery.duties import app_settings
from cystore.celery.stores import EXAMPLE, MAKES_IT, Location, is_missing, open_shared
from cystore.errors import did_you_mean
from cystore.operate.command import FAILED, FOUND_WRONG, for_reading
from cystore.operate.exits import hint
from cystore.operate.output import one_line, time_text, write_note
from cystore.operate.progress import progress

# The first hint that fits replaces the one of the program `cystore`.
HINTS: tuple[tuple[type[StoreError], str], ...] = (
    (StoreConfigError, "settings are the options in result_backend and result_backend_transport_options"),
    (StoreFormatError, "check the path and the options in result_backend"),
)


class CommandError(click.ClickException):
    """One line on standard error, and exit code 2."""

    exit_code = FAILED


def _backend_of(ctx: click.Context) -> CystoreBackend:
    try:
        backend = ctx.obj.app.backend
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    for line in app_settings.unknown(ctx.obj.app):
        write_note(line)
    if not isinstance(backend, CystoreBackend):
        raise CommandError(
            f"the app's result_backend is {backend.as_uri()}: these commands need {EXAMPLE}; name the app with "
            f"celery -A APP, or the store with --result-backend"
        )
    return backend


def location_of(ctx: click.Context) -> Location:
    """The place of the app's store."""
    backend = _backend_of(ctx)
    if not backend.location.path:
        raise CommandError(
            f"this command needs a store on this host, and result_backend is {backend.as_uri()!r}, which names "
            "no store: run it on the "
            f"host of the store, and name the store there with --result-backend {EXAMPLE}"
        )
    return backend.location


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Turns an error of the store into one line with advice."""
    try:
        yield
    except StoreError as error:
        raise CommandError(one_line(f"{error}{_hint(error)}")) from error


def _hint(error: StoreError) -> str:
    """The advice for an error. These commands have no --set: the app's settings are the store's."""
    if isinstance(error, StoreFormatError) and error.path is not None and is_missing(error.path):
        return "" if MAKES_IT in str(error) else f"; {MAKES_IT}"
    general = hint(error)  # none for an error that is about no setting
    return general and next((f"; {remedy}" for kind, remedy in HINTS if isinstance(error, kind)), general)


def settings_of(location: Location) -> StoreConfig:
    """The app's settings, for reading. Those that it suggests for a new store do not count: the store has its own."""
    return for_reading(StoreConfig.from_mapping(location.settings))


@contextmanager
def changing(location: Location, ctx: click.Context) -> Iterator[MessageStore]:
    """The app's store, for a command that changes it. One that is not there is not made."""
    with reading(location):
        pass
    with as_command_errors():
        yield open_shared(location, ctx.obj.app)


@contextmanager
def reading(location: Location) -> Iterator[MessageStore]:
    """The store, opened for reading only: it is neither made nor changed."""
    with as_command_errors():
        config = settings_of(location)
        with progress() as report, cystore.open(Path(location.path), config=config, progress=report) as store:
            yield store


def _leave_out(path: Path, why: str) -> None:
    write_note(one_line(f"{path} is left out: {why}"))


@contextmanager
def reading_homes(ctx: click.Context, all_homes: bool) -> Iterator[Source]:
    """The app's store, opened for reading; with `all_homes` also the replicas on this host, as one. Notes on standard
    error say how fresh each replica is."""
    if not all_homes:
        with reading(location_of(ctx)) as store:
            yield store
        return
    location = _backend_of(ctx).location
    try:
        folder = replicas.folder_of(ctx.obj.app)
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if folder is None:
        raise CommandError(
            f"--all-homes reads the stores in one folder: the app's setting {replicas.SETTING} names it"
        )
    with ExitStack() as opened, as_command_errors():
        by_home: dict[str, MessageStore] = {}
        unreadable: CommandError | None = None
        if location.path and Path(location.path).exists():
            try:
                by_home[replicas.home_at(Path(location.path))] = opened.enter_context(reading(location))
            except CommandError as error:
                unreadable = error
        for home, path in replicas.replicas_in(folder, location.path, _leave_out).items():
            if home in by_home:
                _leave_out(path, "the app's store keeps the same home")
                continue
            try:
                replica = opened.enter_context(cystore.open(path, read_only=True))
                last_ms = replica.stats()["last_store_timestamp_ms"]
                fresh = replicas.lag_text(path, last_ms, time_text(last_ms))
            except StoreError as error:
                _leave_out(path, str(error))
                continue
            by_home[home] = replica
            if fresh:
                write_note(one_line(f"{path}: {fresh}"))
        if unreadable is not None:
            if not by_home:
                raise unreadable
            _leave_out(Path(location.path), f"the app's own store: {unreadable.message}")
        if not by_home:
            raise CommandError(
                f"there is no store in {folder} ({replicas.SETTING}), and the app has none here"
            )
        yield Stores(by_home)


def is_valid(ctx: click.Context) -> Callable[[Message], bool]:
    """Says whether a result has not expired, by the app's settings."""
    return _backend_of(ctx).expiry.is_valid


NAMES_FROM = 10_000  # newest events


def nothing_found(ctx: click.Context, store: Source, what: str) -> NoReturn:
    """Ends the command with a note and exit code 1. The note says so if no task has the name of the option --name."""
    write_note(no_such_name(ctx, store) or what)
    ctx.exit(FOUND_WRONG)


def no_such_name(ctx: click.Context, store: Source) -> str:
    """A line for people if the store has no task of the name that the option --name gives. Similar names are those of
    the app and of the newest events."""
    name = ctx.params.get("name")
    if name is None or any(True for _ in islice(history.entries(store, name=name), 1)):
        return ""
    known = {entry.name for entry in islice(history.events(store), NAMES_FROM) if entry.name}
    return one_line(f"no task has the name {name!r}{did_you_mean(name, known | set(ctx.obj.app.tasks))}")
