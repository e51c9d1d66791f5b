"""The layers, once: a module may import modules of lower layers, and modules of its own layer that do not lead back to it.

A new module is entered here; `test_layers.py` fails for one that is not.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

# From the bottom up. A pattern with * covers a package's modules.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "L0 settings, errors and the layout of bytes",
        ("cystore.layout", "cystore.errors", "cystore.config", "cystore.result"),
    ),
    ("L1 kernels", ("cystore._native", "cystore._native.*")),
    ("L2 the operating system", ("cystore.clock", "cystore.system*")),
    ("L3 the engine: the log by itself", ("cystore.engine*",)),
    ("L4 what follows from the log", ("cystore.derived*",)),
    (
        "L5 services, recovery and what composes them",
        (
            "cystore.services*",
            "cystore.recovery*",
            "cystore.holds",
            "cystore.archive",
            "cystore.archive_places",
            "cystore.carry_over",
            "cystore.stats",
            "cystore.attach",
            "cystore.attachment",
            "cystore.beside",
            "cystore.compose",
            "cystore.detach",
            "cystore.snapshot",
        ),
    ),
    ("L6 the store", ("cystore.store", "cystore.store_upkeep", "cystore")),
    (
        "L7 what users plug in",
        (
            "cystore.cli*",
            "cystore.celery*",
            "cystore.spark*",
            "cystore.arrow",
            "cystore.dataset",
            "cystore.expressions",
            "cystore.archive_delta",
            "cystore.archive_formats",
            "cystore.archive_iceberg",
            "cystore.archive_table",
            "cystore.archiving",
            "cystore.backup",
            "cystore.parquet",
            "cystore.sealed",
            "cystore.storage",
            "cystore.__main__",
            "pyspark_cystore",
        ),
    ),
    ("L8 the ready-made app", ("celery_app*",)),
)

# Modules that only import once their extra is there: module pattern, the package it needs.
NEEDS_EXTRA: tuple[tuple[str, str], ...] = (
    ("cystore.celery*", "celery"),
    ("celery_app*", "celery"),
    ("cystore.spark*", "pyspark"),
    ("cystore.spark.report_page", "matplotlib"),
    ("pyspark_cystore", "pyspark"),
    ("cystore.arrow", "pyarrow"),
    ("cystore.dataset", "pyarrow"),
    ("cystore.expressions", "pyarrow"),
    ("cystore.archive_delta", "deltalake"),
    ("cystore.archive_formats", "pyarrow"),
    ("cystore.archive_iceberg", "pyiceberg"),
    ("cystore.archive_table", "pyarrow"),
    ("cystore.archiving", "pyarrow"),
    ("cystore.parquet", "pyarrow"),
    ("cystore.sealed", "pyarrow"),
    ("cystore.storage", "pyarrow"),
)


def layer_of(module: str) -> int | None:
    """The number of the module's layer, an exact name before a pattern; None for a module that is in no layer."""
    for matches in (lambda pattern: pattern == module, lambda pattern: fnmatchcase(module, pattern)):
        for number, (_, patterns) in enumerate(LAYERS):
            if any(matches(pattern) for pattern in patterns):
                return number
    return None
