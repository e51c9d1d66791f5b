"""The main job's input: Python source files that are on every machine that has Python."""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from pathlib import Path

PACKAGES = ("site-packages", "dist-packages")
FAILING_WANTED = 3
BROKEN = {
    "unclosed.py": "def add(a, b:\n    return a + b\n",
    "badly_indented.py": "def add(a, b):\n    total = a + b\n  return total\n",
    "two_operators.py": "total = 1 + * 2\n",
}


def python_files() -> list[Path]:
    """Every source file of the running interpreter's standard library and site-packages, sorted."""
    paths = sysconfig.get_paths()
    libraries = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib")}
    packages = {Path(paths[name]).resolve() for name in ("purelib", "platlib")}
    found = {
        path
        for library in libraries
        for path in library.rglob("*.py")
        if not set(path.relative_to(library).parts) & set(PACKAGES)  # not those of another environment
    }
    found |= {path for folder in packages if folder.is_dir() for path in folder.rglob("*.py")}
    return sorted(path for path in found if path.is_file())


def library_of(path: str) -> str:
    """The package (or module) of the library that a file belongs to."""
    paths = sysconfig.get_paths()
    for name in ("purelib", "platlib", "stdlib", "platstdlib"):
        folder = Path(paths[name]).resolve()
        if Path(path).is_relative_to(folder):
            first = Path(path).relative_to(folder).parts[0]
            where = "site-packages" if name in ("purelib", "platlib") else "standard library"
            return f"{first.removesuffix('.py')} ({where})"
    return "added by this run"


def failing(files: list[Path]) -> list[Path]:
    """Some of the library's files that are invalid Python on purpose, because the library's own tests need them."""
    candidates = [path for path in files if path.name.startswith("bad") or "lib2to3" in path.parts]
    return [path for path in candidates if not _parses(path)][:FAILING_WANTED]


def _parses(path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return False
    return True


def write_broken(folder: Path) -> list[Path]:
    """Writes files that do not parse, for a library that ships none."""
    folder.mkdir(parents=True)
    for name, text in BROKEN.items():
        (folder / name).write_text(text)
    return [folder / name for name in BROKEN]


def chosen(files: list[Path], keep: list[Path], count: int | None) -> list[Path]:
    """`count` of the files, the same ones each time, with those of `keep` among them; all files without `count`."""
    everything = [*keep, *(path for path in files if path not in set(keep))]
    if count is None or count >= len(everything):
        return everything
    rest = random.Random(count).sample(everything[len(keep) :], max(count - len(keep), 0))
    return [*keep, *sorted(rest)]
