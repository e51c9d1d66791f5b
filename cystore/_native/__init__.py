"""The kernels: compiled modules, one room for each kind, one library for each room.

`cystore/_native/record.*.so` holds every module of `cystore/_native/record`. Python by itself looks for one library a
module, so `Finder` tells it which library has the module.

May import `cystore.results` and what is below it: docs/architecture.md.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from os import path as _path
from types import ModuleType

_HERE = _path.dirname(_path.abspath(__file__))


def _library(room: str) -> str | None:
    """The room's library for this Python; None where it is not built."""
    candidates = (_path.join(_HERE, f"{room}{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next(filter(_path.exists, candidates), None)


class Finder:
    """Finds `cystore._native.ROOM.MODULE` in the library of the room."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        room, _, module = name.removeprefix(f"{__name__}.").partition(".")
        library = _library(room) if module else None
        if library is None:
            return None
        return spec_from_file_location(name, library, loader=ExtensionFileLoader(name, library))


if _library("record") is None:
    _ROOT = _path.dirname(_path.dirname(_HERE))
    raise ImportError(
        f"cystore in {_ROOT} is not built for this Python: build it there with `make build`; or, to use an "
        "installed cystore "
        "(`pip install .`), start Python in another folder or as `python -P`, else the source folder comes first",
        name="cystore",
        path=_HERE,
    )

sys.meta_path.append(Finder)
