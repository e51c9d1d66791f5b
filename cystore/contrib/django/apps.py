"""The app, as Django finds it in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class CystoreConfig(AppConfig):
    """Tasks in the log of the result backend. It has no table."""

    name = "cystore.contrib.django"
    label = "cystore"
    verbose_name = "Tasks (cystore)"

    def ready(self) -> None:
        """Registers the checks."""
        from cystore.contrib.django.checks import check_host, check_project

        checks.register(check_project, "cystore")
        checks.register(check_host, "cystore", deploy=True)
