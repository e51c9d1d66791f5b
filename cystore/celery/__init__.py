"""The Celery plugin: result backend, history and the store's duties as tasks. Configuration alone reaches it:

result_backend = "cystore:///var/lib/app/store"

May import `cystore.celery.commands` and what is below it: docs/architecture.md.
"""

from importlib import import_module
from typing import Any

from cystore.celery import (
    versions,  # noqa: F401 - it refuses other versions of Celery
    worker,  # noqa: F401 - it listens for workers that begin
)


def __getattr__(name: str) -> Any:
    """`Once`, `install` and `spark_tasks`, which most programs do not need."""
    if name == "Once":
        from cystore.celery.once import Once

        return Once
    if name == "install":
        from cystore.celery.tasks import install

        return install
    if name == "spark_tasks":
        return import_module("cystore.celery.spark_tasks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
