"""All targets by name."""

from __future__ import annotations

from tests.fuzz import compaction, kernels, ledgers, parsers, replication, stores

TARGETS = {
    target.name: target
    for target in (
        *kernels.TARGETS,
        *compaction.TARGETS,
        *parsers.TARGETS,
        *stores.TARGETS,
        *replication.TARGETS,
        *ledgers.TARGETS,
    )
}
