"""Chords: each step is a record.

May import `cystore.celery.routing` and what is below it: docs/architecture.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cystore.celery.chords.chord_steps import sweep as sweep


def __getattr__(name: str) -> Any:
    """`sweep`, loaded when it is used."""
    if name != "sweep":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cystore.celery.chords.chord_steps import sweep

    return sweep
