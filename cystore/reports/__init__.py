"""The report of a fleet: attempts, tables, plots, one HTML page. Nothing here needs Spark; its jobs use the same code.

May import `cystore.operate` and what is below it: docs/architecture.md.
"""

from importlib.util import find_spec

from cystore.errors import StoreConfigError

NEEDED = ("pyarrow", "numpy")
NEEDED_BY_PLOTS = "matplotlib"


def check_installed(*, plots: bool) -> None:
    """Raises StoreConfigError unless the packages of the report, and of its plots, are there."""
    names = (*NEEDED, NEEDED_BY_PLOTS) if plots else NEEDED
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise StoreConfigError(f"the report needs {', '.join(missing)}: pip install 'cystore[report]'")
