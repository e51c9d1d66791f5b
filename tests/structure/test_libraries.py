"""Goal: the kernels are few libraries, one for each room, and each module is found in its room's. Method: look at the
built tree, import from it, and build with files in the way that no build makes any more."""

from __future__ import annotations

import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from cystore import _native
from tests.structure.sources import files, module_of
from tools import build

LIBRARIES_MAX = 10
NATIVE = Path(_native.__file__).parent
MODULES = [module_of(path) for path in files(".pyx", under="cystore/_native")]


def test_each_room_is_one_library():
    built = sorted(path.relative_to(NATIVE) for path in NATIVE.rglob("*.so"))
    rooms = sorted({module.split(".")[2] for module in MODULES})
    assert built == [Path(f"{room}{EXTENSION_SUFFIXES[0]}") for room in rooms]
    assert len(built) <= LIBRARIES_MAX


def test_each_module_is_in_the_library_of_its_room():
    found = {name: importlib.import_module(name).__file__ for name in MODULES}
    assert found == {name: str(NATIVE / f"{name.split('.')[2]}{EXTENSION_SUFFIXES[0]}") for name in MODULES}


@pytest.mark.parametrize("name", ["record.no_such_module", "no_such_room.message", "no_such_room"])
def test_a_module_that_is_not_there_is_not_imported(name):
    with pytest.raises(ImportError, match="no_such"):
        importlib.import_module(f"cystore._native.{name}")


def test_a_build_keeps_no_library_that_it_does_not_make(tmp_path):
    """A library of a module's own name would be imported instead of the room's."""
    room = tmp_path / "cystore" / "_native" / "record"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    for stale in (room / "message.cpython-311.so", room.with_name("message.cpython-311.so")):
        stale.touch()
    made = room.with_name("record.cpython-311.so")
    made.touch()
    build.drop_stale_libraries(tmp_path)
    assert list(tmp_path.rglob("*.so")) == [made]


def test_a_build_keeps_no_output_of_cython_without_a_source(tmp_path, monkeypatch):
    """A header that moved to another room would still be found in its old one."""
    (tmp_path / "setup.py").write_text("")
    sources = ["layout.h", "record/message.pyx", "memory/atomics.h", "memory/atomics.pxd"]
    made = ["layout.h", "record/message.c", "memory/atomics.h", "memory/atomics.pxd"]
    stale = [
        "record/atomics.h",
        "record/atomics.pxd",
        "record/digest.c",
        "old_room/message.c",
        "old_room/layout.h",
    ]
    rooms, output = tmp_path / "cystore" / "_native", tmp_path / "build" / "cython" / "cystore" / "_native"
    for path in [*(rooms / name for name in sources), *(output / name for name in made + stale)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    compiled = [
        tmp_path / f"build/{folder}/build/cython/cystore/_native/{room}/m.o"
        for folder in ("temp.x", "asan/temp.x")
        for room in ("record", "memory")
    ]
    for path in compiled:
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(build, "ROOT", tmp_path)
    build.build()
    assert [path.exists() for path in compiled] == [False, True, False, True]
    assert sorted(str(path.relative_to(output)) for path in output.rglob("*.*")) == sorted(made)
