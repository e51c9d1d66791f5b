"""The two golden stores of DLedger brokers, in tests/golden/ledgers: `python -m tests.interop.ledgers FOLDER` made them
with RocketMQ 4.9.3 and DLedger 0.2.3. `switched` has an older commit log and was closed, `killed` was not."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracle import ledger
from tests.support.golden.stores import REPOSITORY, Golden

FOLDER = REPOSITORY / "tests" / "golden" / "ledgers"
NAMES = ("switched", "killed")
# What shapes the files of the stores made of them.
SMALL = {
    "mapped_file_size_commit_log_bytes": 16384,
    "mapped_file_size_consume_queue_bytes": 6000,
    "max_hash_slot_num": 500,
    "max_index_num": 4000,
}
WITH_BODY = 37  # index of an entry of `switched` whose message has a body of some hundred bytes
# An import gives a message another place, and the message id names the place.
OF_THE_PLACE = ("physicalOffset", "msgId", "cqPhysicalOffset", "cqSize", "cqTagsCode", "propertiesRawB64")


def unpack(name: str, into: Path) -> Golden:
    """One of them, a copy that may be written to."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    golden = Golden(name, into / name)
    ledger.grow_index_files(golden.store)
    return golden


@pytest.fixture
def switched(tmp_path: Path) -> Golden:
    return unpack("switched", tmp_path)


@pytest.fixture
def killed(tmp_path: Path) -> Golden:
    return unpack("killed", tmp_path)


def overwrite(golden: Golden, at: int, data: bytes, folder: str = "data") -> Path:
    """Writes into the file that contains position `at`; returns its path."""
    paths = sorted((ledger.ledger_of(golden.store) / folder).iterdir())
    path = max((path for path in paths if int(path.name) <= at), key=lambda path: int(path.name))
    with open(path, "r+b") as file:
        file.seek(at - int(path.name))
        file.write(data)
    return path


def entry(golden: Golden, index: int) -> ledger.Entry:
    return ledger.entries(ledger.ledger_of(golden.store))[index]


def without_place(row: dict) -> dict:
    return {name: value for name, value in row.items() if name not in OF_THE_PLACE}


def by_queue(rows: list[dict], key: Callable[[dict], tuple]) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
