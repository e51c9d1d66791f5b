"""Messages with an ETA go into the store instead of the broker, when they are sent.

A broker gives such a message to a worker at once. The worker keeps it in memory until it is due: a message that waits
longer than the broker's visibility timeout runs more than once, a killed worker's messages come late, and a worker with
many of them is large. In the store a message waits on disk, and goes to the broker when it is due.

The app's sending function gets a producer that puts into the store, so Celery itself chooses the route, and its signals
come as ever. The put is durable before `apply_async` returns.

| setting | default | means |
|---|---|---|
| `cystore_durable_eta_after_s` | 30 with `cystore.celery.install(app)` | ETAs so many seconds ahead are kept |

Without `install` and without the setting, and with the setting `"never"`, no message does.
"""

from __future__ import annotations

import logging
import math
import weakref

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from cystore.celery.lifecycle import senders

log = logging.getLogger("cystore.celery")

SETTING = "cystore_durable_eta_after_s"
AFTER_S, NEVER = 30, "never"

_installed: weakref.WeakSet[Celery] = weakref.WeakSet()


def after_s(app: Celery) -> float | None:
    """The least wait of a message that is kept; None: all go to the broker. Raises ImproperlyConfigured."""
    value = app.conf.get(SETTING)
    if value is None:
        return AFTER_S if app in _installed else None
    if value == NEVER:
        return None
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    ):
        return float(value)
    raise ImproperlyConfigured(f'{SETTING} must be seconds, from 0 on, or "{NEVER}", not {value!r}')


def install(app: Celery) -> None:
    """Keeps ETAs of this app from now on, unless the setting says never. Raises ImproperlyConfigured if the app has
    sent tasks already: those with an ETA went to the broker."""
    if app in _installed:
        return
    if senders.is_used(app) and app.conf.get(SETTING) != NEVER:
        raise ImproperlyConfigured(
            "this app has sent tasks before cystore.celery.install(app), so their ETAs wait in workers: call it in "
            "the module that makes the app"
        )
    _installed.add(app)
    _watch(app)


def begin(app: Celery) -> None:
    """Keeps ETAs of this app if its setting says so; called when its backend is made. Raises ImproperlyConfigured."""
    if after_s(app) is None:
        return
    if senders.is_used(app):
        log.warning(
            "%s: this app has sent tasks before its result backend was made, because they ignore their results; those "
            "with an ETA wait in workers. Call cystore.celery.install(app) in the module that makes the app",
            SETTING,
        )
    _watch(app)


def _watch(app: Celery) -> None:
    from cystore.celery.eta import publishing  # most apps have no part of it

    publishing.watch(app, after_s)
