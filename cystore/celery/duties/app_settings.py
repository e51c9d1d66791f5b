"""The settings of an app whose names begin with `cystore_`: which there are, and whether their values make sense.

Celery takes any name. So a misspelt one would have no effect, and nobody would know.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from cystore.celery import homes
from cystore.celery.base import store_watch
from cystore.celery.chords import chord_bodies, chord_steps
from cystore.celery.eta import keeping
from cystore.celery.lifecycle import light_queues, payload, recorder, redaction
from cystore.celery.redis_urls import PASSWORD_SETTING, READER_SETTING
from cystore.celery.routing.messages import SECRET_SETTING
from cystore.errors import did_you_mean

BEGIN = "cystore_"
# The names of others are texts here, so that a starting worker need not import their modules.
NAMES = frozenset((
    recorder.SETTING, redaction.ARGS_SETTING, redaction.TRACEBACK_SETTING, redaction.REDACT_SETTING,
    redaction.POSITIONS_SETTING, chord_bodies.SETTING, chord_steps.CLAIM_SETTING, payload.SETTING,
    light_queues.SETTING, store_watch.SETTING, homes.HOME, homes.SENDS_SETTING, PASSWORD_SETTING, READER_SETTING,
    SECRET_SETTING, keeping.SETTING,
    "cystore_redis_url", "cystore_redis_options", "cystore_read_service", "cystore_replicas", "cystore_home_silent_s",
    "cystore_host_reput", "cystore_duty_events", "cystore_metrics_listen",
    "cystore_metrics_max_names", "cystore_metrics_unfinished_s", "cystore_spark_stores",
    "cystore_spark_folders", "cystore_spark_master", "cystore_spark_conf", "cystore_spark_settings",
))  # fmt: skip
# Settings that are read later than a worker begins.
CHECKS: tuple[Callable[[Any], object], ...] = (
    store_watch.setting_of, homes.sends_without_store, chord_steps.claim_s_of, keeping.after_s,
)  # fmt: skip

_told: weakref.WeakSet[Any] = weakref.WeakSet()


def check(app: Any) -> None:
    """Raises ImproperlyConfigured for a value that makes no sense."""
    for one in CHECKS:
        one(app)


def unknown(app: Any) -> Iterator[str]:
    """A line for people about each setting of the app that has no effect. Empty when they were asked for before."""
    if app in _told:
        return
    _told.add(app)
    _ = app.conf.result_backend  # the first look reads the app's configuration
    conf = app.conf
    prefix = conf.prefix or ""
    for key in sorted({key for key in conf if isinstance(key, str)}):
        name = key.removeprefix(prefix).lower() if prefix and key.startswith(prefix) else key
        if name.startswith(BEGIN) and name not in NAMES:
            yield f"the setting {key} has no effect: there is no {name}{did_you_mean(name, NAMES)}"
