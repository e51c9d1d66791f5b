"""Goal: docs/troubleshooting.md knows every error, and each text that it quotes is one of ours. Method: the classes and
the texts of the code, against the page."""

from __future__ import annotations

import ast
import re
from functools import cache

import cystore
from cystore import errors
from tests.structure.sources import ROOT, files

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
GAP = "\0"  # for the part of a text that differs each time
# Errors that never leave the code that raises them.
INNER = {
    "CutNeededError": "the slave truncates its log",
    "RoomNeededError": "delivery makes room",
    "FileReplacedError": "becomes a StoreIOError at the edge",
    "CommandError": "a line of a command",
    "NotATaskError": "the record is left out",
    "CursorError": "an answer 400 of the page",
    "UnknownTopicError": "an answer 404 of the page",
}


@cache
def nodes():
    """Every node of the Python code."""
    return [node for path in files(".py", under="cystore") for node in ast.walk(ast.parse(path.read_text()))]


def sections():
    return {text.partition("\n")[0] for text in PAGE.split("\n### ")[1:]}


def test_every_public_error_has_a_section():
    public = {
        name for name in cystore.__all__ if isinstance(kind := getattr(cystore, name), type)
        and issubclass(kind, cystore.StoreError)
    }  # fmt: skip
    known = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert len(public) > 25 and public <= known
    assert not known - sections()


def test_every_error_of_a_room_is_named():
    """Those of the plugin and of commands, which users meet too."""
    defined = {
        node.name
        for node in nodes()
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
    }
    assert set(INNER) <= defined
    assert not [name for name in sorted(defined - set(INNER)) if name not in PAGE]


def test_no_section_is_about_an_error_that_is_gone():
    source = "\n".join(path.read_text() for path in files(".py", under="cystore"))
    assert not [name for name in sections() if f"class {name}(" not in source]


def _text(node):
    """A text of the code, with GAP for what is put in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d+)?[sdrfg]", GAP, node.value).replace("%%", "%")
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or GAP for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left) or GAP) + (_text(node.right) or GAP)
    return None


@cache
def our_texts():
    """Every text of the code, kernels too, on one line each."""
    found = [text for node in nodes() if (text := _text(node))]
    for path in files(".pyx", ".pxd", under="cystore"):
        quoted = re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text())
        found += [re.sub(r"\{[^}]*\}", GAP, text) for text in quoted]
    return found


def quoted_texts():
    """The texts in the first column of the page's tables, and those with a gap elsewhere."""
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    prose = [text for text in re.findall(r"`([^`]*…[^`]*)`", PAGE.replace("\n", " ")) if len(text) > 20]
    return {text.replace("\\|", "|") for text in [*rows, *prose]}


def is_ours(text, ours):
    """Whether a text of the code has all parts of a quoted one, in order."""
    parts = [part for part in text.split("…") if part.strip(" :;()")]
    return any(re.search(".*".join(map(re.escape, parts)), one) for one in ours if max(parts, key=len) in one)


def test_every_text_of_the_page_is_in_the_code():
    ours, quoted = our_texts(), quoted_texts()
    assert len(quoted) > 40
    assert not [text for text in quoted if not is_ours(text, ours)]


def test_a_text_that_is_gone_is_noticed():
    ours = our_texts()
    assert is_ours("the offset is below the log's minimum …", ours)
    assert not is_ours("the offset is above the log's minimum …", ours)
    assert not is_ours("minimum … the offset is below", ours)


def test_every_status_of_a_get_is_explained():
    page = (ROOT / "docs" / "consumers.md").read_text()
    assert not [status.name for status in cystore.GetStatus if f"| `{status.name}` |" not in page]
