"""The form of the lifecycle log in the store: the one place that knows its topic, tags, keys, properties and body.

One message of the topic `celery_events` is one event of one task. The record itself names the task (keys, tag,
property), so searches need no bodies. The body is a JSON object of details; unknown fields are left out. Queues are
those of `celery_results`: one for each task name, 0 without a name.

Keys are ids only: a task's own, ``root:`` and the id of the root of its workflow (where that is another task),
``group:`` and the id of its group. The prefixes keep a query for one task from reading the whole workflow that the task
began.

An event may also be in light queues, whose names are made here: one of the worker that wrote it, and one of its
workflow. A store never forgets a queue, because queue offsets are given out once. So workflows share a fixed number of
queues, by a hash of the root's id; a reader keeps the events of its own root.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cystore import Message
from cystore.celery.base import records
from cystore.layout import CONSTANTS, LMQ_PREFIX

if TYPE_CHECKING:
    from cystore import MessageStore

EVENTS = "celery_events"
VERSION = 1
ROOT, GROUP = "root:", "group:"
LIGHT, LIGHT_OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"  # properties
WORKER_QUEUE, WORKFLOW_QUEUE = LMQ_PREFIX + "worker-", LMQ_PREFIX + "workflow-"
WORKFLOW_QUEUES = 1024
NAME_BYTES_MAX, DIGEST_CHARS = CONSTANTS["TOPIC_BYTES_MAX"][0], 16

SENT, RECEIVED, REDELIVERED, STARTED = "SENT", "RECEIVED", "REDELIVERED", "STARTED"
SUCCEEDED, FAILED, TIMED_OUT, CHILD_LOST = "SUCCEEDED", "FAILED", "TIMED_OUT", "CHILD_LOST"
INTERNAL_ERROR, RETRIED, IGNORED, REJECTED = "INTERNAL_ERROR", "RETRIED", "IGNORED", "REJECTED"
REVOKED, UNKNOWN, SKIPPED = "REVOKED", "UNKNOWN", "SKIPPED"
SCHEDULED, FIRED, CANCELLED = "SCHEDULED", "FIRED", "CANCELLED"  # of tasks that wait in the store

# Event: description | Celery's signal | the process it fires in (prefork) | source of the ids.
KINDS: dict[str, tuple[str, str, str, str]] = {
    SENT: ("a message went to the broker", "`after_task_publish`",
           "the sender: publisher, beat, child (chains, retries)", "the message's headers"),
    RECEIVED: ("a worker took the message", "`task_received`", "main", "the request"),
    REDELIVERED: ("a worker took a message that the broker had delivered before", "`task_received`", "main",
                  "the request"),
    STARTED: ("the task's code begins", "`task_prerun`", "child", "the task's request"),
    SUCCEEDED: ("it returned, and its result is stored", "`task_success`", "child", "the task's request"),
    FAILED: ("it raised", "`task_failure`",
             "child; main where storing the failure failed as well", ("the task's request, "
             "else the signal (task id only)")),
    TIMED_OUT: ("a time limit was over: soft, raised out of the task, or hard", "`task_failure`",
                "soft: child; hard: main (fires twice, counts once)", "the task's request"),
    CHILD_LOST: ("the process that ran the task died", "`task_failure`; with requeuing none: the request's `on_reject`",
                 "main", "the request"),
    INTERNAL_ERROR: ("Celery or a handler of the task raised, outside of its code; FAILED follows",
                     "`task_internal_error`", "child", "the request that the signal brings"),
    RETRIED: ("it asked to run again", "`task_retry`", "child; main for `retry_on_worker_lost` and shutdown",
              "the request"),
    IGNORED: ("it raised `Ignore`", "`task_postrun` with the state IGNORED: nothing else fires", "child",
              "the task's request"),
    REJECTED: ("it raised `Reject`; or the message makes no sense",
               "`task_postrun` with the state REJECTED; `task_rejected`", "child; main",
               "the task's request; the headers"),
    REVOKED: ("it was revoked, terminated, or had expired", "`task_revoked`", "main", "the request"),
    UNKNOWN: ("no worker here has a task of that name", "`task_unknown`", "main", "the message's headers"),
    SKIPPED: ("it will not run: a task before it in its chain failed, or a part of its chord",
              "none: the backend stores the failures", "where the failure is stored", "the failed task's request"),
    SCHEDULED: ("its message waits in the store for its ETA; again with each move of the ETA",
                "none: the message was put", "the sender; the caller of `move` or `fire`",
                "the message's headers"),
    FIRED: ("its ETA came, and its message went to the broker", "none: the broker took it",
            "main of a worker", "the message's headers"),
    CANCELLED: ("it was revoked while it waited in the store", "none: the message was withdrawn",
                "the caller of `revoke`", "the message's headers"),
}  # fmt: skip

# Field of the body: its type and meaning.
FIELDS: dict[str, tuple[str, str]] = {
    "v": ("number", "version of this layout, 1; a reader ignores fields that it does not know"),
    "parent_id": ("text", "id of the task that sent it"),
    "worker": ("text", "the worker's node name"),
    "pid": ("number", "the process that ran it"),
    "origin": ("text", "SENT: the sender's node name"),
    "queue": ("text", "routing key; with the default exchange that is the queue"),
    "exchange": ("text", "SENT: the exchange, unless it is the default one"),
    "home": ("text", "SENT, RECEIVED: the id of the store that keeps its result, if that is another store"),
    "args": ("text", "repr of the positional arguments, redacted and shortened"),
    "kwargs": ("text", "repr of the keyword arguments, likewise"),
    "retries": ("number", "number of earlier tries; left out when 0"),
    "eta": ("text", "not before this time, ISO 8601"),
    "expires": ("text", "not after this time, ISO 8601"),
    "countdown": ("number", "RETRIED: seconds until it runs again"),
    "runtime": ("number", "run time of its code, in seconds"),
    "exception": ("text", "repr of the exception, shortened"),
    "traceback": ("text", "its traceback, shortened in the middle"),
    "cause": ("text", "SKIPPED: the id of the task whose failure keeps it from running"),
    "soft": ("true", "TIMED_OUT: the soft limit"),
    "requeue": ("true", "REJECTED, CHILD_LOST: the message went back to the broker"),
    "terminated": ("true", "REVOKED: while it ran, by a signal"),
    "signal": ("text", "REVOKED: the name of the signal"),
    "expired": ("true", "REVOKED: its expiry was over"),
    "eager": ("true", "it ran in the process that called it"),
    "traceparent": (
        "text",
        "SENT, RECEIVED: the publisher's trace, as W3C Trace Context writes it into the headers",
    ),
    "lost": ("number", "events before this one that its process could not record"),
    "rerun_of": ("text", "SENT: the id of the task that `cystore rerun` sent again under this id"),
    "message": ("object", 'SENT: the message itself, with `cystore_lifecycle_payload = "message"`'),
    "message_left_out": (
        "text",
        "SENT: the reason why the message is not kept, though the setting asks for it",
    ),
}

FAILURES = (FAILED, TIMED_OUT, CHILD_LOST, REJECTED, UNKNOWN)  # events of failed runs; each run has one
# Ends of code that ran. Earlier versions wrote some of them without `retries`.
ENDS_OF_CODE = (SUCCEEDED, FAILED, TIMED_OUT, CHILD_LOST, IGNORED, REJECTED)

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=str).encode


def keys_of(task_id: str | None, root_id: str | None = None, group_id: str | None = None) -> tuple[str, ...]:
    """The keys of an event of a task; none where not even its id is known."""
    if not task_id:
        return ()
    keys = [records.key_of(task_id)]
    if root_id and root_id != task_id:
        keys.append(root_key(root_id))
    if group_id:
        keys.append(group_key(group_id))
    return tuple(keys)


def try_of(event: str | None, retries: int, newest_started: int | None) -> int:
    """The try that an event belongs to, as the number of earlier tries. It is the event's own `retries`; an end without
    belongs to the newest started try. `cystore.reports.tries` says the same in columns."""
    if event in ENDS_OF_CODE and not retries:
        return newest_started or 0
    return retries


def root_key(root_id: str) -> str:
    """The key of the events of all tasks below a root."""
    return ROOT + records.key_of(root_id)


def group_key(group_id: str) -> str:
    """The key of the events of all tasks of a group."""
    return GROUP + records.key_of(group_id)


def worker_queue(worker: str) -> str:
    """The light queue of a worker: its node name, percent-encoded; a digest ends a name that would be too long."""
    text = quote(worker, safe="|", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
    name = WORKER_QUEUE + text
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{name[: NAME_BYTES_MAX - DIGEST_CHARS - 1]}-{digest}"


def workflow_queue(root_id: str) -> str:
    """The light queue that the workflow of a root shares with others."""
    number = zlib.crc32(records.key_of(root_id).encode("utf-8", "surrogatepass")) % WORKFLOW_QUEUES
    return f"{WORKFLOW_QUEUE}{number:04}"


def has_light_queues(store: MessageStore) -> bool:
    """Whether the store takes messages into light queues."""
    settings = store.settings
    return settings.enable_lmq and settings.enable_multi_dispatch


def is_in_canvas(
    task_id: str | None, root_id: str | None, parent_id: str | None, group_id: str | None
) -> bool:
    """Whether a task is a part of a workflow, or of a group, beside its root."""
    return bool((root_id and root_id != task_id) or parent_id or group_id)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _no_number(_: str) -> None:
    """For NaN and Infinity."""


_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number).decode


def _encodable(value: Any) -> Any:
    """The same value with a "?" for each character that UTF-8 cannot encode, as in the name of a file that an exception
    tells."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_encodable(one) for one in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return value


