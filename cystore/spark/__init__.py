"""The store in Apache Spark: `spark.read.format("cystore").load(path)`, and the same as a stream.

A program registers nothing: Spark finds the module pyspark_cystore by its name. `table`, `count` and `views` are
shortcuts.

May import `cystore.spark.jobs` and what is below it: docs/architecture.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cystore.spark.frames import count as count
    from cystore.spark.frames import table as table
    from cystore.spark.frames import views as views

__all__ = ["count", "table", "views"]


def __getattr__(name: str) -> Any:
    """Loads a function of `__all__` at its first use: most modules of this package do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("cystore.spark.frames"), name)
