"""`celery cystore timeline`: a workflow as a tree, with the begin of each task and its waits."""

from __future__ import annotations

import dataclasses

import click

from cystore.celery.commands.shared import app_store, command_options, task_display, task_ids
from cystore.celery.lifecycle import workflows
from cystore.celery.lifecycle.task_lives import Life
from cystore.celery.lifecycle.workflows import Chord, Workflow
from cystore.operate.output import write_json, write_line, write_note

INDENTED = 20  # levels; a long chain is not indented further


@click.command(
    "timeline",
    epilog=command_options.examples(
        "timeline 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11",
        "timeline 4b5c2a8e-0d52-4b0e-9d0a-0e7d3f5a9c11 --json",
    ),
)
@click.argument("task_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True,
    help="Show at most this number of tasks: this one, those above it, and the newest others.",
)  # fmt: skip
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(ctx: click.Context, task_id: str, limit: int, all_homes: bool, as_json: bool) -> None:
    """The workflow of a task, as a tree: below each task those that it sent, then the chords of its groups.

    A line shows the time of sending (after the first one), the end, the wait for a worker, and the run time. A * stands
    before the given task. The beginning of an id is enough. Tasks that did not run are SKIPPED, with the task that
    failed; the root cause stands at the end. JSON: a line for each task, with its depth, then one for each chord.
    """
    with app_store.reading_homes(ctx, all_homes) as store:
        life = task_ids.known_life(ctx, store, task_id)
        workflow = workflows.workflow_of(store, life, limit, app_store.is_valid(ctx))
    if as_json:
        for depth, one in workflow.tasks:
            write_json({"kind": "task", "depth": depth, **task_display.life_object(one)})
        for chord in workflow.chords:
            write_json({"kind": "chord", **dataclasses.asdict(chord)})
    else:
        _show(workflow, life.task_id)
        task_display.write_causes(workflow.causes, as_json=False)
    if workflow.more:
        write_note(f"the workflow has more than {limit} tasks: the newest are shown; --limit shows more")


def _show(workflow: Workflow, asked: str) -> None:
    begin_ms = min((one.first_ms or 0 for _, one in workflow.tasks), default=0)
    write_line(task_display.line(task_display.at(begin_ms), f"workflow {workflow.root_id}"))
    shown_ids = {one.task_id for _, one in workflow.tasks}
    for depth, life in workflow.tasks:
        mark = "*" if life.task_id == asked else " "
        notes = [_after(life.first_ms, begin_ms), *task_display.life_words(life), *_notes(life)]
        if depth == 0 and life.parent_id and life.parent_id not in shown_ids:
            notes.append(f"(sent by {life.parent_id}, which this store does not know)")
        write_line(mark + "  " * min(depth, INDENTED) + task_display.line(*notes))
    for chord in workflow.chords:
        write_line(task_display.line(*_chord_words(chord, begin_ms)))


def _after(time_ms: int | None, begin_ms: int) -> str:
    return "+?" if time_ms is None else f"+{task_display.duration_text(max(0, time_ms - begin_ms) / 1000)}"


def _notes(life: Life) -> list[str]:
    notes = []
    if life.wait_ms is not None:
        notes.append(f"waited {task_display.duration_text(life.wait_ms / 1000)}")
    if life.runtime_s is not None:
        notes.append(f"ran {task_display.duration_text(life.runtime_s)}")
    if life.retries:
        notes.append(f"try {life.retries + 1}")
    if life.worker:
        notes.append(f"on {life.worker}")
    if life.group_id:
        notes.append(f"group {life.group_id}")
    if life.cause:
        notes.append(f"because of {life.cause}")
    if life.exception:
        notes.append(task_display.short(life.exception))
    return notes


def _chord_words(chord: Chord, begin_ms: int) -> list[str]:
    size = "?" if chord.size is None else chord.size
    words = [
        f"chord {chord.group_id}",
        f"{chord.parts}{' or more' if chord.has_more else ''} of {size} parts",
    ]
    if chord.last_part_ms is not None:
        words.append(f"last part {_after(chord.last_part_ms, begin_ms)}")
    body = " ".join(filter(None, ("body", chord.body_name, chord.body_id)))
    if chord.done_ms is not None:
        words.append(f"{body} {chord.outcome or '?'} {_after(chord.done_ms, begin_ms)}")
    elif chord.claimed_ms is not None:
        words.append(f"{body} claimed {_after(chord.claimed_ms, begin_ms)}, not sent yet")
    else:
        words.append(f"{body} not sent")
    return words
