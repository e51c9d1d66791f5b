"""The ready-made Celery app: its configuration, beat schedule and the main job's tasks. In the repository only, not
installed.

python -m celery_app             the main job (`make run`)
celery -A celery_app worker      a worker of it, and so on
"""

from celery_app.app import app

__all__ = ["app"]
