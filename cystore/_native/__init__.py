"""The kernels: compiled modules. In a clone that is not built there are none, and the import says what to do.

May import `cystore.results` and what is below it: docs/architecture.md.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from os import path as _path

_HERE = _path.dirname(_path.abspath(__file__))

if not any(_path.exists(_path.join(_HERE, "record", f"message{suffix}")) for suffix in EXTENSION_SUFFIXES):
    _ROOT = _path.dirname(_path.dirname(_HERE))
    raise ImportError(
        f"cystore in {_ROOT} is not built for this Python: build it there with `make build`; or, to use an installed cystore "
        "(`pip install .`), start Python in another folder or as `python -P`, else the source folder comes first",
        name="cystore",
        path=_HERE,
    )
