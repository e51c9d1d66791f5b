"""The lifecycle log: written, read, searched, drawn.

May import `cystore.celery.history` and what is below it: docs/architecture.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cystore.celery.lifecycle.recorder import log_of as log_of


def __getattr__(name: str) -> Any:
    """`log_of`, loaded when it is used."""
    if name != "log_of":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cystore.celery.lifecycle.recorder import log_of

    return log_of
