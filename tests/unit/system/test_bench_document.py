"""Goal: a run changes only its own sections of docs/benchmarks.md, which is a page of tables. Method: update a small
page; read the sections of the real one."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import PAGE as REAL_PAGE
from benchmarks.suite.document import updated

pytestmark = pytest.mark.unsanitized  # Python alone

PAGE = """# Benchmarks

What a person wrote.

## put-100

Old words.

| | old |
|---|---|
| cystore | 1 |

A remark below the table.

## scale

| | by hand |
|---|---|
"""


def results(name: str) -> dict:
    row = {
        "label": "cystore", "ns_per_op": [90.0, 110.0], "ns_per_op_median": 100.0, "ratio": None, "goal": None,
        "reached": None, "facts": {"p99_ms": 2.5}, "error": None,
    }  # fmt: skip
    missed = {**row, "label": "LMDB", "ratio": 0.5, "goal": 1.0, "reached": False, "facts": {}}
    return {
        "when": "2026-01-02T03:04:05+00:00",
        "machine": {"commit": "abc1234", "load": 0.9, "cpu": "Intel(R) Xeon(R) Processor"},
        "arguments": {"rounds": 2},
        "cases": [{"name": name, "title": "put of bytes", "operation": "message", "rows": [row, missed]}],
    }


def test_the_section_of_a_measured_case_is_replaced_and_all_else_stays():
    page = updated(PAGE, results("put-100"))
    before, _, after = PAGE.partition("Old words.")
    assert page.startswith(before) and page.endswith(after.partition("| cystore | 1 |\n")[2])
    assert "Old words." not in page
    assert "2 rounds, commit abc1234, 2026-01-02, load 1, Intel Xeon." in page
    assert "| cystore | 100 | 10,000,000 | 20% |  |  |" in page
    assert "| LMDB | 100 | 10,000,000 | 20% | 0.50 | 1: missed |" in page
    assert "| cystore | 2.5 |" in page
    assert updated(page, results("put-100")) == page


def test_a_new_case_comes_last():
    page = updated(PAGE, results("wake"))
    assert page.startswith(PAGE) and page.endswith("\n## wake\n" + page.rpartition("\n## wake\n")[2])
    assert "Put of bytes; one operation is a message." in page


def test_a_section_is_tables_behind_at_most_two_sentences():
    """Seen: 938 lines, most of them about how a figure was found."""
    _, *sections = REAL_PAGE.read_text().split("\n## ")
    for section in sections:
        name, _, text = section.partition("\n")
        prose = [part for part in re.split(r"\n\s*\n", text.strip()) if not part.startswith(("|", "!["))]
        sentences = re.findall(r"[.:;]\s+[A-Z]|[.:]$", " ".join(prose))
        assert len(prose) == 1 and len(sentences) <= 2, name
