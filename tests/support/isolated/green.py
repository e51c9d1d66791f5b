"""The standard library, patched by gevent or eventlet. Imports nothing by itself: who is imported before is not
patched."""

from __future__ import annotations

import importlib
from typing import Any


def patched(library: str) -> Any:
    """Patches, and gives the library."""
    green = importlib.import_module(library)
    if library == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    else:
        green.monkey_patch()
    return green
