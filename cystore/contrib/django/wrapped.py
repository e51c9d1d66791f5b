"""Commands of cystore as commands of `manage.py`: the same options, the same work, for the project's Celery app."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from abc import abstractmethod
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import click
from celery.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from cystore import StoreError
from cystore.config import value_text
from cystore.contrib.django import project
from cystore.operate.command import FAILED
from cystore.operate.command import Command as OwnCommand
from cystore.operate.exits import hint
from cystore.operate.output import one_line

NAMES_KEPT = ("version", "settings", "pythonpath", "traceback", "verbosity")  # of Django's own options


class Wrapped(BaseCommand):
    """A command whose errors of the store and of settings are one line, and exit code 2."""

    requires_system_checks: ClassVar[list[str]] = []  # they work while the checks complain

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs it. Its output goes where Django's caller wants it."""
        with ExitStack() as around:
            if options.get("stdout") is not None:
                around.enter_context(redirect_stdout(options["stdout"]))
            try:
                code = self.work(options)
            except (StoreError, ImproperlyConfigured) as error:
                advice = hint(error) if isinstance(error, StoreError) else ""
                raise CommandError(one_line(f"{error}{advice}"), returncode=FAILED) from error
        if code:
            sys.exit(code)

    @abstractmethod
    def work(self, options: dict[str, Any]) -> int:
        """The work itself; returns the exit code."""


class AppCommand(Wrapped):
    """`celery -A APP cystore NAME`: `module` is that of the command."""

    module: ClassVar[str]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._command: click.Command = importlib.import_module(self.module).command
        self.help = inspect.cleandoc(self._command.help or "").partition("\n\n")[0]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The command's own options."""
        for one in self._command.params:
            assert isinstance(one, click.Option)
            assert one.name not in NAMES_KEPT
            names: dict[str, Any] = {
                "dest": one.name,
                "help": (one.help or "").replace("%", "%%"),
                "default": None,
            }
            if one.is_flag:
                parser.add_argument(*one.opts, action="store_true", **names)
            else:
                names["metavar"] = one.metavar or (one.name or "").upper()
                parser.add_argument(*one.opts, action="append" if one.multiple else "store", **names)

    def work(self, options: dict[str, Any]) -> int:
        """Gives the options to the command, which checks them."""
        words: list[str] = []
        for one in self._command.params:
            value = options.get(one.name or "")
            if value is None or value is False:
                continue
            if value is True:
                words.append(one.opts[0])
            else:
                given = value if isinstance(value, (list, tuple)) else [value]
                words += [f"{one.opts[0]}={text}" for text in given]
        caller = SimpleNamespace(app=project.celery_app())
        try:
            code = self._command.main(words, prog_name="manage.py", standalone_mode=False, obj=caller)
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error
        return code if isinstance(code, int) else 0


class StoreCommand(Wrapped):
    """`cystore NAME PATH`, for the store of the result backend."""

    command: ClassVar[OwnCommand]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.help = " ".join(self.command.description.split())

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The command's own options."""
        self.command.add_arguments(parser)

    def work(self, options: dict[str, Any]) -> int:
        """Gives the command its store, with the app's settings."""
        location = project.own_backend().location
        given = [f"{name}={value_text(name, value)}" for name, value in location.settings.items()]
        named = {**options, "path": Path(location.path), "settings": given, "config": None}
        return self.command.run(argparse.Namespace(**named))
