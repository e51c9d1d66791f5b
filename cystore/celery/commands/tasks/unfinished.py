"""`celery cystore unfinished`: tasks that were sent or begun, and have not ended."""

from __future__ import annotations

import click

from cystore.celery import history
from cystore.celery.commands.shared import app_store, command_options, task_display
from cystore.celery.lifecycle import task_lives
from cystore.clock import now_ms
from cystore.operate.command import duration_of
from cystore.operate.output import write_json, write_line, write_note


class Age(click.ParamType):
    """An age in ms: 90s, 15m, 2h, 7d, 2w."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The age in ms; fails with a list of accepted forms."""
        if isinstance(value, int):
            return value
        try:
            return duration_of(str(value))
        except ValueError as error:
            self.fail(str(error))


@click.command(
    "unfinished",
    epilog=command_options.examples(
        "unfinished", "unfinished --older-than 15m --name shop.charge", "unfinished --json"
    ),
)
@click.option(
    "--older-than", "age_ms", type=Age(), default="1h", show_default=True,
    help="Only tasks whose last event is at least this old; a task with an ETA or a countdown counts from its "
         "due time.",
)  # fmt: skip
@command_options.conditions
@command_options.limit_option(100)
@command_options.homes_option
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, age_ms: int, name: str | None, begin_ms: int, end_ms: int | None, limit: int,
    all_homes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Tasks that were sent, received or started, and have not ended as far as this store knows: newest sign first.

    A task whose result another store keeps may have ended there: it is counted, and left out, unless --all-homes reads
    that store.
    """
    now = now_ms()
    before_ms = now - age_ms if end_ms is None else min(end_ms, now - age_ms)
    found = elsewhere = 0
    with app_store.reading_homes(ctx, all_homes) as store:
        _say_what_counts(now, age_ms)
        newest_first = task_display.watched(
            store,
            history.events(
                store, name=name, states=(*task_lives.BEGINS, *task_lives.ENDS), begin_ms=begin_ms
            ),
            lines_follow=True,
        )
        read = store.by_home if isinstance(store, history.Stores) else ()
        here = task_lives.unfinished(store, newest_first, before_ms, app_store.is_valid(ctx))
        for life in here:
            if life.home and life.home not in read:
                elsewhere += 1
                continue
            found += 1
            _write(life, now, as_json)
            if limit and found == limit:
                break
        if elsewhere:
            write_note(f"{elsewhere} more tasks have their results in other stores: ask there")
        if not found:
            app_store.nothing_found(ctx, store, "no unfinished task of that age")


def _say_what_counts(now: int, age_ms: int) -> None:
    age, moment = task_display.duration_text(age_ms / 1000), task_display.at(now - age_ms)
    write_note(
        f"tasks without a new event for {age} (--older-than), since {moment}; a task whose worker was killed counts "
        "from its last event, mostly STARTED"
    )


def _write(life: task_lives.Life, now: int, as_json: bool) -> None:
    age_s = (now - (life.stage_ms or now)) / 1000
    if as_json:
        write_json({**task_display.life_object(life), "age_s": age_s})
        return
    where = [f"{key}={value}" for key, value in (("queue", life.queue), ("worker", life.worker)) if value]
    write_line(
        task_display.line(
            task_display.at(life.stage_ms),
            *task_display.life_words(life),
            f"for {task_display.duration_text(age_s)}",
            *where,
        )
    )
