"""`manage.py cystore_import_schedules`: the schedules of django-celery-beat, into the store."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandError

from cystore.contrib.django import imported_schedules, project
from cystore.contrib.django.wrapped import Wrapped
from cystore.operate.command import FAILED
from cystore.operate.output import one_line, write_line, write_note


class Command(Wrapped):
    """The command, as Django finds it."""

    help = (
        "Takes over the schedules of django-celery-beat into the store of the result backend, disabled ones as paused. "
        "Stop its scheduler before: otherwise both run them."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which rows."""
        parser.add_argument("--database", default="default", help="the database with the rows")
        parser.add_argument(
            "--replace", action="store_true", help="replace schedules of the same name in the store"
        )

    def work(self, options: dict[str, Any]) -> int:
        """Imports, and says what became of the rows."""
        try:
            done = imported_schedules.import_schedules(
                project.own_backend().store_to_write, using=options["database"], replace_known=options["replace"],
                note=lambda text: write_note(one_line(text)),
            )  # fmt: skip
        except LookupError as error:
            raise CommandError(
                f"{error}: keep {imported_schedules.THEIRS} in INSTALLED_APPS for this command",
                returncode=FAILED,
            ) from error
        write_line(
            f"took over {done.schedules} schedules; left out: {done.known} whose name the store has, {done.over} that "
            f"would not run again, {done.refused} refused"
        )
        return 1 if done.refused else 0
