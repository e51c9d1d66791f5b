"""Ids as people give them: whole, or only their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import click

from cystore import Contains, Message
from cystore.celery import history
from cystore.celery.base import events, reading, records
from cystore.celery.base.reading import Passed, Source
from cystore.celery.commands.shared import app_store, task_display
from cystore.celery.lifecycle.task_lives import Life, life_of
from cystore.operate.output import write_note

SHOWN_MOST = 20  # candidates


def known_life(ctx: click.Context, store: Source, given: str) -> Life:
    """The life of the task with this id, or with the only id that begins so. Ends the command with a note and exit code
    1 if the log does not know the task; raises CommandError if several tasks have such ids, and lists them."""
    is_valid = app_store.is_valid(ctx)
    life = life_of(store, given, is_valid) if given else None
    if life is None and given:
        task_id = _only_one(store, given, "", "task")
        life = None if task_id is None else life_of(store, task_id, is_valid)
    if life is None:
        app_store.nothing_found(ctx, store, f"the store knows no task {given!r}")
    return life


def known_root(ctx: click.Context, store: Source, given: str) -> str:
    """The id of a workflow, likewise."""
    return _known(ctx, store, given, events.ROOT, "workflow")


def known_group(ctx: click.Context, store: Source, given: str) -> str:
    """The id of a group, likewise."""
    return _known(ctx, store, given, events.GROUP, "group")


def _known(ctx: click.Context, store: Source, given: str, prefix: str, what: str) -> str:
    found = (
        history.events(store, root_id=given)
        if prefix == events.ROOT
        else history.events(store, group_id=given)
    )
    if next(iter(found), None) is not None:
        return given
    known = _only_one(store, given, prefix, what)
    if known is None:
        app_store.nothing_found(ctx, store, f"the store knows no {what} {given!r}")
    return known


def _only_one(store: Source, given: str, prefix: str, what: str) -> str | None:
    """The only id that begins with a text; None without any, and for a whole UUID. The log is read once for it."""
    if _is_uuid(given):
        return None
    found: dict[str, None] = {}
    for task_id in _beginning(store, given, prefix):
        found[task_id] = None
        if len(found) > SHOWN_MOST:
            break
    if len(found) < 2:
        return next(iter(found), None)
    for task_id in list(found)[:SHOWN_MOST]:
        life = None if prefix else life_of(store, task_id)
        write_note(task_id if life is None else "  ".join(_words(life)))
    count = f"more than {SHOWN_MOST}" if len(found) > SHOWN_MOST else str(len(found))
    raise app_store.CommandError(f"{count} {what}s have an id that begins with {given!r}: give more of it")


def _words(life: Life) -> list[str]:
    return [task_display.at(life.first_ms), *task_display.life_words(life)]


def _beginning(store: Source, given: str, prefix: str) -> Iterator[str]:
    """Ids that begin with a text, each once for each of its records. A task that is its own root has no key for it."""
    begin = records.key_of(given)
    for message in _all(store, prefix + begin, with_results=not prefix):
        keys = message.keys
        if prefix != events.GROUP and keys and keys[0].startswith(begin):
            yield records.id_of(keys[0])
        if prefix:
            for key in keys[1:]:
                if key.startswith(prefix + begin):
                    yield records.id_of(key.removeprefix(prefix))


def _all(store: Source, text: str, *, with_results: bool) -> Iterator[Message]:
    for topic in (events.EVENTS, records.RESULTS) if with_results else (events.EVENTS,):
        found = reading.search_queues(store, topic, Contains(text))
        for message in task_display.watched(store, found, lines_follow=False):
            if not isinstance(message, Passed):
                yield message


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
