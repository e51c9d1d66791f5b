"""Goal: invariants I1-I9 hold under every fault that this machine can make. Method: a slice of each row of the fault
matrix (`make crash` runs them whole)."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.crash import matrix, page
from tests.crash.__main__ import ROOT
from tests.crash.faults import FAULTS, PIECES, SHAPED


@pytest.mark.may_skip
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_slice_of(fault, seed, tmp_path):
    slice_of(fault, seed, tmp_path)


@pytest.mark.may_skip
@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", SHAPED, ids=lambda fault: fault.name)
def test_on_another_shape_of_store(fault, seed, tmp_path):
    slice_of(fault, seed, tmp_path)


@pytest.mark.may_skip
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "fault",
    # A case of consumers waits for messages that come back later.
    [pytest.param(fault, marks=pytest.mark.slow if fault.name == "consumers" else ()) for fault in PIECES],
    ids=lambda fault: fault.name,
)
def test_a_piece_of_the_store(fault, seed, tmp_path):
    slice_of(fault, seed, tmp_path)


def slice_of(fault, seed, tmp_path):
    row = matrix.run(fault, seed=seed, count=fault.part, folder=tmp_path)
    if row.not_run:
        pytest.skip(row.not_run)
    assert row.good and row.ran >= row.wanted, matrix.table([row])


def test_the_page_can_be_read_back():
    """So runs are added to it, and nothing that it says is lost."""
    head, _, _ = (ROOT / "docs" / "reliability.md").read_text().partition("\n## Found\n")
    results = page.results_of(head)
    assert matrix.document(results) == head
    row = matrix.Row("kill", "how", 7, 20_000, ran=5, seconds=1, tally={"acknowledged": 3})
    more = {"machine": results[-1]["machine"], "rows": [asdict(row)]}
    (before,) = (one for one in _table(head) if one.startswith("| kill "))
    (after,) = (one for one in _table(matrix.document([*results, more])) if one.startswith("| kill "))
    made, more_made = (int(one.split("|")[3].replace(",", "")) for one in (before, after))
    assert more_made == made + 5


@pytest.mark.parametrize(
    ("runs", "told", "by_day"),
    [
        ([("1", 5, 0), ("1", 5, 0), ("2", 10, 0)], "passed", "1: 10, 2: 10"),
        ([("1", 5, 0), ("2", 4, 0)], "passed as far as it ran (20 wanted)", "1: 5, 2: 4"),
        ([("1", 30, 0), ("2", 40, 2)], "FAILED 2", "1: 30, 2: 40 (2 failed)"),
        (
            [("1", 30, 2), ("1", 9, 0), ("2", 11, 0)],
            "passed: 20 since the last failure",
            "1: 30 (2 failed), 1: 9, 2: 11",
        ),
        (
            [("1", 30, 1), ("1", 30, 0), ("1", 7, 1), ("2", 8, 0)],
            "passed as far as it ran since the last failure: 8 (20 wanted)",
            "1: 30 (1 failed), 1: 30, 1: 7 (1 failed), 2: 8",
        ),
    ],
)
def test_a_row_that_failed_is_judged_by_the_runs_since_then(runs, told, by_day):
    results = [
        {
            "machine": {"kernel": "6", "python": "3", "cores": 2, "when": f"2026-01-0{day}"},
            "rows": [asdict(matrix.Row("kill", "how", number, 20, ran, failures=["why"] * failed))],
        }
        for number, (day, ran, failed) in enumerate(runs)
    ]
    written = matrix.document(results)
    (row,) = (one for one in _table(written) if one.startswith("| kill "))
    days = by_day.replace("1: ", "2026-01-01: ").replace("2: ", "2026-01-02: ")
    assert row.endswith(f"| {told} | {days} |")
    assert matrix.document(page.results_of(written)) == written


def _table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]
