"""Goal: each command has a manual page that `man` shows whole. Method: the tool's pages, through man and mandoc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from cystore.cli.host.grammar import nodes
from cystore.cli.program import build_parser
from tools import man_pages

NO_MAN, NO_MANDOC = "this host does not have man", "this host does not have mandoc"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return man_pages.write(tmp_path_factory.mktemp("man"))


def test_every_command_has_one(pages):
    names = {path.name for path in pages}
    assert names == {f"{'-'.join(('cystore', *node.path))}.1" for node in nodes(build_parser())}
    assert {"cystore.1", "cystore-info.1", "cystore-topics-delete.1", "cystore-ha-run.1"} <= names


def test_the_same_version_gives_the_same_bytes(pages, tmp_path):
    assert [path.read_bytes() for path in man_pages.write(tmp_path)] == [path.read_bytes() for path in pages]


def test_nothing_of_a_text_is_a_command_of_roff():
    assert man_pages.escaped(".so /etc/passwd\n'x\n-a \\n") == "\\&.so /etc/passwd\n\\&'x\n\\-a \\en"


@pytest.mark.skipif(not shutil.which("man"), reason=NO_MAN)
@pytest.mark.may_skip(NO_MAN)
def test_man_shows_all_of_a_page(pages):
    """Every option with its text, every line of the examples; and groff has nothing to say about it."""
    environment = {**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MANROFFOPT": "-c"}
    chosen = [
        node for node in nodes(build_parser()) if node.path in ((), ("put",), ("topics", "delete"), ("ha",))
    ]
    for node in chosen:
        (path,) = [one for one in pages if one.stem == "-".join(("cystore", *node.path))]
        done = subprocess.run(
            ["man", "--warnings", "-l", path], env=environment, text=True, capture_output=True, check=True
        )
        assert not done.stderr, done.stderr
        shown = " ".join(re.sub("\\x1b\\[[0-9;]*m|.\\x08", "", done.stdout).split())
        for option in node.options:
            assert all(name in shown for name in option.names) and option.help in shown, option
        for line in (node.parser.epilog or "").split("\n\n")[0].splitlines()[1:]:
            assert " ".join(line.split()) in shown


@pytest.mark.skipif(not shutil.which("mandoc"), reason=NO_MANDOC)
@pytest.mark.may_skip(NO_MANDOC)
def test_mandoc_finds_no_error(pages):
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "error", *pages], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
