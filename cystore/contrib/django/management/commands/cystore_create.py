"""`manage.py cystore_create`: `celery -A APP cystore create` for the project's app."""

from __future__ import annotations

from cystore.contrib.django.wrapped import AppCommand


class Command(AppCommand):
    """The command, as Django finds it."""

    module = "cystore.celery.commands.create"
