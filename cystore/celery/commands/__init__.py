"""The commands under ``celery -A APP cystore``: one small module for each. All but
`create` and `rerun` only read, and no worker has to run.

Each of Celery's programs loads this module, before the app and whatever the arguments are. If nothing uses the result
backend (`celery worker --quiet`), a worker loads no other part of cystore. So this module imports `queues`, by name.

May import `cystore.celery.commands.tasks` and what is below it: docs/architecture.md.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from cystore.celery.base import queues  # noqa: F401 - a worker consumes the queue of its store
from cystore.celery.commands import create, status, tail
from cystore.celery.commands.tasks import (
    diff,
    failures,
    find,
    history,
    rerun,
    slow,
    timeline,
    top,
    unfinished,
)
from cystore.operate.exits import PIPE_CLOSED, leave, whole_streams

EPILOG = """\b
Exit codes: 0 done, 1 nothing found, 2 wrong usage or an error of the store,
141 the reader of the output went away.
Every command takes --json, and --help shows examples."""


class _Quiet(click.Group):
    """Ends silently when the reader of the output goes away (`| head`), as the program `cystore` does."""

    def invoke(self, ctx: click.Context) -> Any:
        """Flushes the command's output while that can still fail quietly."""
        try:
            returned = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            ctx.exit(leave(PIPE_CLOSED))
        return returned


@click.group(cls=_Quiet, epilog=EPILOG)
def cystore(**_preload: object) -> None:
    """Shows the app's store and its tasks (result_backend = cystore:///path)."""
    whole_streams()


for module in (create, status, history, failures, unfinished, find, timeline, diff, slow, tail, top, rerun):
    cystore.add_command(module.command)
