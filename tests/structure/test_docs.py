"""Goal: what the documents say works. Method: run every Python block, ask every named command for its help, follow every link.

The blocks of a document run in order, in one process and one empty folder, as a reader would type them. A block that cannot
run here (it needs a fleet, or is a fragment) stands behind the line `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.structure.sources import ROOT, files, name_of

DOCUMENTS = files(".md")
FENCE = re.compile(r"^(```+)\s*(\w*)\s*$")
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Runs blocks given as [[line, source], ...]; errors name the document's own lines.
RUNNER = """
import json, sys
document, blocks = json.loads(sys.argv[1])
names = {"__name__": "__main__"}
for line, source in blocks:
    exec(compile("\\n" * line + source, document, "exec"), names)
"""


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line, counted from 0
    source: str
    run: bool


def blocks(text: str) -> list[Block]:
    found, lines, start, language, fence = [], text.splitlines(), 0, "", ""
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if fence and match and match[1] == fence and not match[2]:
            before = next((above for above in reversed(lines[: start - 1]) if above.strip()), "")
            source = "\n".join(lines[start:number]) + "\n"
            found.append(Block(language, start, source, not NOT_RUN.match(before.strip())))
            fence = ""
        elif match and not fence:
            fence, language, start = match[1], match[2], number + 1
    assert not fence, f"a code block that begins at line {start} does not end"
    return found


def _run(document: str, sources: list[Block], folder: Path) -> subprocess.CompletedProcess[str]:
    given = json.dumps([document, [[block.line, block.source] for block in sources]])
    return subprocess.run(
        [sys.executable, "-c", RUNNER, given],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


IN_SPARK = ("docs/spark.md",)  # run by tests/spark/test_docs.py, which has a session
WITH_PYTHON = [
    path
    for path in DOCUMENTS
    if name_of(path) not in IN_SPARK
    and any(b.language in ("python", "py") and b.run for b in blocks(path.read_text()))
]


@pytest.mark.parametrize("document", WITH_PYTHON, ids=name_of)
def test_every_python_block_runs(document, tmp_path):
    done = _run(
        name_of(document),
        [b for b in blocks(document.read_text()) if b.language in ("python", "py") and b.run],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_a_block_that_fails_is_seen(tmp_path):
    good, fragment_of_one, bad = (
        "```python\nx = 1\n```\n",
        "```python\nx +\n```\n",
        "```python\nassert x == 2\n```\n",
    )
    text = f"{good}\n<!-- not run: only a fragment -->\n{fragment_of_one}\n{bad}"
    first, fragment, last = blocks(text)
    assert (first.run, fragment.run, last.run) == (True, False, True)
    done = _run("A.md", [first, last], tmp_path)
    assert done.returncode == 1
    assert 'File "A.md", line 11' in done.stderr


def _commands() -> list[tuple[str, ...]]:
    """The commands in shell blocks: `cystore SUB`, `make TARGET`, `python -m MODULE`."""
    found = set()
    for path in DOCUMENTS:
        for block in blocks(path.read_text()):
            if block.language not in ("sh", "bash", "console", "shell"):
                continue
            for line in block.source.splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words[:1] == ["cystore"] and len(words) > 1:
                    found.add(("cystore", words[1]))
                elif words[:1] == ["make"]:
                    found |= {("make", word) for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
    return sorted(found)


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_every_command_in_the_documents_exists(command):
    if command[0] == "make":
        arguments = ["make", "-n", command[1]]
    elif command[1].startswith("-"):
        arguments = [sys.executable, "-c", "from cystore.cli import main; main()", "--help"]
    else:
        arguments = [sys.executable, "-c", "from cystore.cli import main; main()", command[1], "--help"]
    done = subprocess.run(arguments, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document):
    dead = [
        target
        for target in LINK.findall(document.read_text())
        if not re.match(r"[a-z]+:|#", target) and not (document.parent / target.split("#")[0]).exists()
    ]
    assert not dead
