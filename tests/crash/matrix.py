"""The fault matrix: rows of faults, run case by case from one seed, counted, and never called passed where they could
not run."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.shapes import PLAIN, Shape, lose_buffers

FAILURES_MAX = 5  # a row ends there: what is broken is known
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Fault:
    """One row. `run` takes its cases from `Run.cases` and raises AssertionError (or anything else) when an invariant
    does not hold.

    `full` and `part` are the cases of `make crash` and of the slice in `make test`; `obstacle` says why the fault
    cannot be made on this machine, or nothing.
    """

    name: str
    how: str
    full: int
    part: int
    run: Callable[[Run], None]
    obstacle: Callable[[], str] = lambda: ""
    shape: Shape = PLAIN


@dataclass
class Case:
    """One fault, made from its own random generator in its own folder (outside of the store that it harms).

    `faults` is how many it counts as; a case that makes another number than `Run.cases` was told sets it.
    """

    number: int
    rng: random.Random
    folder: Path
    faults: int = 1
    shape: Shape = PLAIN
    _pool: str = ""

    def begin(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Makes the store of the case if it is not plain. A plain one is made by the first who opens it."""
        self._pool = self.shape.make(path, settings)

    def lose_memory(self) -> None:
        """A power cut takes the buffers of a pool away. Nobody has the store open."""
        if self._pool:
            lose_buffers(self._pool)

    @contextmanager
    def in_memory(self) -> Iterator[Path]:
        """A folder on tmpfs where there is one, for faults that no disk takes part in. What is in it when the case
        fails goes into the case's own folder."""
        if not os.access(MEMORY, os.W_OK):
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="cystore-crash-", dir=MEMORY) as name:
            try:
                yield Path(name)
            except BaseException:
                shutil.copytree(name, self.folder, dirs_exist_ok=True)
                raise


@dataclass
class Row:
    """The result of a fault; `tally` counts the examined things (acknowledged, cut bytes, ...)."""

    name: str
    how: str
    seed: int
    wanted: int
    ran: int = 0
    seconds: float = 0.0
    not_run: str = ""
    failures: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        if self.failures:
            return f"FAILED {len(self.failures)}"
        if not self.ran:
            return "FAILED: no case ran"
        return "passed" if self.ran >= self.wanted else f"passed as far as it ran ({self.wanted} wanted)"

    @property
    def good(self) -> bool:
        return not self.failures and (bool(self.not_run) or self.ran > 0)


class Run:
    """The run of one row: hands out cases and counts them."""

    def __init__(
        self,
        row: Row,
        folder: Path,
        *,
        until: float | None = None,
        only: int | None = None,
        progress: Callable[[str], None] = lambda text: None,
        shape: Shape = PLAIN,
    ) -> None:
        self.row, self._folder, self._until, self._only, self._progress = row, folder, until, only, progress
        self.shape = shape
        self._tally: Counter[str] = Counter()

    def cases(self, worth: int = 1) -> Iterator[Case]:
        """Cases until enough ran, or the time is over; each counts as `worth` faults, unless it says otherwise. Use
        `with run.case(one)` in the loop."""
        number = 0
        while self.row.ran < self.row.wanted:
            if len(self.row.failures) >= FAILURES_MAX or (self._until and time.monotonic() > self._until):
                return
            if self._only is None or number == self._only:
                folder = Path(tempfile.mkdtemp(prefix=f"{self.row.name}-", dir=self._folder))
                rng = random.Random(f"{self.row.seed} {self.row.name} {number}")
                case = Case(number, rng, folder, worth, self.shape)
                yield case
                self.row.ran += case.faults
                self._progress(f"{self.row.name}: {self.row.ran} of {self.row.wanted}")
                if self._only is not None:
                    return
            number += 1

    def folder(self, name: str) -> Path:
        """A folder for what all cases share."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))

    @contextmanager
    def case(self, case: Case) -> Iterator[None]:
        """Notes what goes wrong inside with the case's number and keeps its folder; removes the folder otherwise."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever fails is the result
            text = "".join(traceback.format_exception(error, limit=-6)).strip()
            self.row.failures.append(f"case {case.number} in {case.folder}\n{text}")
        else:
            shutil.rmtree(case.folder, ignore_errors=True)
        finally:
            case.lose_memory()

    def tally(self, **numbers: int) -> None:
        """Counts what the row looked at."""
        self._tally.update(numbers)
        self.row.tally = dict(self._tally)


def run(
    fault: Fault,
    *,
    seed: int,
    count: int,
    folder: Path,
    minutes: float | None = None,
    only: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Row:
    """Runs one row with `count` faults, for at most some minutes."""
    row = Row(fault.name, fault.how, seed, count, not_run=fault.obstacle())
    if row.not_run:
        return row
    begin = time.monotonic()
    until = None if minutes is None else begin + minutes * 60
    try:
        fault.run(Run(row, folder, until=until, only=only, progress=progress, shape=fault.shape))
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the same
        row.failures.append("".join(traceback.format_exception(error)).strip())
    row.seconds = time.monotonic() - begin
    return row


def table(rows: list[Row]) -> str:
    lines = [f"{'fault':<18} {'faults':>10} {'of':>10} {'seconds':>8}  result"]
    for row in rows:
        lines.append(f"{row.name:<18} {row.ran:>10,} {row.wanted:>10,} {row.seconds:>8.1f}  {row.verdict}")
        if row.tally:
            lines.append(
                "                   "
                + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in row.tally.items())
            )
    for row in rows:
        lines += [f"\n{row.name}: {failure}" for failure in row.failures]
    return "\n".join(lines)