def body_of(details: Mapping[str, Any]) -> bytes:
    """The body of an event; values None, False and "" are left out."""
    fields: dict[str, Any] = {"v": VERSION}
    for name, value in details.items():
        if value is not None and value is not False and value != "":
            fields[name] = value
    return _encode(fields).encode()


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one task. `name` and the ids are None if unknown; times are ms since 1970."""

    task_id: str | None
    event: str | None
    name: str | None
    root_id: str | None
    group_id: str | None
    time_ms: int
    physical_offset: int
    _message: Message = field(repr=False, compare=False)
    store: str = ""  # the path of the store that has it, if several stores are read as one

    @classmethod
    def of(cls, message: Message) -> Event:
        """The event that a stored record of `celery_events` holds."""
        keys = message.keys
        task_id = records.id_of(keys[0]) if keys else None
        root_id, group_id = task_id, None
        for key in keys[1:]:
            if key.startswith(ROOT):
                root_id = records.id_of(key.removeprefix(ROOT))
            elif key.startswith(GROUP):
                group_id = records.id_of(key.removeprefix(GROUP))
        return cls(
            task_id=task_id,
            event=message.tags,
            name=message.properties.get("task"),
            root_id=root_id,
            group_id=group_id,
            time_ms=message.store_timestamp_ms,
            physical_offset=message.physical_offset,
            _message=message,
        )

    @property
    def state(self) -> str | None:
        """The name of the event. `Transition` has an attribute of the same name."""
        return self.event

    @property
    def details(self) -> dict[str, Any]:
        """The fields of the body (`FIELDS`), as values that JSON and UTF-8 have a form for: whoever gets them writes
        them on. Empty if it is not a JSON object."""
        body = bytes(self._message.body)
        try:
            text = body.decode(json.detect_encoding(body), "surrogatepass")
            fields = _decode(text)
            if "\\u" in text or not text.isascii():
                fields = _encodable(fields)
        except (ValueError, RecursionError):  # a crafted body may be nested too deeply
            return {}
        return fields if isinstance(fields, dict) else {}

    @property
    def traceback(self) -> str | None:
        """The traceback of a failure."""
        return self.details.get("traceback")
