"""The commands with their arguments, read from the parser: for shell completion and for man pages."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Literal, NamedTuple

from cystore.config import StoreConfig

Kind = Literal["none", "text", "file", "folder", "choice", "setting"]
FOLDERS = ("PATH", "DIR", "FOLDER", "STORE", "TARGET")  # metavars that name folders; `FILE...` is a file


class Argument(NamedTuple):
    """An option or a positional argument. `kind` is its value: "none" for a flag."""

    names: tuple[str, ...]  # empty: positional
    metavar: str
    help: str
    kind: Kind
    choices: tuple[str, ...] = ()
    many: bool = False


class Node(NamedTuple):
    """A command, or a group of them. `path` is empty for the program itself."""

    path: tuple[str, ...]
    help: str
    parser: argparse.ArgumentParser
    children: tuple[tuple[str, str], ...]  # name and help of each command below
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]


def nodes(program: argparse.ArgumentParser) -> list[Node]:
    """The program, and every command, in the order of the program's help."""
    found = list(_walk(program, (), ""))
    named = {node.path: node for node in found}
    # "topics delete" is one name for the parser, and a command below `topics` for people.
    return [
        node._replace(
            children=tuple(
                (other.path[-1], other.help)
                for other in named.values()
                if other.path[:-1] == node.path and other.path
            )
        )
        for node in found
    ]


def settings() -> dict[str, tuple[str, ...]]:
    """Each setting of a store, with the values that it may have if they are few."""
    hints = typing.get_type_hints(StoreConfig)
    return {field.name: _values(hints[field.name]) for field in dataclasses.fields(StoreConfig)}


def _values(kind: object) -> tuple[str, ...]:
    if kind is bool:
        return "false", "true"
    if typing.get_origin(kind) is Literal:
        return tuple(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(value for part in typing.get_args(kind) for value in _values(part))
    return ()


def _walk(parser: argparse.ArgumentParser, path: tuple[str, ...], help_text: str) -> Iterator[Node]:
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    groups = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    arguments = [_argument(action) for action in actions if action not in groups]
    yield Node(
        path,
        help_text,
        parser,
        (),
        tuple(one for one in arguments if one.names),
        tuple(one for one in arguments if not one.names),
    )
    for group in groups:
        helps = {choice.dest: choice.help for choice in group._choices_actions}
        for name, below in group.choices.items():
            text = helps.get(name) or (below.description or "").split(". ")[0].replace("\n", " ").rstrip(".")
            yield from _walk(below, (*path, *name.split()), _plain(text))


def _argument(action: argparse.Action) -> Argument:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    choices = tuple(map(str, action.choices)) if action.choices is not None else ()
    return Argument(
        tuple(action.option_strings),
        metavar or ("|".join(choices) if choices else action.dest.upper().replace("_", "-")),
        _plain(action.help or ""),
        _kind(action, metavar, choices),
        choices,
        action.nargs == "+",
    )


def _kind(action: argparse.Action, metavar: str, choices: tuple[str, ...]) -> Kind:
    if action.nargs == 0:
        return "none"
    if choices:
        return "choice"
    if metavar.startswith("FILE"):
        return "file"
    if metavar in FOLDERS:
        return "folder"
    return "setting" if action.dest == "settings" or "--unset" in action.option_strings else "text"


def _plain(text: str) -> str:
    """A help text on one line, with argparse's escapes resolved."""
    return " ".join(text.replace("%%", "%").split())