def as_json(rows: list[Row]) -> str:
    machine = {
        "kernel": platform.release().partition("-")[0],
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    return json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def document(results: list[dict[str, Any]]) -> str:
    """docs/reliability.md, from the JSON of runs on one machine. Runs of one row are added up."""
    runs: dict[str, list[tuple[str, Row]]] = {}
    for result in results:
        for row in result["rows"]:
            runs.setdefault(row["name"], []).append((result["machine"]["when"], Row(**row)))
    head = HEAD.format(**results[-1]["machine"])
    lines = [
        head,
        "| fault | how | faults made | wanted | result | by day |",
        "|---|---|---|---|---|---|",
    ]
    looked = []
    for of_row in runs.values():
        row = _together([one for _, one in of_row])
        made = f"{row.ran:,}" if not row.not_run else "-"
        days = _days(of_row)
        told = ", ".join(map(str, days))
        lines.append(f"| {row.name} | {row.how} | {made} | {row.wanted:,} | {_result(row, days)} | {told} |")
        if not row.not_run:
            seeds = ", ".join(f"`--seed {one.seed}`" for _, one in of_row)
            counted = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in row.tally.items()) or "-"
            looked += wrapped(f"* **{row.name}** ({seeds}, {row.seconds:.0f} s): {counted}")
    lines += ["", "Counts of each row, and the seeds that repeat it:", "", *looked]
    return "\n".join(lines) + "\n"


@dataclass
class Day:
    """What ran on a day, one run after the other; a run that failed stands by itself."""

    when: str
    ran: int
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.when}: {self.ran:,}" + (f" ({self.failed} failed)" if self.failed else "")


def _days(runs: list[tuple[str, Row]]) -> list[Day]:
    """The runs of a row by day, in their order."""
    days: list[Day] = []
    for when, row in runs:
        failed = len(row.failures)
        if days and days[-1].when == when and not failed and not days[-1].failed:
            days[-1].ran += row.ran
        elif row.ran or failed or not days:
            days.append(Day(when, row.ran, failed))
    return days


def _result(row: Row, days: list[Day]) -> str:
    """The verdict over all runs of a row. Behind a failure only the runs since then count: they are of the code that
    was mended."""
    if not row.failures:
        return row.verdict
    last = max(number for number, day in enumerate(days) if day.failed)
    since = sum(day.ran for day in days[last + 1 :])
    if not since:
        return f"FAILED {days[last].failed}"
    if since >= row.wanted:
        return f"passed: {since:,} since the last failure"
    return f"passed as far as it ran since the last failure: {since:,} ({row.wanted} wanted)"


def wrapped(item: str) -> list[str]:
    """A list item in lines of at most 120 characters; a code span stays in one line."""
    whole = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", "\0"), item)
    lines = textwrap.wrap(whole, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _together(rows: list[Row]) -> Row:
    """Several runs of one row as one."""
    tally: Counter[str] = Counter()
    for row in rows:
        tally.update(row.tally)
    last = rows[-1]
    return replace(
        last,
        wanted=max(row.wanted for row in rows),
        ran=sum(row.ran for row in rows),
        seconds=sum(row.seconds for row in rows),
        failures=[failure for row in rows for failure in row.failures],
        tally=dict(tally),
    )


HEAD = """# Reliability

This page lists the faults that were made on stores, and the results. In every case writers record their acknowledged
puts outside the store. Then come the fault, a recovery, and a checker that reads everything back. The checker
demands:

* no acknowledged put is lost (under damage: only the damaged record, and it is reported);
* no wrong byte is returned;
* no gap or repeat in a queue, except reported holes;
* no hang, no signal.

If a case leaves a store on the disk, it ends with `clean()`, `cystore rebuild`, `cystore verify`, an open, a read of
everything, and one more put.

Rows whose names end with `-folders` and `-pool` make the same faults on a store whose log has
[several folders](production.md#a-log-on-several-disks), and on one with a [pool of buffers](pool.md). A power cut takes
the buffers away; all other faults leave them. Rows without such twins need a store in one folder, or RocketMQ's
settings, or change nothing but the queues, or kill inside of one piece of the store (`transactions` to `once`).

`make crash` runs all rows and writes `build/crash.json`. `python -m tests.crash --document build/crash.json` writes
this page from it; `--add JSON` adds runs to those that it has. `python -m tests.crash FAULT --seed N --case M` repeats
one case. `make test` runs a part of every row.

The runs were made on {cores} cores, Linux {kernel}, Python {python}. Runs of one row are added up. The last column
counts the faults of each day: the code was different on each. A run with failures is counted by itself there. The
result of a row that failed is that of the runs since then; the section Found tells what failed. "not run" means that
the machine cannot make the fault.
"""
