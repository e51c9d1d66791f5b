"""Goal: workers, their pool processes and beat start again and again, and nothing hangs. Method:
`tests.celery.restarts`."""

from __future__ import annotations

import pytest

from tests.celery.restarts import POOLS, restart


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_starts_again(tmp_path, pool):
    assert restart(tmp_path, 1, 5.0, (pool,)).total() > 1


@pytest.mark.slow
def test_a_thousand_restarts(tmp_path):
    assert restart(tmp_path, 1_000, 600.0, POOLS).total() >= 1_000
