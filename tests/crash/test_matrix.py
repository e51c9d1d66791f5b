"""Goal: invariants I1-I9 hold under every fault that this machine can make. Method: a slice of each row of the fault
matrix (`make crash` runs them whole)."""

from __future__ import annotations

import pytest

from tests.crash import matrix
from tests.crash.faults import FAULTS


@pytest.mark.may_skip
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_slice_of(fault, seed, tmp_path):
    row = matrix.run(fault, seed=seed, count=fault.part, folder=tmp_path)
    if row.not_run:
        pytest.skip(row.not_run)
    assert row.good and row.ran >= row.wanted, matrix.table([row])
