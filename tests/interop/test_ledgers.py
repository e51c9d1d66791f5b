"""Goal: cystore reads whatever a DLedger broker writes, and RocketMQ reads what an import made of it. Method: RocketMQ
writes such stores from random messages, now; they are asked all that `tests/golden/test_ledgers.py` asks about the
golden ones, and RocketMQ opens an import as the store of a plain broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden import test_ledgers
from tests.golden.test_ledgers import imported, source
from tests.interop import ledgers
from tests.oracle import ledger
from tests.support.golden.ledger_stores import NAMES, without_place
from tests.support.golden.stores import Golden
from tests.support.interop.fresh import questions
from tests.support.interop.rocketmq import RocketMQ
from tests.support.interop.specs import SMALL

__all__ = ["source"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(rocketmq: RocketMQ, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledgers")
    for name in NAMES:
        ledgers.write(rocketmq, name, seed, folder / name)
    return folder


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Golden:
    shutil.copytree(written / request.param, tmp_path / request.param)
    found = Golden(request.param, tmp_path / request.param)
    ledger.grow_index_files(found.store)
    return found


globals().update(questions(test_ledgers, 3))
test_nothing_is_damaged = test_ledgers.test_nothing_is_damaged
test_an_import_has_the_same_queues = test_ledgers.test_an_import_has_the_same_queues


def test_rocketmq_reads_the_import(golden, rocketmq, tmp_path):
    imported(golden, tmp_path / "out")
    plain = {**SMALL, "mapedFileSizeCommitLog": 16384, "messageDelayLevel": ledgers.LEVELS}
    rows = rocketmq.dump(tmp_path / "out", plain, tmp_path / "out.jsonl")
    committed = {row["physicalOffset"] for row in golden.rows_of("record")}
    wanted = [without_place(row) for row in golden.rows_of("msg") if row["physicalOffset"] in committed]
    assert [without_place(row) for row in rows if row["type"] == "msg"] == wanted
    assert not [row for row in rows if row["type"] == "miss"]
