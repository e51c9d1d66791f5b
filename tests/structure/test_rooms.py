"""Goal: a stranger finds the room that he looks for. Method: count each room's modules, read its first docstring, and
compare the table of layers.py with docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure import layers
from tests.structure.sources import ROOT, files, name_of

SOURCES = files(".py", ".pyx", ".pxd", ".pyi", ".h", under="cystore")
FOLDERS = sorted({path.parent for path in SOURCES})
PLACES = [place for place, _ in layers.ROOMS]
SUPPORT = ROOT / "tests" / "support"
# Rooms of tests that are programs or tools by themselves.
PROGRAMS = {"celery/integration", "oracle", "spark/table_readers", "structure"}


def _modules(folder: Path) -> set[str]:
    """What stands in a folder beside its `__init__`; the files of one kernel count once."""
    return {path.stem for path in SOURCES if path.parent == folder} - {"__init__"}


def _place(folder: Path) -> str:
    return str(folder.relative_to(ROOT)).replace("/", ".")


def test_no_room_is_too_full():
    for folder in FOLDERS:
        most = layers.ROOT_MODULES_MAX if folder == ROOT / "cystore" else layers.ROOM_MODULES_MAX
        assert len(_modules(folder)) <= most, (name_of(folder), sorted(_modules(folder)))


def test_a_room_says_what_it_may_import():
    assert not {_place(folder) for folder in FOLDERS} - {*PLACES}, "enter them into tests/structure/layers.py"
    for folder in FOLDERS:
        if folder == ROOT / "cystore":
            continue  # the surface: its docstring is for users
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        below = PLACES[PLACES.index(_place(folder)) - 1]
        assert f"May import `{below}` and what is below it" in " ".join(said.split()), name_of(folder)


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


def test_helpers_of_tests_are_in_one_place():
    """A folder with a `__main__`, and a module that says `python -m` of itself, are programs."""
    tests = ROOT / "tests"
    wrong = [
        str(path.relative_to(ROOT))
        for path in files(".py", under="tests")
        if not path.is_relative_to(SUPPORT)
        and not path.name.startswith(("test_", "conftest", "__init__"))
        and str(path.parent.relative_to(tests)) not in PROGRAMS
        and not any((folder / "__main__.py").exists() for folder in (path.parent, path.parent.parent))
        and f"python -m {name_of(path).replace('/', '.').removesuffix('.py')}" not in path.read_text()
    ]
    assert not wrong, f"move to tests/support: {wrong}"


def test_a_room_of_helpers_is_not_too_full():
    rooms: dict[Path, set[str]] = {}
    for path in files(".py", under="tests/support"):
        rooms.setdefault(path.parent, set()).add(path.stem)
    assert not {
        str(room): sorted(names) for room, names in rooms.items() if len(names) > layers.ROOM_MODULES_MAX
    }
