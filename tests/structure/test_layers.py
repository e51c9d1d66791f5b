"""Goal: imports only point down. Method: read every import and cimport of every module, and import each in a fresh
process."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from cystore.system.threads import reentry
from tests.structure import layers
from tests.structure.sources import ROOT, Import, files, imports, module_of

PACKAGES = ("cystore", "celery_app")
SPARKS = "pyspark_cystore"
SOURCES = files(".py", ".pyx", ".pxd", under=(*PACKAGES, f"{SPARKS}.py"))
MODULES = sorted({module_of(path) for path in SOURCES})
# `import cystore` must not import these: the extras' packages.
HEAVY = ("celery", "kombu", "redis", "pyspark", "pyarrow", "rich", "hypothesis", "crc32c", "Cython")
# Other modules may name a type of these: parts of a result backend or of a client its own, and `cystore` what it loads
# at its first use.
MAY_BE_NAMED = (
    "cystore.celery.backend",
    "cystore.celery.routing.client",
    "cystore.columns.arrow",
    "cystore.columns.dataset",
)
# Django's models and admin are imported once it has read its settings.
IN_DJANGO = """
import django
from django.conf import settings
apps = ["django.contrib." + app for app in ("auth", "admin", "contenttypes", "messages")]
settings.configure(INSTALLED_APPS=[*apps, "cystore.contrib.django"])
django.setup()
"""
# Texts that look like modules and are none.
NO_MODULES = {
    "cystore._native.message": "a module of an earlier release, in pickles",
    "cystore._native.read.get_result": "the same",
    "cystore.result": "the same",
    "cystore.stats": "the same",
    "cystore.fan_out": "a task of Celery",
    "cystore.home_record": "a task of Celery",
    "cystore.eta_keep": "a task of Celery",
    "cystore.eta_cancel": "a task of Celery",
    "cystore.options": "a property of a table that SQL made",
}


@cache
def all_imports() -> list[Import]:
    """Every import of our modules. Not at the collection, which each process of pytest repeats."""
    return sorted({found for path in SOURCES for found in imports(path, MODULES)})


def _only_named(found: Import) -> bool:
    return found.typing_only and found.imported in MAY_BE_NAMED


def our_imports() -> list[Import]:
    return [found for found in all_imports() if found.imported.split(".")[0] in PACKAGES]


def test_every_module_has_a_layer():
    without = [module for module in MODULES if layers.layer_of(module) is None]
    assert not without, "enter them into tests/structure/layers.py"


def _points_up(found: Import) -> bool:
    upper, lower = layers.layer_of(found.importer), layers.layer_of(found.imported)
    return upper is not None and lower is not None and lower > upper and not _only_named(found)


def test_imports_only_point_down():
    wrong = [
        f"{i.importer}:{i.line} imports {i.imported}, which is in a higher layer"
        for i in our_imports()
        if _points_up(i)
    ]
    assert not wrong, "\n".join(wrong)


def test_an_import_that_points_up_is_seen():
    assert _points_up(Import("cystore.system.files", "cystore.store", 1))
    assert _points_up(Import("cystore.consumers.groups", "cystore.surface.consumers", 1, typing_only=True))
    assert not _points_up(Import("cystore.store", "cystore.system.files", 1))


def test_the_guard_against_interruption_knows_every_room_of_the_store():
    """Seen: seven names of modules that were gone, and seven rooms left out. A close in a signal handler hung."""
    places = [place for place, _ in layers.ROOMS]
    below = places[: places.index("cystore.store") + 1]
    assert {place.split(".")[1] for place in below} == reentry.INSIDE
    assert reentry.is_inside("cystore.ha.election.member") and not reentry.is_inside("cystore.storefront")


def no_module(text: str) -> bool:
    """Whether a text looks like the name of a module of ours, or the beginning of some, and there is none."""
    if not re.fullmatch(rf"({'|'.join(PACKAGES)})(\.[a-z_]+)+\.?\*?", text):
        return False
    begin = text.rstrip(".*")
    known = text in NO_MODULES or begin in MODULES or any(one.startswith(f"{begin}.") for one in MODULES)
    return not known


def test_a_text_that_names_a_module_names_one():
    assert no_module("cystore.carry_over") and not no_module("cystore.store")
    texts = [
        (module_of(path), node.lineno, node.value)
        for path in SOURCES
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    wrong = [f"{module}:{line}: {text}" for module, line, text in texts if no_module(text)]
    assert not wrong, "no such module; tell in NO_MODULES what else it is:\n" + "\n".join(wrong)
    assert not set(NO_MODULES) - {text for *_, text in texts}, "nobody says these any more"


def test_no_imports_lead_in_a_circle():
    """Naming a package inside it (`from cystore.system import files`) counts as naming the module, not the package."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in our_imports():
        inside = found.importer.startswith(found.imported + ".")
        if not _only_named(found) and not inside:
            graph[found.importer].add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("imports in a circle: " + " -> ".join(reversed(error.args[1])))


def test_the_library_does_not_import_what_is_around_it():
    outside = {"tests", "tools", "benchmarks"}
    wrong = [
        i for i in all_imports() if i.importer.startswith("cystore") and i.imported.split(".")[0] in outside
    ]
    assert not wrong


def test_no_module_is_dead():
    """Each is imported by another one, named whole where it is imported later, or reached by an entry point or by
    `python -m`."""
    project = (ROOT / "pyproject.toml").read_text()
    texts = [path.read_text() for path in SOURCES]
    imported = {found.imported for found in our_imports()}
    imported |= {part for module in imported for part in _parents(module)}
    entered = {module for module in MODULES if module.endswith("__main__") or f'"{module}:' in project}
    named = {module for module in MODULES if any(f'"{module}"' in text for text in texts)}
    named |= {part for module in named for part in _parents(module)}
    found = {one for one in MODULES if any(fnmatchcase(one, name) for name in layers.FOUND_BY_NAME)}
    dead = sorted(set(MODULES) - imported - entered - named - found - {*PACKAGES})
    assert not dead, f"nobody imports {dead}"


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _in_a_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=120, check=False
    )


def _importable(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or path.is_dir() or path.with_suffix(".pyx").exists()


ALONE = [
    pytest.param(
        module,
        marks=[pytest.mark.may_skip("that extra comes with its own issue")]
        if module.startswith(("cystore.spark", SPARKS))
        else [],
    )
    for module in MODULES
    if _importable(module) and not module.endswith("__main__")
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("module", ALONE)
def test_every_module_imports_alone(module):
    for extra in layers.needed_extras(module):
        if importlib.util.find_spec(extra) is None:
            pytest.skip(f"{extra} is not installed")
    begin = IN_DJANGO if module.startswith("cystore.contrib.django") else ""
    done = _in_a_fresh_process(f"{begin}import {module}")
    assert done.returncode == 0, done.stderr


def test_import_cystore_loads_no_extra():
    done = _in_a_fresh_process(
        f"import cystore, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_command_needs_no_extra():
    """The command line gets along without the packages that only make its output nicer."""
    block = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))"
    done = _in_a_fresh_process(
        f"{block}; import cystore.cli; sys.argv = ['cystore', '--help']; cystore.cli.main()"
    )
    assert done.returncode == 0, done.stderr
    assert "verify" in done.stdout
