"""The page on the durable log: an ASGI app with a JSON API, server-sent events and a page for people.

    import cystore.web

    app = cystore.web.create_app(["/var/lib/app/store"])

Needs cystore[web]. May import `cystore.web.answers` and what is below it: docs/architecture.md.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cystore.errors import StoreConfigError

if TYPE_CHECKING:
    from cystore.web.app import create_app as create_app


NEEDED = ("celery", "starlette", "uvicorn")


def check_installed() -> None:
    """Raises StoreConfigError unless the packages of the page are there."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise StoreConfigError(f"the page needs {', '.join(missing)}: pip install 'cystore[web]'")


def __getattr__(name: str) -> Any:
    """`create_app`, loaded when it is used."""
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cystore.web.app import create_app

    return create_app
