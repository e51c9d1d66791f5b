"""The Celery plugin: result backend, history and the store's duties as tasks. Configuration alone reaches it:

result_backend = "cystore:///var/lib/app/store"
"""

from cystore.celery import (
    versions,  # noqa: F401 - it refuses other versions of Celery
    worker,  # noqa: F401 - it listens for workers that begin
)
