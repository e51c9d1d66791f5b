"""Runs a case: every contestant once a round, in turn (ABAB...), each in a process of its own with an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite.cases import Case, Contestant, Goal
from benchmarks.suite.failures import MeasureError, reason
from benchmarks.suite.workload import Job

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1200


@dataclass
class Row:
    """One contestant's measurements, one a round; `error` is the reason if there are none."""

    contestant: Contestant
    job: Job | None = None
    ns: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def median_ns(self) -> float | None:
        return statistics.median(self.ns) if self.ns else None

    @property
    def spread(self) -> float | None:
        """The distance between the fastest and the slowest round, as a part of the median."""
        return (max(self.ns) - min(self.ns)) / statistics.median(self.ns) if self.ns else None


@dataclass
class Result:
    case: Case
    rows: list[Row]

    def ratio(self, row: Row) -> float | None:
        """Our speed divided by the row's: the median of the rounds' ratios."""
        pairs = list(zip(self.rows[0].ns, row.ns, strict=False))
        return statistics.median(theirs / ours for ours, theirs in pairs) if pairs else None

    def goal(self, row: Row) -> tuple[Goal, bool] | None:
        """The goal against this row, and whether it is reached; without a measurement it is not."""
        for goal in self.case.goals:
            if goal.against == row.contestant.label:
                ratio = self.ratio(row)
                return goal, ratio is not None and ratio >= goal.ratio
        return None


def run(case: Case, *, rounds: int, quick: bool, folder: Path, progress: Callable[[str], None]) -> Result:
    rows = [Row(contestant) for contestant in case.contestants]
    for number in range(rounds):
        for row in rows:
            if row.error:
                continue
            progress(f"{case.name}: round {number + 1} of {rounds}: {row.contestant.label}")
            scratch = tempfile.mkdtemp(prefix="bench-", dir=folder)
            try:
                row.job = case.job_for(row.contestant, scratch, quick=quick)
                answer = _measure(row.contestant.peer, row.job)
                row.ns.append(answer["seconds"] / answer["operations"] * 1e9)
                row.facts = answer["facts"]
            except MeasureError as error:
                row.error, row.ns = str(error), []
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                os.sync()  # a contestant's unwritten bytes must not delay the next one
    return Result(case, rows)


def _measure(peer: str, job: Job) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.suite.worker", peer, job.to_json()]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:  # also Ctrl-C: the worker has a session of its own and would continue
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise MeasureError(f"not finished after {TIMEOUT_S} s") from None
            raise
    if process.returncode:
        raise MeasureError(reason(errors, process.returncode))
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer
