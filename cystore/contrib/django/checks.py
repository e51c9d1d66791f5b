"""Checks of a project, for `manage.py check`: the settings; with `--deploy` also the store and its host, as
`cystore doctor` checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery.exceptions import ImproperlyConfigured
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning

from cystore import StoreConfig, StoreError
from cystore.celery.duties import app_settings
from cystore.cli.host import doctor
from cystore.cli.host.site import Site
from cystore.contrib.django import project
from cystore.engine.inspect.recognize import is_store

SETTINGS, OTHER_BACKEND, NO_STORE, NO_EFFECT = "cystore.E001", "cystore.W001", "cystore.W002", "cystore.W003"
BAD, TO_LOOK_AT = "cystore.E010", "cystore.W010"


def _place() -> tuple[Path | None, StoreConfig]:
    """The store that the admin reads, and the app's settings of it; no path without a store on this host. Raises
    ImproperlyConfigured."""
    path, own = project.setting(project.STORE), project.backend()
    if path is not None:
        return Path(path), StoreConfig()
    if own is None or not own.location.path:
        return None, StoreConfig()
    return Path(own.location.path), StoreConfig.from_mapping(own.location.settings)


def check_project(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The settings, and whether a store is there."""
    try:
        path, _config = _place()
        unknown = list(app_settings.unknown(project.celery_app()))
    except ImproperlyConfigured as error:
        return [Error(str(error), id=SETTINGS)]
    found: list[CheckMessage] = [CheckWarning(line, id=NO_EFFECT) for line in unknown]
    if path is None:
        return [
            *found,
            CheckWarning(
                "Celery's result backend has no store of cystore on this host.",
                hint="Set CELERY_RESULT_BACKEND to cystore:////PATH. If it is set, the Celery app does not read "
                f"Django's settings, or is another one: name it with {project.SETTING}[{project.APP!r}].",
                id=OTHER_BACKEND,
            ),
        ]
    try:
        is_there = path.is_dir() and is_store(path)
    except (StoreError, OSError) as error:
        return [*found, Error(str(error), id=SETTINGS)]
    if not is_there:
        hint = "`manage.py cystore_create` makes it; else the first task does."
        found.append(CheckWarning(f"There is no store at {path} yet.", hint=hint, id=NO_STORE))
    return found


def check_host(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The findings of `cystore doctor`."""
    try:
        path, config = _place()
    except ImproperlyConfigured:
        return []  # `check_project` says it
    if path is None:
        return []
    found: list[CheckMessage] = []
    for check, one in doctor.findings(Site(path, config)):
        if one.level != "ok":
            is_bad = one.level == "bad"
            kind, number = (Error, BAD) if is_bad else (CheckWarning, TO_LOOK_AT)
            found.append(kind(f"{check.name}: {one.found}", hint=one.advice or None, id=number))
    return found
