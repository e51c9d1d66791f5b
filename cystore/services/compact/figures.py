"""Compaction in numbers: what the manifest has of the last finished turn, and what waits."""

from __future__ import annotations

import logging
from typing import Any

from cystore._native.memory.control import Control
from cystore.errors import StoreError
from cystore.services.compact.compactor import Compactor

log = logging.getLogger("cystore")


def figures(compactor: Compactor, control: Control) -> dict[str, Any]:
    """For `MessageStore.stats`. Cheap for a store that compacts nothing; reads no compacted file."""
    in_force = compactor.in_force
    facts = in_force.facts()
    file = facts.file
    covered = 0 if file is None else file.covered
    behind = control.wrote - max(covered, control.min_physical_offset) if compactor.topics else 0
    try:
        missing = in_force.missing() is not None
    except StoreError as error:
        log.error("the compacted files cannot be listed: %s", error)
        missing = True
    uncertain = in_force.uncertain_in(facts, missing=missing) if compactor.topics or file is not None else 0
    return {
        "compacted_records": 0 if file is None else file.records,
        "compacted_keys": 0 if file is None else file.keys,
        "compacted_bytes": 0 if file is None else file.size_bytes,
        "compacted_dead_ratio": 0.0 if file is None else file.dead_ratio,
        "compacted_up_to": covered,
        "compacted_behind_bytes": max(behind, 0),
        "compacted_last_turn_ms": 0 if file is None else file.made_ms,
        "compacted_uncertain_below": uncertain,
        "compacted_damaged": facts.damaged,
        "compacted_missing": int(missing),
    }
