"""`manage.py cystore_import_results`: the rows of django-celery-results, into the log."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandError

from cystore.contrib.django import imported_results, project
from cystore.contrib.django.wrapped import Wrapped
from cystore.operate.command import FAILED, moment
from cystore.operate.output import one_line, write_line, write_note


class Command(Wrapped):
    """The command, as Django finds it."""

    help = (
        "Stores the ended tasks and the groups of django-celery-results as results and events of the result backend. A "
        "task that the store knows is left out: a second run adds what is new."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which rows."""
        parser.add_argument("--database", default="default", help="the database with the rows")
        parser.add_argument(
            "--since",
            type=moment,
            default=0,
            help="only tasks that ended since: 2026-01-31T12:00:00Z, or an age: 7d",
        )

    def work(self, options: dict[str, Any]) -> int:
        """Imports, and says what became of the rows."""
        try:
            done = imported_results.import_results(
                project.own_backend(), using=options["database"], since_ms=options["since"],
                note=lambda text: write_note(one_line(text)),
            )  # fmt: skip
        except LookupError as error:
            raise CommandError(
                f"{error}: keep {imported_results.THEIRS} in INSTALLED_APPS for this command",
                returncode=FAILED,
            ) from error
        write_line(
            f"stored {done.results} results and {done.groups} groups; left out: {done.known} known to the store, "
            f"{done.unfinished} that have not ended, {done.unreadable} unreadable"
        )
        return 1 if done.unreadable else 0
