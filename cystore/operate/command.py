"""The description of a command, and the arguments that commands share."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cystore.clock import now_ms
from cystore.config import StoreConfig
from cystore.config_sources import resolve
from cystore.errors import FilterError, StorePermissionError
from cystore.filters.sql import SqlFilter
from cystore.operate.output import BODIES
from cystore.system.links import real_path

OK, FOUND_WRONG, FAILED = 0, 1, 2  # exit codes; 1 is damage, or an empty answer
INT64_MAX = (1 << 63) - 1
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
# A number from here on is ms since 1970 (1973 and later), a smaller one is seconds (up to the year 5138).
MS_FROM = 10**11
PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")  # of a length of time
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclasses.dataclass(frozen=True)
class Command:
    """One command: `run` gets the parsed arguments and returns the exit code."""

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    listed: bool = True  # among all commands; the others are named by their group's help
    several: bool = False  # it takes several stores at once
    of_store: bool = True  # it takes a store and its settings

    def add_to(self, commands: Any) -> None:
        """Adds the command to the commands of a parser."""
        examples = "\n".join(f"  {line}" for line in self.examples)
        parser = commands.add_parser(
            self.name,
            **({"help": self.summary} if self.listed else {}),
            description=self.description,
            epilog=f"examples:\n{examples}\n\nExit codes and settings: cystore --help",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if self.of_store:
            self._add_store(parser)
        self.add_arguments(parser)
        if self.of_store:
            add_settings(parser)
        called = parser.prog.partition(" ")[2]  # with the group's name
        parser.set_defaults(command=self, called=called, usage_error=parser.error)

    def _add_store(self, parser: argparse.ArgumentParser) -> None:
        many: dict[str, Any] = {"nargs": "+", "help": "directories of the stores"} if self.several else {}
        parser.add_argument(
            "path", **{"metavar": "PATH", "type": store_path, "help": "directory of the store", **many}
        )


@dataclasses.dataclass(frozen=True)
class Group:
    """Commands that belong together, under one name."""

    name: str
    summary: str
    description: str
    commands: tuple[Command, ...]

    def add_to(self, commands: Any) -> None:
        """Adds the group to the commands of a parser."""
        examples = "\n".join(f"  {line}" for command in self.commands for line in command.examples)
        parser = commands.add_parser(
            self.name,
            help=self.summary,
            description=self.description,
            epilog=f"examples:\n{examples}\n\nExit codes and settings: cystore --help",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
        for command in self.commands:
            command.add_to(group)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options --set and --config, for `store_config`."""
    settings = parser.add_argument_group("settings of the store")
    settings.add_argument(
        "--set", metavar="NAME=VALUE", dest="settings", action="append", default=[],
        help="a field of cystore.StoreConfig; may be repeated, wins over the environment (CYSTORE_<FIELD>) and "
             "over --config",
    )  # fmt: skip
    settings.add_argument(
        "--config",
        metavar="FILE.toml",
        help="fields of cystore.StoreConfig, at the top or in the table [cystore]; default: the file that "
        "CYSTORE_CONFIG names",
    )


def place_argument(text: str) -> Path:
    """The place of a store, with every link resolved, because inside a store no link is followed."""
    try:
        return real_path(text)
    except StorePermissionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def path_argument(text: str) -> Path:
    """A path as given; an empty one would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def store_path(text: str) -> Path:
    """The same, of a store: with every link resolved."""
    return place_argument(os.fspath(path_argument(text)))


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help=f"{what}, for programs")


def add_body(parser: argparse.ArgumentParser) -> None:
    """The option --body."""
    parser.add_argument(
        "--body", choices=BODIES,
        help="full: all of it, decoded (JSON as JSON, other UTF-8 as text); text: the same, cut on lines for people; "
        "base64; none (default: text on lines, base64 with --json)",
    )  # fmt: skip


def add_filter(parser: argparse.ArgumentParser) -> None:
    """The option --filter."""
    parser.add_argument(
        "--filter", metavar="SQL", type=_sql_filter,
        help="only messages whose properties match, for example \"a > 3 AND b IN ('x')\"; needs cystore[filter]",
    )  # fmt: skip


def _sql_filter(text: str) -> SqlFilter:
    try:
        return SqlFilter(text)
    except (FilterError, ImportError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole_number(text: str) -> int:
    """An argument that is a whole number from 0 on."""
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not 0 <= value <= INT64_MAX:
        raise argparse.ArgumentTypeError(f"must be from 0 to {INT64_MAX}, not {value}")
    return value


def moment(text: str) -> int:
    """An argument that is a time, in ms since 1970: see `moment_of`."""
    try:
        return moment_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment_of(text: str) -> int:
    """A time in ms since 1970: ISO 8601 (UTC by default), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w.
    Raises ValueError, whose text lists the forms."""
    ago = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if ago:
        return now_ms() - int(ago[1]) * UNITS_MS[ago[2]]
    since_1970 = re.fullmatch(r"[0-9]{9,15}|[0-9]{9,11}\.[0-9]{1,9}", text)
    if since_1970:
        return int(text if "." not in text and int(text) >= MS_FROM else float(text) * 1000)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: give 2026-01-31T12:00:00Z, 2026-01-31, 1769860800 or 1769860800000 since "
            "1970, or an age: 90s, 15m, "
            "2h, 7d, 2w"
        ) from None


def duration(text: str) -> int:
    """An argument that is a length of time, in ms: see `duration_of`."""
    try:
        return duration_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration_of(text: str) -> int:
    """A length of time in ms: 250ms, 90s, 15m, 2h, 7d, 2w, or several of them: 1d12h. Raises ValueError."""
    parts = PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a length of time: give 90s, 15m, 2h, 7d, 2w or 1d12h")
    return sum(int(number) * UNITS_MS[unit] for number, unit in parts)


def due_time(text: str) -> int:
    """An argument that is a time to come, in ms since 1970: "2027-01-01T09:00+01:00", or ms since 1970. Without a zone
    it would be another time than people mean, so it is refused."""
    if text.isascii() and text.isdecimal() and int(text) >= MS_FROM:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give YYYY-MM-DDTHH:MM with a zone, for example 2027-01-01T09:00+01:00, or ms "
            "since 1970"
        ) from None
    if time.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} names no zone: add Z for UTC, or an offset like +01:00")
    return (time - EPOCH) // timedelta(milliseconds=1)


def count(text: str) -> int:
    """An argument that is a whole number from 1 on."""
    value = whole_number(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def store_config(args: argparse.Namespace, **fixed: Any) -> StoreConfig:
    """The settings that the arguments give; `fixed` are the command's own and win. Raises StoreConfigError."""
    given = dict(StoreConfig.parse_setting(text) for text in args.settings) | fixed
    return resolve(given, file=args.config, arguments_source="--set")


def reading_config(args: argparse.Namespace) -> StoreConfig:
    """Settings of a command that writes nothing."""
    return for_reading(store_config(args))


def for_reading(config: StoreConfig) -> StoreConfig:
    """The same settings for a reader of large batches: RocketMQ's limits are for its clients."""
    limits = {
        name: max(getattr(config, name), 1024 if "count" in name else 4 << 20)
        for name in (
            "max_transfer_bytes_on_message_in_memory",
            "max_transfer_count_on_message_in_memory",
            "max_transfer_bytes_on_message_in_disk",
            "max_transfer_count_on_message_in_disk",
        )
    }
    return dataclasses.replace(config, read_only=True, services=(), **limits)
