"""`manage.py cystore_report`: `celery -A APP cystore report` for the project's app."""

from __future__ import annotations

from cystore.contrib.django.wrapped import AppCommand


class Command(AppCommand):
    """The command, as Django finds it."""

    module = "cystore.celery.commands.report"
