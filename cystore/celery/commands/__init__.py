"""The commands under ``celery -A APP cystore``: one small module for each. All but
`create`, `rerun`, `queue` and `move` only read, and no worker has to run.

Each of Celery's programs loads this module, before the app and whatever the arguments are. So this module imports no
command before it is used, and no part of cystore that opens stores. If nothing uses the result backend
(`celery worker --quiet`), a worker loads no other part of cystore. So this module imports `queues`, by name.

May import `cystore.celery.commands.tasks` and what is below it: docs/architecture.md.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from cystore.celery.base import queues  # noqa: F401 - a worker consumes the queue of its store

EPILOG = """\b
Exit codes: 0 done, 1 nothing found, 2 wrong usage or an error of the store,
141 the reader of the output went away.
Every command but web takes --json, and --help shows examples."""

_MODULES = (
    "cystore.celery.commands.create",
    "cystore.celery.commands.doctor",
    "cystore.celery.commands.duties",
    "cystore.celery.commands.eta",
    "cystore.celery.commands.move",
    "cystore.celery.commands.queue",
    "cystore.celery.commands.queues",
    "cystore.celery.commands.report",
    "cystore.celery.commands.schedules",
    "cystore.celery.commands.status",
    "cystore.celery.commands.tail",
    "cystore.celery.commands.tasks.diff",
    "cystore.celery.commands.tasks.failures",
    "cystore.celery.commands.tasks.find",
    "cystore.celery.commands.tasks.history",
    "cystore.celery.commands.tasks.rerun",
    "cystore.celery.commands.tasks.slow",
    "cystore.celery.commands.tasks.timeline",
    "cystore.celery.commands.tasks.top",
    "cystore.celery.commands.tasks.unfinished",
    "cystore.celery.commands.web",
)
_MODULE_OF = {module.rpartition(".")[2]: module for module in _MODULES}


class _Commands(click.Group):
    """Imports a command when it is used or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of one name, from its module."""
        module = _MODULE_OF.get(cmd_name)
        if module is None:
            return None
        found: click.Command = importlib.import_module(module).command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name. The error about a misspelt name shows similar ones, as Celery's own
        does."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            similar = difflib.get_close_matches(args[0], self.list_commands(ctx), cutoff=0.5)
            if not similar:
                raise
            hint = "\n    ".join(("Did you mean one of these?", *similar))
            raise click.UsageError(f"{error.message}\n\n{hint}", error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. If the reader of the output goes away (`| head`), it ends silently, as the program
        `cystore` does."""
        from cystore.operate.exits import PIPE_CLOSED, leave, whole_streams

        whole_streams()
        try:
            returned = super().invoke(ctx)
            sys.stdout.flush()  # while that can still fail quietly
        except BrokenPipeError:
            ctx.exit(leave(PIPE_CLOSED))
        return returned


@click.group(cls=_Commands, epilog=EPILOG)
def cystore(**_preload: object) -> None:
    """Shows the app's store and its tasks (result_backend = cystore:///path)."""
