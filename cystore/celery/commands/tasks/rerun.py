"""`celery cystore rerun`: tasks again, with the arguments that they had."""

from __future__ import annotations

import sys

import click

from cystore.celery.commands.shared import app_store, command_options, task_display, task_ids
from cystore.celery.lifecycle import reruns
from cystore.celery.lifecycle.reruns import Rerun, RerunError
from cystore.celery.lifecycle.task_lives import Life
from cystore.operate.output import one_line, write_json, write_line, write_note


@click.command(
    "rerun",
    epilog=command_options.examples(
        "rerun 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11", "rerun ID ID ID --yes --json", "rerun ID --same-id"
    ),
)
@click.argument("given_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--same-id", is_flag=True, help="Send it under its old id, as a part of its group and chord.")
@click.option(
    "--yes", is_flag=True, help="Do not ask about tasks that have succeeded already, or have not ended."
)
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, given_ids: tuple[str, ...], same_id: bool, yes: bool, as_json: bool) -> None:
    """Send tasks again, with unchanged arguments, options and callbacks.

    The app must keep messages (cystore_lifecycle_payload = "message") when the task is sent. Each task gets a new id,
    which is shown. All tasks are checked first: if one cannot be sent again, none is.
    """
    location = app_store.location_of(ctx)
    with app_store.reading(location) as store:
        known = (task_ids.known_life(ctx, store, given) for given in given_ids)
        lives = list({life.task_id: life for life in known}.values())
        found, problems = [], []
        for life in lives:
            try:
                found.append(reruns.prepare(store, life, same_id=same_id))
            except RerunError as error:
                problems.append(str(error))
    for problem in problems:
        write_note(problem)
    if problems:
        raise app_store.CommandError(
            f"{len(problems)} of {len(lives)} tasks cannot be sent again; nothing was sent"
        )
    _confirm(ctx, lives, yes)
    for rerun in found:
        _send(ctx, rerun, as_json)


def _confirm(ctx: click.Context, lives: list[Life], yes: bool) -> None:
    """Asks about tasks whose work may be done twice. Without a terminal there is no answer: --yes is then needed."""
    doubtful = [(life, why) for life in lives if (why := _doubt(life))]
    if yes or not doubtful:
        return
    for life, why in doubtful:
        write_note(f"{life.task_id} ({life.name or 'no name'}) {why}")
    if not _somebody_answers():
        raise app_store.CommandError("give --yes to run them again; nothing was sent")
    if not click.confirm(f"run {'it' if len(lives) == 1 else f'all {len(lives)}'} again?", err=True):
        raise app_store.CommandError("nothing was sent")


def _somebody_answers() -> bool:
    """Whether a person sits at standard input."""
    return sys.stdin.isatty()


def _doubt(life: Life) -> str:
    if life.has_succeeded:
        return "has succeeded"
    return "" if life.outcome else f"has not ended ({life.stage or life.result_state}): it may still run"


def _send(ctx: click.Context, rerun: Rerun, as_json: bool) -> None:
    try:
        reruns.send(ctx.obj.app, rerun)
    except Exception as error:  # whatever the broker's client raises
        raise app_store.CommandError(one_line(f"{rerun.life.task_id} was not sent: {error}")) from error
    if as_json:
        told = {
            "task_id": rerun.task_id,
            "rerun_of": rerun.life.task_id,
            "name": rerun.life.name,
            "notes": rerun.notes,
        }
        write_json(told)
    else:
        under = "under the same id" if rerun.task_id == rerun.life.task_id else f"as {rerun.task_id}"
        write_line(task_display.line(rerun.life.task_id, f"sent again {under}", *rerun.notes))
    sys.stdout.flush()
