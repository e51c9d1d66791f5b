"""The append protocol as a model that a checker explores to the end, and faults in it that the checker must find.

append.pml is the model; docs/concurrency.md says which function and which failpoint each of its steps stands for. The
checker is Spin: it makes a C program of the model, which visits every state that can be reached.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("append.pml")
SPIN = shutil.which("spin")
DEPTH = 100_000  # steps of one run of the model; the longest has some hundreds
MEMORY_MB = 8_000

pytestmark = pytest.mark.skipif(SPIN is None, reason="the checker is missing: apt-get install spin")

Explore = Callable[..., str]


@pytest.fixture
def explore(tmp_path: Path) -> Explore:
    """Runs the checker to its end, or to the first thing that is wrong, and gives what it printed."""

    def run(*defines: str, kills: int = 0, crashes: int = 0, errors: int = 0, puts_of_1: int = 1) -> str:
        numbers = {"KILLS": kills, "CRASHES": crashes, "ERRORS": errors, "PUTS_OF_1": puts_of_1}
        macros = [f"-D{name}={number}" for name, number in numbers.items()] + [
            f"-D{name}" for name in defines
        ]
        compiler = [
            os.environ.get("CC", "gcc"),
            "-O1",
            "-w",
            "-DSAFETY",
            "-DCOLLAPSE",
            f"-DMEMLIM={MEMORY_MB}",
        ]
        out = ""
        for command in (
            [str(SPIN), *macros, "-a", str(MODEL)],
            [*compiler, "-o", "check", "pan.c"],
            ["./check", f"-m{DEPTH}"],
        ):
            done = subprocess.run(
                command,
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            out = done.stdout
            assert done.returncode == 0, f"{' '.join(command)}\n{out}"
        return out

    return run


def check_all_seen(out: str) -> None:
    """Every state was visited, and nothing was wrong in any of them."""
    assert "errors: 0" in out, out
    assert "Search not completed" not in out, out
    assert "max search depth too small" not in out, out


@pytest.mark.sampled(1)  # they are about the model, and change with it
@pytest.mark.parametrize(
    ("kills", "crashes", "errors"),
    [(1, 0, 1), (0, 1, 1)],
    ids=["one-is-killed", "all-die-or-lose-power"],
)
def test_no_invariant_breaks(explore: Explore, kills: int, crashes: int, errors: int) -> None:
    check_all_seen(explore(kills=kills, crashes=crashes, errors=errors))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "crashes", "errors", "puts_of_1"),
    [(1, 1, 1, 1), (2, 0, 1, 1), (0, 2, 1, 1), (1, 0, 1, 2)],
    ids=["one-then-all", "two-are-killed", "all-die-twice", "one-more-put"],
)
def test_no_invariant_breaks_in_more_states(
    explore: Explore, kills: int, crashes: int, errors: int, puts_of_1: int
) -> None:
    check_all_seen(explore(kills=kills, crashes=crashes, errors=errors, puts_of_1=puts_of_1))


# What is broken, what must happen for it to matter, and what the checker then sees.
FAULTS = {
    "FAULT_PUBLISH_FIRST": ({}, r"i==published\[dispatched\]"),
    "FAULT_LOCK_ROBBED": ({}, r"append_lock==\(me\+1\)|wrote==begin"),
    "FAULT_FLUSHED_FIRST": ({}, r"mark>=end"),
    "FAULT_NO_REPAIR": ({"kills": 1}, r"cache\[|entered\["),
    "FAULT_CLAIMS_STAY": ({"kills": 1}, r"entered\["),
    "FAULT_LEADERSHIP_STAYS": ({"kills": 1}, "invalid end state"),
    "FAULT_NOT_DIRTIED_AGAIN": ({"kills": 1, "errors": 1}, r"disk\[i\]==published\[i\]"),
    "FAULT_WATERMARK_FIRST": ({"crashes": 1}, r"mark<=end"),
    "FAULT_BATCH_FORWARD": ({"crashes": 1}, r"\(seen>>2\)&1\)==\(\(seen>>3\)&1"),
    "FAULT_CLEAN_PAGES_BELIEVED": ({"crashes": 1, "errors": 1}, r"disk\[i\]==published\[i\]"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(explore: Explore, fault: str) -> None:
    """Publishing before the copy, a watermark before its sync, no repair, a leader whose lock stays: the checker
    finds each."""
    world, seen = FAULTS[fault]
    out = explore(fault, **world)
    assert "errors: 1" in out, f"the checker did not find {fault}\n{out}"
    assert re.search(rf"^pan:1: .*(?:{seen})", out, re.MULTILINE), out


def test_the_model_has_no_other_faults() -> None:
    assert set(re.findall(r"\bFAULT_[A-Z_]+", MODEL.read_text())) - {"FAULT_"} == set(FAULTS)
