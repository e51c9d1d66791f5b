"""Settings that are the store's and not a process's. They stand in the manifest.

What shapes the files (`SHAPE`) is written there by the first process that opens the store; one that gives another value is refused.
The retention policy (`RETENTION`) is written by `cystore config`; from then on it wins over what any process gives.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from cystore.config import DEFAULTS, StoreConfig
from cystore.engine.manifest import Facts, Manifest, look
from cystore.errors import StoreConfigError

log = logging.getLogger("cystore")

SHAPE = ("message_index_enable", "enable_consume_queue_ext")
RETENTION = (
    "file_reserved_time_h",
    "delete_when",
    "roll_interval_h",
    "disk_max_used_space_ratio",
    "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio",
    "clean_file_forcibly_enable",
    "min_free_bytes",
    "quarantine_reserved_time_h",
    "quarantine_bytes_max",
)


def effective(config: StoreConfig, facts: Facts | None) -> StoreConfig:
    """`config` with the store's own settings of what shapes its files. Raises StoreConfigError for another value."""
    if facts is None or not facts.settings:
        return config
    theirs = {name: value for name, value in facts.settings.items() if name in SHAPE}
    for name in SHAPE:
        given = getattr(config, name)
        if name in theirs and config.gives(name) and given != theirs[name]:
            raise StoreConfigError(
                f"{name}: this store's files are shaped by {theirs[name]!r}, and this process gives {given!r}; leave the setting out"
            )
    return dataclasses.replace(config, **theirs)


def effective_at(config: StoreConfig, root: Path) -> StoreConfig:
    """`effective` for the store in a directory."""
    return effective(config, look(root).facts)


def enter_shape(manifest: Manifest, config: StoreConfig) -> None:
    """Enters what the store has no value for yet."""
    missing = {name: getattr(config, name) for name in SHAPE if name not in manifest.snapshot().settings}
    if missing:
        manifest.update(lambda facts: dataclasses.replace(facts, settings={**missing, **facts.settings}))


def configure(manifest: Manifest, changes: dict[str, Any]) -> None:
    """Changes the store's retention policy for all processes, also for those that have it open. A value of None takes the store's own
    away. Raises StoreConfigError."""
    for name in changes:
        if name not in RETENTION:
            raise StoreConfigError(
                f"{name} is no setting of the store that can be changed; those are {', '.join(RETENTION)}"
            )
    StoreConfig.from_mapping({name: value for name, value in changes.items() if value is not None})

    def change(facts: Facts) -> Facts:
        merged = {**facts.settings, **changes}
        return dataclasses.replace(facts, settings={k: v for k, v in merged.items() if v is not None})

    manifest.update(change)


def sources(config: StoreConfig, facts: Facts) -> dict[str, tuple[Any, str]]:
    """Each of the store's settings with its effective value and where that comes from: "store", "process" or "default"."""
    return {
        name: (
            facts.settings.get(name, getattr(config, name)),
            "store"
            if name in facts.settings
            else "process"
            if getattr(config, name) != DEFAULTS[name]
            else "default",
        )
        for name in (*SHAPE, *RETENTION)
    }


class Policy:
    """The retention policy as it is now: the store's, else this process's."""

    def __init__(self, manifest: Manifest, config: StoreConfig) -> None:
        self._manifest, self._given = manifest, config
        self._sequence, self._now = -1, config

    def now(self) -> StoreConfig:
        """All settings; those of the retention policy are the current ones."""
        facts = self._manifest.snapshot()
        if facts.sequence != self._sequence:
            theirs = {name: value for name, value in facts.settings.items() if name in RETENTION}
            try:
                self._now = dataclasses.replace(self._given, **theirs)
            except StoreConfigError as error:
                log.error("the store's retention policy cannot be used: %s", error)
            self._sequence = facts.sequence
        return self._now
