"""Writes a manual page for `cystore` and for each of its commands, from the texts of --help.

    python -m tools.man_pages [FOLDER]

The default folder is build/man/man1. The same version gives the same bytes. To read one: man -l FOLDER/cystore-info.1
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cystore import __version__
from cystore.cli.host.grammar import Argument, Node, nodes
from cystore.cli.program import build_parser

FOLDER = Path(__file__).resolve().parent.parent / "build" / "man" / "man1"
PROGRAM_HELP = "shows, reads, writes and repairs message stores"


def escaped(text: str) -> str:
    """A text for roff: no escape, no command, and hyphens that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def page_of(node: Node, program: argparse.ArgumentParser) -> str:
    """The manual page of a command, or of the program."""
    name = "-".join(("cystore", *node.path))
    lines = [
        f'.TH "{escaped(name.upper())}" 1 "" "cystore {escaped(__version__)}" "cystore"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(node.help or PROGRAM_HELP)}",
        ".SH SYNOPSIS",
        ".nf",
        escaped(_usage(node)),
        ".fi",
        ".SH DESCRIPTION",
        escaped(" ".join((node.parser.description or "").split())),
    ]
    if node.children:
        lines.append(".SH COMMANDS")
        for child, text in node.children:
            below = "-".join((name, child))
            lines += [".TP", f"\\fB{escaped(below)}\\fR(1)", escaped(text)]
    for title, arguments in (("ARGUMENTS", node.positionals), ("OPTIONS", node.options)):
        if arguments:
            lines += [f".SH {title}", *(line for one in arguments for line in _argument(one))]
    lines += _sections(node.parser.epilog or "")
    if node.path:
        lines += [*_sections(program.epilog or "", only="exit codes"), ".SH SEE ALSO", "\\fBcystore\\fR(1)"]
    return "\n".join(lines) + "\n"


def _usage(node: Node) -> str:
    """The usage without its first word, which is "usage:"."""
    usage = node.parser.format_usage().removeprefix("usage: ").rstrip("\n")
    return re.sub(r"\n +", "\n    ", usage)


def _argument(argument: Argument) -> Iterator[str]:
    value = "" if argument.kind == "none" else f" \\fI{escaped(argument.metavar)}\\fR"
    names = ", ".join(f"\\fB{escaped(name)}\\fR{value}" for name in argument.names) or value.strip()
    yield from (".TP", names, escaped(argument.help))


def _sections(epilog: str, only: str = "") -> Iterator[str]:
    """The parts of an epilog: a line that ends with a colon, and lines with two spaces before them."""
    for part in epilog.split("\n\n"):
        title, _, body = part.partition("\n")
        if body and title.endswith(":") and only in ("", title[:-1]):
            yield from (
                f".SH {escaped(title[:-1].upper())}",
                ".nf",
                escaped(re.sub("(?m)^  ", "", body)),
                ".fi",
            )


def write(folder: Path) -> list[Path]:
    """Writes all pages into a folder, and returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    program, made = build_parser(), []
    for node in nodes(program):
        path = folder / f"{'-'.join(('cystore', *node.path))}.1"
        path.write_text(page_of(node, program), encoding="utf-8")
        made.append(path)
    return made


if __name__ == "__main__":
    made = write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print(f"{len(made)} pages in {made[0].parent}: man -l {made[0]}")
