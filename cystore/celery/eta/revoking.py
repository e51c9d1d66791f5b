"""`revoke` also reaches tasks that wait in the store, with no worker up: `app.control.revoke`, `result.revoke()`, of
groups, of lists, by stamped headers. The command goes to the workers as ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from celery import Celery
from kombu.utils.imports import symbol_by_name

from cystore.celery import homes
from cystore.celery.eta import remote, waiting

REVOKE, REVOKE_STAMPED = "revoke", "revoke_by_stamped_headers"


def watch(app: Celery) -> None:
    """Lets the app's remote control look into the store first."""
    if "control" in app.__dict__:
        _change(app.control)
        return
    if getattr(app.control_cls, "func", None) is not _control:
        app.control_cls = partial(_control, app.control_cls)


def _control(kind: Any, app: Celery, **options: Any) -> Any:
    """The app's remote control, made when it is first used: it reads the app's settings."""
    made = symbol_by_name(kind)(app=app, **options)
    _change(made)
    return made


def _change(control: Any) -> None:
    if not hasattr(control.broadcast, "cancels"):
        control.broadcast = _cancelling(control.app, control.broadcast)


def _cancelling(app: Celery, broadcast: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(app)

    @wraps(broadcast)
    def cancels_first(command: str, arguments: Any = None, destination: Any = None, **options: Any) -> Any:
        owner = reference()
        try:
            if owner is not None and command in (REVOKE, REVOKE_STAMPED):
                _cancel(owner, command, dict(arguments or {}))
        finally:  # the workers hear of it, also if the store cannot be written
            told = broadcast(command, arguments=arguments, destination=destination, **options)
        return told

    cancels_first.cancels = True  # type: ignore[attr-defined]
    return cancels_first


def _cancel(app: Celery, command: str, arguments: Mapping[str, Any]) -> None:
    backend = app.backend
    if not hasattr(backend, "location"):
        return
    given, stamps = arguments.get("task_id"), arguments.get("headers")
    ids: list[str] = (
        [] if command != REVOKE else [given] if isinstance(given, str) else [*map(str, given or ())]
    )
    stamps = dict(stamps) if command == REVOKE_STAMPED and isinstance(stamps, Mapping) else {}
    store = waiting.store_of(backend)
    if store is None:
        home = homes.setting(app) or (homes.own_id(backend) if backend.location.path else None)
        if home is not None:
            remote.send_cancel(app, home, ids, stamps)
        return
    waiting.cancel_all(app, store, ids)
    if stamps:
        waiting.cancel_stamped(app, store, stamps)
