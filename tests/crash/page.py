"""Reads docs/reliability.md back into results, so that new runs are added to those that the page has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.crash.matrix import Row

RUN_BEFORE = "a failure of an earlier run"
TABLE_ROW = re.compile(r"^\| (.+) \| (.+) \| ([\d,]+) \| ([\d,]+) \| (.+) \| (.+) \|$", re.MULTILINE)
DAY = re.compile(r"(\d{4}-\d\d-\d\d): ([\d,]*\d)(?: \((\d+) failed\))?")
COUNTS = re.compile(r"^\* \*\*(\S+)\*\* \((.+?), (\d+) s\): (.+)$", re.MULTILINE)
MACHINE = re.compile(r"on (\d+) cores, Linux (\S+), Python (\S+)\. Runs")


def results_of(page: str) -> list[dict[str, Any]]:
    """The results that the page was written from: runs of a row are told apart by day, as far as the page does."""
    whole = re.sub(r"\n  +", " ", page)  # list items in one line
    machine = MACHINE.search(whole)
    if machine is None:
        raise ValueError("the page does not name a machine")
    cores, kernel, python = machine.groups()
    counts = {name: rest for name, *rest in COUNTS.findall(whole)}
    return [
        {
            "machine": {"kernel": kernel, "python": python, "cores": int(cores), "when": when},
            "rows": [asdict(row)],
        }
        for name, how, _, wanted, _, days in TABLE_ROW.findall(page)
        for when, row in _runs(name, how, _number(wanted), days, counts[name])
    ]


def _runs(name: str, how: str, wanted: int, days: str, counts: list[str]) -> Iterator[tuple[str, Row]]:
    """One for each seed. The first has the row's seconds and its tally."""
    seeds = [int(seed) for seed in re.findall(r"--seed (\d+)", counts[0])]
    by_day = DAY.findall(days)
    for number, seed in enumerate(seeds):
        when, ran, failed = by_day[number] if number < len(by_day) else (by_day[-1][0], "0", "")
        row = Row(name, how, seed, wanted, ran=_number(ran))
        row.failures = [RUN_BEFORE] * int(failed or 0)
        if number == 0:
            row.seconds = float(counts[1])
            row.tally = dict(_counted(counts[2]))
        yield when, row


def _counted(text: str) -> Iterator[tuple[str, int]]:
    for item in re.findall(r"(?:^|, )([\d,]*\d) ([^,]+)", text):
        yield item[1].replace(" ", "_"), _number(item[0])


def _number(text: str) -> int:
    return int(text.replace(",", ""))
