"""Goal: the documents' snippets work. Method: run every Python block, look up every command with its options, read
every settings file, follow every link.

The blocks of a document run in order, in one process and one empty folder, as a reader would type them. A block that
cannot run here (it needs a fleet, or is a fragment) stands behind the line `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from cystore import StoreConfig
from cystore.cli import main
from tests.structure.sources import ROOT, files, name_of
from tools import build, run_tests

DOCUMENTS = files(".md")
FENCE = re.compile(r"^(```+)\s*(\w*)\s*$")
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
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
        [
            os.environ.get("DOCS_PYTHON", sys.executable),
            "-c",
            RUNNER,
            given,
        ],  # another one: tools/interpreters.py
        cwd=folder,
        env={
            "PYTHONPATH": os.environ.get("DOCS_PYTHONPATH", str(ROOT)),
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        },
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


SHELL = ("sh", "bash", "console", "shell")
OUR_PACKAGES = ("benchmarks", "cystore", "examples", "tests", "tools")
GROUPS = ("topics", "quarantine", "ha")  # commands of `cystore` with commands of their own


def _lines(path: Path) -> list[list[str]]:
    """The words of each command in a document's shell blocks."""
    lines = [
        line.removeprefix("$ ")
        for block in blocks(path.read_text())
        if block.language in SHELL
        for line in block.source.splitlines()
    ]
    return [shlex.split(line, comments=True) for line in lines]


def _commands() -> list[tuple[str, ...]]:
    """The commands in shell blocks, each with the options that it is shown with: `cystore SUB`, `make TARGET`,
    `python -m MODULE`."""
    found = set()
    for words in (words for path in DOCUMENTS for words in _lines(path)):
        if (
            "cystore" in words and "celery" not in words
        ):  # it may stand behind a pipe, or behind `runuser ... --`
            words = words[words.index("cystore") :]
            name = words[1 : 3 if words[1] in GROUPS and words[2].isalpha() else 2]
            found.add(("cystore", *name, *sorted({word for word in words[2:] if word.startswith("--")})))
        elif words[:1] == ["make"]:
            found |= {("make", word) for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
        elif words[:2] == ["python", "-m"]:
            found.add(("python", words[2]))
        elif words and words[-1] == "&":
            found |= _of_a_clone(words[:-1])
        else:
            found |= _of_a_clone(words)
    return sorted(found)


def _of_a_clone(words: list[str]) -> set[tuple[str, ...]]:
    """A command of a clone's own Python, behind assignments to the environment: a module, a tool with its words, the
    files that pytest gets."""
    words = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    if words[:1] != [".venv/bin/python"] or len(words) < 2:
        return set()
    if words[1] != "-m":
        return {("tool", words[1], *(word for word in words[2:] if not word.startswith("-")))}
    if words[2] == "pytest":
        return {("pytest", word) for word in words[3:] if word.startswith("tests/")}
    return {("python", words[2])} if words[2].split(".")[0] in OUR_PACKAGES else set()


def _help(*command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as written, pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return written.getvalue()


def test_commands_are_found_with_their_options(tmp_path):
    page = tmp_path / "a.md"
    page.write_text(
        "```sh\necho a | cystore put S t --tag x  # a\npython -m a.b\n```\n```console\n$ cystore topics delete "
        "S t\n```\n"
    )
    assert [words[-1] for words in _lines(page)] == ["x", "a.b", "t"]
    assert ("cystore", "put", "--key", "--tag") in _commands()
    assert ("cystore", "topics", "delete") in _commands()


TOOLS = {
    "tools/build.py": {"inplace", *build.VARIANTS},
    "tools/run_tests.py": {group.slug for group in (*run_tests.GROUPS, run_tests.QUICK)},
}


def test_the_commands_of_a_clone_are_found():
    known = set(_commands())
    assert {("tool", "tools/build.py", "inplace"), ("pytest", "tests/unit/engine/test_append.py")} <= known
    assert _of_a_clone(["A=1", ".venv/bin/python", "tools/run_tests.py", "--all", "gone"]) == {
        ("tool", "tools/run_tests.py", "gone")
    }


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_every_command_in_the_documents_exists(command):
    tool, *words = command
    if tool == "make":
        done = subprocess.run(
            ["make", "-n", *words], cwd=ROOT, text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    elif tool == "tool":
        script = ROOT / words[0]
        known = TOOLS.get(words[0])
        assert script.exists() or not words[0].startswith("tools/")  # else it is the reader's own program
        assert known is None or set(words[1:]) <= known, known
    elif tool == "pytest":
        assert (ROOT / words[0].partition("::")[0]).exists()
        assert not missing_tests(f"`{words[0]}`")
    elif tool == "python":
        path = ROOT.joinpath(*words[0].split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    else:
        text = _help(*(word for word in words if not word.startswith("--")))
        missing = [word for word in words if word.startswith("--") and word.split("=")[0] not in text]
        assert not missing, text


def test_settings_files_of_the_documents_can_be_read():
    """TOML as the store reads it; a unit file as an ini file, whose keys may come twice."""
    for block in (block for document in DOCUMENTS for block in blocks(document.read_text())):
        if block.language == "toml":
            StoreConfig.from_mapping(tomllib.loads(block.source)["cystore"])
        elif block.language == "ini":
            unit = configparser.ConfigParser(strict=False, interpolation=None)
            unit.read_string(block.source)
            assert unit.sections(), block.source


def test_links_between_documents_lead_somewhere():
    dead = [
        f"{name_of(document)}: {target}"
        for document in DOCUMENTS
        for target in LINK.findall(document.read_text())
        if not re.match(r"[a-z]+:|#", target) and not (document.parent / target.split("#")[0]).exists()
    ]
    assert not dead


def places_of(text: str) -> set[str]:
    """The places in a page that a link can lead to, as the site and code hosts name them."""
    code = {
        number
        for block in blocks(text)
        for number in range(block.line, block.line + block.source.count("\n"))
    }
    headings = (
        line for number, line in enumerate(text.splitlines()) if number not in code and line.startswith("#")
    )
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", line.lstrip("#").strip().lower()) for line in headings)
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in words} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


def test_links_lead_to_places_that_pages_have():
    """Seen: a link to a part of a page that had moved to another one."""
    assert places_of('# A `b` c\n```sh\n# d\n```\n<a id="e"></a>') == {"a-b-c", "e"}
    dead = []
    for document in DOCUMENTS:
        for target in LINK.findall(document.read_text()):
            file, _, place = target.partition("#")
            page = document.parent / file if file else document
            if place and page.suffix == ".md" and not re.match(r"[a-z]+:", target):
                dead += [f"{name_of(document)}: {target}"] if place not in places_of(page.read_text()) else []
    assert not dead


def missing_tests(text: str) -> list[str]:
    """The tests that a text names and that are not there."""
    return [
        f"{file}::{name}" if name else file
        for file, name in TEST.findall(text)
        if not (ROOT / file).is_file()
        or (name and not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE))
    ]


def test_the_tests_that_the_documents_name_exist():
    missing = {name_of(document): missing_tests(document.read_text()) for document in DOCUMENTS}
    assert not {document: tests for document, tests in missing.items() if tests}


def test_a_test_that_is_gone_is_noticed():
    here = name_of(Path(__file__))
    assert missing_tests(f"`{here}::test_that_is_gone` `{here}` `tests/gone.py`") == [
        f"{here}::test_that_is_gone",
        "tests/gone.py",
    ]


def test_the_map_of_the_readme_names_every_page():
    readme = (ROOT / "README.md").read_text()
    assert not [name_of(path) for path in files(".md", under="docs") if name_of(path) not in readme]
