"""Options that several commands have: times, names, states, limits, JSON; and the examples in a help text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import click
from celery import states

from cystore.celery import history
from cystore.celery.base import events, records
from cystore.celery.base.reading import Source
from cystore.celery.commands.shared.app_store import CommandError
from cystore.operate.command import moment_of
from cystore.operate.output import one_line

STATES = (*events.KINDS, *sorted(states.ALL_STATES), records.FORGET)


Function = TypeVar("Function", bound=Callable[..., Any])


class Moment(click.ParamType):
    """A time, as ms since 1970: ISO 8601 (UTC by default), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d,
    2w."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms; fails with a list of accepted forms."""
        if isinstance(value, int):
            return value
        try:
            return moment_of(value)
        except ValueError as error:
            self.fail(str(error))


def conditions(function: Function) -> Function:
    """The options --name (or --task), --since and --until."""
    for option in (
        click.option("--until", "end_ms", type=Moment(), help="Not later than this."),
        click.option(
            "--since", "begin_ms", type=Moment(), default=0,
            help="Not before this: ISO 8601 (UTC), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w.",
        ),
        click.option("--name", "--task", "name", help="Only tasks of this name."),
    ):  # fmt: skip
        function = option(function)
    return function


def states_option(text: str) -> Callable[[Function], Function]:
    """The option --state, which may be repeated. `check_states` refuses impossible states."""
    return click.option("--state", "states", multiple=True, callback=_known_spelling, help=text)


def _known_spelling(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """States as they are stored: `failed` is FAILED. Another name may be a state of the app's own."""
    return tuple(one.upper() if one.upper() in STATES else one for one in given)


def check_states(store: Source, given: Sequence[str]) -> None:
    """Refuses a state that is neither the lifecycle log's nor Celery's, unless the store has it: apps make states of
    their own."""
    for one in given:
        if one not in STATES and not any(True for _ in islice(history.entries(store, states=(one,)), 1)):
            raise CommandError(
                one_line(
                    f"--state {one}: no task had this state, and it is not one of {', '.join(dict.fromkeys(STATES))}"
                )
            )


homes_option = click.option(
    "--all-homes", is_flag=True,
    help="Read the replicas of other homes on this host, too (setting cystore_replicas), as one history.",
)  # fmt: skip
full_option = click.option(
    "--full", is_flag=True, help="Show whole arguments and results on lines for people."
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def limit_option(default: int) -> Callable[[Function], Function]:
    """The option --limit."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        help="Show at most this number; 0: all.",
    )


def examples(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  celery -A shop cystore {line}" for line in lines)
