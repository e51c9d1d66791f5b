"""`python -m benchmarks.celery.without_plugin ARGUMENT...`: the command `celery` as if cystore were not installed.

It hides cystore's entry points. So Celery loads no part of cystore, unless the app imports it.
"""

from __future__ import annotations

import importlib.metadata
import sys

_all_entry_points = importlib.metadata.entry_points


def entry_points(**choice: str) -> importlib.metadata.EntryPoints:
    """The entry points of all packages but cystore."""
    found = _all_entry_points(**choice)
    return importlib.metadata.EntryPoints(one for one in found if not one.value.startswith("cystore"))


if __name__ == "__main__":
    importlib.metadata.entry_points = entry_points  # before Celery imports it by name
    from celery.__main__ import main

    sys.argv[0] = "celery"
    main()
