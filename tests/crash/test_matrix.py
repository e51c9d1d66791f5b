"""Goal: invariants I1-I9 hold under every fault that this machine can make. Method: a slice of each row of the fault
matrix (`make crash` runs them whole)."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.crash import matrix, page
from tests.crash.__main__ import ROOT
from tests.crash.faults import FAULTS


@pytest.mark.may_skip
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_slice_of(fault, seed, tmp_path):
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


def _table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]
