"""Goal: docs/rocketmq.md has a row for every name of RocketMQ 4.9.3, and names nothing that is not there. Method: the
page's tables against the names of RocketMQ's source (rocketmq_names.json) and against our code."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from typing import Any

import pytest

import cystore
from cystore.cli.program import COMMANDS
from tests.structure.sources import ROOT

NAMES: dict[str, list[str]] = json.loads((ROOT / "tests/structure/rocketmq_names.json").read_text())
NAME = re.compile(r"`([^`]+)`")
FIELDS = {field.name for field in dataclasses.fields(cystore.StoreConfig)}
COMMAND_NAMES = {command.name for command in COMMANDS}


def rows() -> dict[str, list[tuple[str, str, str]]]:
    """For each class: theirs, ours, differences."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    section = ""
    for line in (ROOT / "docs/rocketmq.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| `"):
            theirs, ours, why = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(section, []).append((theirs, ours, why))
    return found


def exists(name: str) -> bool:
    """Whether a name of the middle column is there: a setting, a command, a member of the store, or a path of
    Python."""
    if name in FIELDS:
        return True
    if name.startswith("store."):
        return hasattr(cystore.MessageStore, name.removeprefix("store."))
    if name.startswith("cystore "):
        return name.removeprefix("cystore ") in COMMAND_NAMES
    return name.startswith("cystore.") and _resolves(name.split("."))


def _resolves(parts: list[str]) -> bool:
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not (hasattr(found, part) or part in getattr(found, "__annotations__", ())):
                return False
            found = getattr(found, part, None)
        return True
    return False


@pytest.mark.parametrize("section", NAMES)
def test_every_name_of_rocketmq_has_one_row(section):
    named = [name for theirs, _, _ in rows()[section] for name in NAME.findall(theirs)]
    assert sorted(named) == sorted(NAMES[section])


def test_the_page_has_no_other_tables():
    assert set(rows()) == set(NAMES)


def test_every_counterpart_is_there():
    wrong = [
        (section, ours)
        for section, table in rows().items()
        for _, ours, _ in table
        if ours != "not there" and not (NAME.findall(ours) and all(map(exists, NAME.findall(ours))))
    ]
    assert wrong == []


def test_what_is_not_there_has_its_reason():
    assert [
        theirs for table in rows().values() for theirs, ours, why in table if ours == "not there" and not why
    ] == []


def test_a_name_that_is_not_there_is_seen():
    """The search itself can fail."""
    wrong = (
        "store.putt",
        "cystore.nothing",
        "cystore nothing",
        "flush_nothing",
        "cystore.engine.log.flush.Flusher.none",
    )
    assert not any(map(exists, wrong))
