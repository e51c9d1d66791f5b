"""The rows of django-celery-results, as results and events in the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery import states
from celery.result import result_from_tuple
from celery.utils.serialization import b64decode
from django.apps import apps
from kombu.exceptions import KombuError
from kombu.serialization import loads

from cystore.celery.backend import CystoreBackend
from cystore.celery.base import events, records
from cystore.celery.history import error_text
from cystore.celery.lifecycle import recorder
from cystore.celery.lifecycle.redaction import shortened
from cystore.celery.results.encoding import encode_meta, largest_bytes

THEIRS = "django_celery_results"
BATCH = 1000
EVENT_OF = {states.SUCCESS: events.SUCCEEDED, states.FAILURE: events.FAILED, states.REVOKED: events.REVOKED}


@dataclass
class Imported:
    """Counts of the rows, by their ends."""

    results: int = 0
    groups: int = 0
    known: int = 0  # the store has a state of the task already
    unfinished: int = 0
    unreadable: int = 0


def import_results(
    backend: CystoreBackend,
    *,
    using: str = "default",
    since_ms: int = 0,
    note: Callable[[str], object] = lambda text: None,
) -> Imported:
    """Stores the ended tasks and the groups of a database, oldest first; each task gets the event of its end. A task
    that the store knows is left out, so a second run adds only what is new. Raises the errors of the store and of
    Django."""
    counts, since = Imported(), datetime.fromtimestamp(since_ms / 1000, UTC)
    model = apps.get_model(THEIRS, "TaskResult")
    rows = model._default_manager.using(using).filter(date_done__gte=since).order_by("date_done", "id")
    for batch in _batches(rows.iterator(chunk_size=BATCH)):
        known = records.records_of_many(
            backend.store, records.RESULTS, {records.key_of(row.task_id) for row in batch}
        )
        for row in batch:
            if known.get(records.key_of(row.task_id)):
                counts.known += 1
            elif row.status not in states.READY_STATES:
                counts.unfinished += 1
            else:
                _import(backend, row, counts, note)
    groups = apps.get_model(THEIRS, "GroupResult")._default_manager.using(using).filter(date_done__gte=since)
    for row in groups.order_by("date_done", "id").iterator(chunk_size=BATCH):
        if backend.latest(row.group_id, records.GROUPS) is not None:
            counts.known += 1
            continue
        try:
            group = result_from_tuple(_content(backend, row, row.result), backend.app)
        except (KombuError, ValueError, TypeError) as error:
            counts.unreadable += 1
            note(f"group {row.group_id}: {error}")
            continue
        backend.save_group(row.group_id, group)
        counts.groups += 1
    backend.store_to_write.flush()
    return counts


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def _content(backend: CystoreBackend, row: Any, text: str | None) -> Any:
    """A field as their backend encoded it, if the app accepts its serializer. Raises kombu's errors."""
    if not text:
        return None
    data: Any = b64decode(text) if row.content_encoding == "binary" else text
    return loads(data, row.content_type, row.content_encoding, accept=backend.accept)


def _import(backend: CystoreBackend, row: Any, counts: Imported, note: Callable[[str], object]) -> None:
    try:
        result = _content(backend, row, row.result)
        more = _content(backend, row, row.meta) or {}
    except (KombuError, ValueError, TypeError) as error:
        counts.unreadable += 1
        note(f"task {row.task_id}: {error}")
        return
    life = recorder.log_of(backend.app)
    args, kwargs, traceback = (
        text if text is None or life is None else life.redaction.text(text)
        for text in (_shown(row.task_args), _shown(row.task_kwargs), row.traceback)
    )
    result = backend.redacted(row.status, result)
    meta = {
        "status": row.status, "result": result, "traceback": traceback, "children": more.get("children") or [],
        "date_done": row.date_done.isoformat(), "task_id": row.task_id,
    }  # fmt: skip
    if row.task_name:  # they were kept with `result_extended`
        meta |= {"name": row.task_name, "args": args, "kwargs": kwargs, "worker": row.worker}
    limit_bytes = largest_bytes(backend.store.config)
    body = encode_meta(
        meta, backend.encode, backend.prepare_exception, name=row.task_name, limit_bytes=limit_bytes
    )
    backend._append(records.RESULTS, row.task_id, body, tag=row.status, name=row.task_name)
    if life is not None:
        began = getattr(row, "date_started", None)
        life.append(
            EVENT_OF.get(row.status, events.FAILED), row.task_id, row.task_name, None, None,
            worker=row.worker, args=args, kwargs=kwargs,
            runtime=None if began is None else max(0.0, (row.date_done - began).total_seconds()),
            exception=_error(result) if row.status == states.FAILURE else None, traceback=traceback,
        )  # fmt: skip
    counts.results += 1


def _shown(text: str | None) -> str | None:
    """Their arguments are the repr of them, as JSON; other versions have the repr itself."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _error(result: Any) -> str | None:
    text = error_text(result)
    return None if text is None else shortened(text, recorder.EXCEPTION_CHARS)
