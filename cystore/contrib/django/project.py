"""The settings of a Django project: the Celery app, and the store whose tasks the admin shows.

| setting | means |
|---|---|
| `CELERY_RESULT_BACKEND` | Celery's own; `cystore:///PATH` makes the directory PATH the store |
| `CYSTORE["CELERY_APP"]` | the Celery app, as for `celery -A`; default: the app that the project's package makes |
| `CYSTORE["STORE"]` | the directory of another store for the admin, for example a replica; default: the backend's |
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from celery import Celery, current_app
from celery.app.utils import find_app
from celery.exceptions import ImproperlyConfigured
from django.conf import settings

from cystore import StoreConfigError
from cystore.celery import homes
from cystore.celery.backend import CystoreBackend
from cystore.celery.base.reading import Source
from cystore.celery.lifecycle.redaction import Redaction
from cystore.errors import did_you_mean
from cystore.web.answers.open_stores import OpenStores
from cystore.web.answers.task_rows import Texts

SETTING = "CYSTORE"
APP, STORE = "CELERY_APP", "STORE"
NAMES = (APP, STORE)


def setting(name: str) -> str | None:
    """A value of the setting CYSTORE; None without one. Raises ImproperlyConfigured."""
    given: Any = getattr(settings, SETTING, None) or {}
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {given!r}")
    for key in given:
        if key not in NAMES:
            raise ImproperlyConfigured(f"{SETTING} has no {key!r}{did_you_mean(str(key), NAMES)}")
    value = given.get(name)
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ImproperlyConfigured(f"{SETTING}[{name!r}] must be a text, not {value!r}")
    return None if value is None else os.fspath(value)


def celery_app() -> Celery:
    """The project's Celery app. Raises ImproperlyConfigured."""
    name = setting(APP)
    if name is None:
        return current_app._get_current_object()
    try:
        return find_app(name)
    except (ImportError, AttributeError) as error:
        raise ImproperlyConfigured(f"{SETTING}[{APP!r}] {name!r} cannot be imported: {error}") from error


def backend() -> CystoreBackend | None:
    """The result backend of the app; None if it is another one. Raises ImproperlyConfigured."""
    found = celery_app().backend
    return found if isinstance(found, CystoreBackend) else None


def own_backend() -> CystoreBackend:
    """The same, where there must be one with a store on this host. Raises ImproperlyConfigured."""
    found = backend()
    if found is None or not found.location.path:
        raise ImproperlyConfigured(
            f"the result backend of {celery_app().main!r} has no store on this host: set CELERY_RESULT_BACKEND to "
            f"cystore:////PATH, and name the app with {SETTING}[{APP!r}] if it is another one"
        )
    return found


def source() -> Source:
    """The store with the tasks, open. Raises ImproperlyConfigured and the errors of the store."""
    path = setting(STORE)
    if path is not None:
        return _opened(os.getpid(), path).source()
    own = backend()
    if own is None:
        raise StoreConfigError(
            f"the admin has no store to read: set CELERY_RESULT_BACKEND to cystore:////PATH, or {SETTING}[{STORE!r}]"
        )
    try:
        return own.store
    except homes.ResultsElsewhereError as error:
        raise StoreConfigError(f"{error}; {SETTING}[{STORE!r}] names the store for the admin") from error


@lru_cache(maxsize=1)
def _opened(pid: int, path: str) -> OpenStores:
    """The other store in this process, which only reads it."""
    return OpenStores(Path(path))


def texts() -> Texts:
    """The texts that the admin may show, by the app's settings."""
    app, own = celery_app(), backend()
    redaction = Redaction.of(app.conf, app)
    return Texts(redaction) if own is None else Texts(redaction, own.expiry.is_valid)
