"""All targets by name."""

from __future__ import annotations

from tests.fuzz import kernels, parsers, replication, stores

TARGETS = {
    target.name: target
    for target in (*kernels.TARGETS, *parsers.TARGETS, *stores.TARGETS, *replication.TARGETS)
}
