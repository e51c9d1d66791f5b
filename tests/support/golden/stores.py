"""Finds the golden stores: directories written by RocketMQ 4.9.3 with what it reads back from them.

`CYSTORE_GOLDEN` names the folder of their archives; without it, `../shared/golden` beside the repository is
tried.
"""

import json
import os
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
NAMES = (
    "a_clean",
    "b_crash",
    "b2_crash_zero_checkpoint",
    "c_delay",
    "c2_delay_crash",
    "d_ext",
    "e_batch",
    "f1_torn_tail_zeroed",
    "f3_torn_middle",
    "g_ipv6",
    "h_multi_index",
    "i_transaction",
    "j_expired_preblank",
    "k_edge",
)


def folder() -> Path:
    named = os.environ.get("CYSTORE_GOLDEN")
    return Path(named) if named else REPOSITORY.parent / "shared" / "golden"


@dataclass(frozen=True)
class Golden:
    """One golden store, unpacked: `store` may be written to."""

    name: str
    path: Path

    @property
    def store(self) -> Path:
        return self.path / "store"

    @cached_property
    def spec(self) -> dict:
        return json.loads((self.path / "spec.json").read_text(encoding="utf-8"))

    @cached_property
    def rows(self) -> list[dict]:
        lines = (self.path / "dump.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def rows_of(self, kind: str) -> list[dict]:
        return [row for row in self.rows if row["type"] == kind]

    @cached_property
    def after(self) -> dict[str, tuple[int, str]]:
        """Size and sha256 of each file after RocketMQ's recovery and close; `-` where it was not hashed."""
        lines = (self.path / "after.txt").read_text(encoding="utf-8").splitlines()
        rows = (line.rsplit(" ", 2) for line in lines if line)
        return {path: (int(size), digest) for path, size, digest in rows}


def unpack(name: str, into: Path) -> Golden:
    with tarfile.open(folder() / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return Golden(name, into / name)


def unpack_or_skip(name: str, into: Path) -> Golden:
    """For fixtures; in CI a skipped test is a failed one."""
    absent = [name for name in NAMES if not (folder() / f"{name}.tar.gz").is_file()]
    if absent:
        pytest.skip(f"golden stores not in {folder()} (set CYSTORE_GOLDEN): {absent}")
    return unpack(name, into)
