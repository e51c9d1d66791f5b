"""Goal: pages stay easy to read. Method: bounds on their lines, and patterns of sentences that had to be read twice.

The patterns are a net for the worst, no measure of good English: docs/development.md has the rules. Each pattern has
an example that it must find and a plain sentence that it must leave alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.structure.sources import files, name_of

LINE_MAX = 120
CODE_MAX = 15  # lines of a pattern in all code: it finds a few that are good English
PAGES = files(".md")
FENCE = re.compile(r"^\s*```")


@dataclass(frozen=True)
class Hard:
    """A pattern, the reason why readers stumble over it, an example, and the plain way to say that."""

    why: str
    pattern: str
    example: str
    plain: str


# Beginnings of sentences, of list items and of table cells.
BEGIN = r"(?:^\s*(?:[*-] |\d+\. |\| )?|[.;:] |\| )"
HARD = (
    Hard(
        "name the process or the person",
        r"\b[Ww]hoever\b",
        "Whoever has the lock publishes each piece.",
        "The lock's holder publishes each piece.",
    ),
    Hard(
        "a process is no 'who', and a statement does not begin with it",
        BEGIN + r"Who (?!(?:may|can|does|is|has|asks|answers)\b.*\?)(?:[a-z]+s|has|may|can) ",
        "Who waits for one id is not woken by others.",
        "Others do not wake a waiter for one id.",
    ),
    Hard(
        "begin with the thing, not with 'what'",
        BEGIN + r"What (?![^.|]*\?)",
        "What is dispatched can be read.",
        "Dispatched messages can be read.",
    ),
    Hard(
        "say continue, run or last",
        r"\b(?:goes|went|going) on\b",
        "The worker goes on without it.",
        "The worker continues without it.",
    ),
    Hard(
        "say that it is damaged",
        r"\b(?:came|comes|come) to harm\b",
        "An entry that came to harm is written again.",
        "A damaged entry is rewritten.",
    ),
    Hard(
        "say who logs, returns or raises it",
        r"\btold (?:of|so|to the log|in short)\b|\btells? of\b",
        "A wait of five seconds is told to the log.",
        "A wait of five seconds is logged.",
    ),
    Hard(
        "say 'does not have', or what is missing",
        r"\b(?:has|have|had) not (?:the|a|an|any)\b",
        "The file has not the 12 bytes.",
        "The file does not have 12 bytes.",
    ),
    Hard(
        "say 'is not a'",
        r"(?<![Tt]here )\b(?:is|are) "
        r"no (?:store|file|directory|report|manifest|number|name|topic|offset|record|regular|whole)s?\b",
        "The directory is no store.",
        "The directory is not a store.",
    ),
    Hard(
        "name the files, records or errors that are meant",
        r"\bwhat (?:follows from|came of|comes of|became of|was left of|stood there|lies there)\b",
        "It mends what follows from the log.",
        "It mends the files that are derived from the log.",
    ),
)


def _prose(text: str) -> list[tuple[int, str]]:
    """(number, line) of each line outside of code blocks, without code spans."""
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            found.append((number, re.sub(r"`[^`]*`", "`x`", line)))
    return found


def _hard(text: str, hard: Hard) -> list[int]:
    return [number for number, line in _prose(text) if re.search(hard.pattern, line)]


def test_lines_of_a_page_are_short():
    """Rows of tables may be longer: Markdown cannot break them. So may a line that is one link or one name."""
    long = [
        f"{name_of(page)}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > LINE_MAX and not line.lstrip().startswith("|") and " " in line.strip()
    ]
    assert not long, f"more than {LINE_MAX} characters"


@pytest.mark.parametrize("hard", HARD, ids=lambda hard: hard.why)
def test_pages_have_no_sentence_that_is_read_twice(hard):
    found = [f"{name_of(page)}:{number}" for page in PAGES for number in _hard(page.read_text(), hard)]
    assert not found, f"{hard.why}: {hard.plain!r} instead of {hard.example!r}: {found}"


@pytest.mark.parametrize("hard", HARD, ids=lambda hard: hard.why)
def test_docstrings_comments_and_messages_have_few_of_them(hard):
    """A line's text begins behind the marks of a comment, a docstring or a string."""
    pattern = re.compile(hard.pattern.replace(r"^\s*", r"^\s*(?:.*# |\"\"\"|f?\")?", 1))
    found = [
        f"{name_of(path)}:{number}"
        for path in files(".py", under=("cystore", "celery_app", "tools", "benchmarks"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert len(found) <= CODE_MAX, f"{hard.why}: {hard.plain!r} instead of {hard.example!r}: {found}"


@pytest.mark.parametrize("hard", HARD, ids=lambda hard: hard.why)
def test_a_pattern_finds_its_example_and_leaves_plain_text_alone(hard):
    assert _hard(hard.example, hard)
    assert not _hard(hard.plain, hard)
    assert not _hard(f"```\n{hard.example}\n```\n`{hard.example}`", hard)
