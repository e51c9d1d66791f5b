"""The files that are ours, by kind, and a reader for their imports; shared by the tests of this folder."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git knows or would take, so neither builds nor caches; outside a work tree, every file there
    is."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))
    ignored = {"build", ".venv", "dist", "target", "__pycache__"}
    return tuple(
        sorted(
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not ignored & set(path.relative_to(ROOT).parts)
        )
    )


def files(*suffixes: str, under: str | tuple[str, ...] = "") -> list[Path]:
    """Our files with one of the suffixes, below one of the folders (or anywhere)."""
    folders = (under,) if isinstance(under, str) else under
    return [
        path
        for path in tracked()
        if path.suffix in suffixes and any(path.is_relative_to(ROOT / folder) for folder in folders)
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """`cystore/_native/record/record.pxd` is `cystore._native.record.record`; a package's `__init__` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, order=True)
class Import:
    """`importer` names `imported` at `line`; `typing_only` when it stands under `if TYPE_CHECKING`."""

    importer: str
    imported: str
    line: int
    typing_only: bool = False


CIMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<package>[\w.]+)[ \t]+c?import[ \t]+(?P<names>[^#\n]+)|c?import[ \t]+(?P<plain>[^#\n]+))"
)


def imports(path: Path, modules: Iterable[str]) -> list[Import]:
    """Every import and cimport in a file, resolved to the longest known module name."""
    known = set(modules)
    importer = module_of(path)
    if path.suffix == ".py":
        found = _python_imports(path)
    else:
        found = _cython_imports(path)
    resolved = []
    for line, package, name, typing_only in found:
        full = f"{package}.{name}" if name else package
        imported = full if full in known else package
        if imported != importer:
            resolved.append(Import(importer, imported, line, typing_only))
    return resolved


def _python_imports(path: Path) -> list[tuple[int, str, str, bool]]:
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text, str(path))))
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    guarded = {
        id(inner)
        for node in (nodes if "TYPE_CHECKING" in text else ())
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "", id(node) in guarded) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, origin, alias.name, id(node) in guarded) for alias in node.names]
    return found


def _with_its_names(lines: list[str], number: int) -> str:
    """A line, and the lines behind it up to the parenthesis that closes a list of names."""
    line = lines[number - 1]
    if "import (" not in line or ")" in line:
        return line
    names = itertools.takewhile(lambda each: ")" not in each, lines[number:])
    closing = next((each for each in lines[number:] if ")" in each), "")
    return " ".join([line, *names, closing])


def _cython_imports(path: Path) -> list[tuple[int, str, str, bool]]:
    found = []
    lines = path.read_text().splitlines()
    for number in range(1, len(lines) + 1):
        match = CIMPORT.match(_with_its_names(lines, number))
        if not match:
            continue
        if match["plain"]:
            found += [(number, part.split()[0].strip(), "", False) for part in match["plain"].split(",")]
        else:
            names = match["names"].strip().strip("()").split(",")
            found += [(number, match["package"], part.split()[0], False) for part in names if part.strip()]
    return found
