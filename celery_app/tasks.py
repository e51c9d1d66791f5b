"""The main job's task: counts the definitions in one Python source file."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from celery_app.app import app

COUNTED = {
    "functions": (ast.FunctionDef, ast.AsyncFunctionDef),
    "classes": (ast.ClassDef,),
    "imports": (ast.Import, ast.ImportFrom),
}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@app.task
def index_file(path: str) -> dict[str, int]:
    """Parses a source file and counts its definitions. Raises SyntaxError (or ValueError) for a file that is not
    Python."""
    source = Path(path).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the file itself, such as old escapes in its strings
        tree = ast.parse(source, filename=path)
    counts = {"bytes": len(source), "lines": source.count(b"\n")} | dict.fromkeys(COUNTED, 0)
    for node in _statements(tree):
        for name, kinds in COUNTED.items():
            counts[name] += isinstance(node, kinds)
    return counts


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, however deep: definitions are statements, and expressions are most of a tree."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for block in BLOCKS:
            inner = getattr(node, block, None)
            if isinstance(inner, list):
                left += inner
