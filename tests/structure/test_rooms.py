"""Goal: a stranger finds the room that he looks for. Method: count each room's modules, read its first docstring, and
compare the table of layers.py with docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.structure import layers
from tests.structure.sources import ROOT, files, name_of

SOURCES = files(".py", ".pyx", ".pxd", ".pyi", ".h", under="cystore")
FOLDERS = sorted({path.parent for path in SOURCES})
PLACES = [place for place, _ in layers.ROOMS]


def _modules(folder: Path) -> set[str]:
    """What stands in a folder beside its `__init__`; the files of one kernel count once."""
    return {path.stem for path in SOURCES if path.parent == folder} - {"__init__"}


def _place(folder: Path) -> str:
    return str(folder.relative_to(ROOT)).replace("/", ".")


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_is_not_too_full(folder):
    most = layers.ROOT_MODULES_MAX if folder == ROOT / "cystore" else layers.ROOM_MODULES_MAX
    assert len(_modules(folder)) <= most, sorted(_modules(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_says_what_it_may_import(folder):
    place = _place(folder)
    assert place in PLACES, f"enter {place} into tests/structure/layers.py"
    if folder == ROOT / "cystore":
        return  # the surface: its docstring is for users
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    below = PLACES[PLACES.index(place) - 1]
    assert f"May import `{below}` and what is below it" in " ".join(said.split())


def test_every_place_is_there():
    gone = [
        place
        for place in PLACES
        if not (ROOT / place.replace(".", "/")).is_dir()
        and not (ROOT / (place.replace(".", "/") + ".py")).exists()
    ]
    assert not gone


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = page.partition(layers.PICTURE_BEGIN)[2].partition(layers.PICTURE_END)[0]
    assert shown.strip() == layers.picture(), "copy layers.picture() into docs/architecture.md"
