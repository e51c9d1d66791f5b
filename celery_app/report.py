"""The report of a run, read back from the store: by id, by task name, by time, failures, and a summary."""

from __future__ import annotations

import os
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import cystore
from celery_app import sources
from celery_app.job import Run
from celery_app.tasks import index_file
from celery_app.tell import say
from celery_app.verify import Verdict
from cystore import MessageStore
from cystore.celery import history
from cystore.celery.base import records
from cystore.celery.history import Transition
from cystore.operate.output import one_line, time_text, write_table

SHOWN = 4
LIBRARIES_SHOWN = 10
TRACEBACK_LINES = 6
AROUND_KILL_MS = 1_000


def report(run: Run, verdict: Verdict) -> None:
    """Prints everything a newcomer may want to see of a run."""
    with cystore.open(run.folder.store, read_only=True) as store:
        lives = _lives(store)
        _by_id(lives)
        _by_name(store)
        _by_time(store, run)
        failed = _failures(store)
        _summary(lives)
        _outcome(run, verdict, lives)
        _commands(run.folder.store, failed)


def _lives(store: MessageStore) -> dict[str, list[Transition]]:
    """All transitions of each task, newest first."""
    lives: dict[str, list[Transition]] = {}
    for transition in history.transitions(store):
        lives.setdefault(transition.task_id, []).append(transition)
    return lives


def _by_id(lives: dict[str, list[Transition]]) -> None:
    task_id = max(lives, key=lambda task_id: len(lives[task_id]))
    life = lives[task_id]
    again = ": its worker was killed, so it began again" if _starts(life) > 1 else ""
    say(f"\nby id   the whole life of task {task_id}, newest first{again}")
    write_table(("time", "state", "worker", "file"), [_row(transition) for transition in life])


def _row(transition: Transition) -> tuple[str, str, str, str]:
    meta = transition.meta
    return (
        time_text(transition.time_ms),
        str(transition.state),
        str(meta.get("worker") or ""),
        " ".join(map(str, meta.get("args") or ())),
    )


def _by_name(store: MessageStore) -> None:
    name = index_file.name
    say(f"\nby name the newest {SHOWN} transitions of {name}")
    found = islice(history.transitions(store, name=name), SHOWN)
    write_table(("time", "state", "worker", "file"), [_row(transition) for transition in found])


def _by_time(store: MessageStore, run: Run) -> None:
    begin_ms, end_ms = run.killed_ms - AROUND_KILL_MS, run.killed_ms + AROUND_KILL_MS
    found = list(history.transitions(store, begin_ms=begin_ms, end_ms=end_ms))
    counts = Counter(f"{transition.state}" for transition in found)
    say(f"\nby time the second before and the second after the kill at {time_text(run.killed_ms)}")
    write_table(("state", "transitions"), sorted(counts.items()))


def _failures(store: MessageStore) -> list[Transition]:
    """Shows and returns the failed tasks, each once: one that was delivered twice failed twice."""
    found = {t.task_id: t for t in history.transitions(store, name=index_file.name, states=("FAILURE",))}
    failed = list(found.values())
    say(
        f"\nfailed  {len(failed)} files that do not parse; the newest of them, and the traceback of the first"
    )
    rows = []
    for transition in failed[:SHOWN]:
        result = transition.result
        rows.append(
            (result["exc_type"], Path(transition.meta["args"][0]).name, str(result["exc_message"][0]))
        )
    write_table(("error", "file", "message"), rows)
    if failed:
        for line in (failed[0].traceback or "").strip().splitlines()[-TRACEBACK_LINES:]:
            say(f"    {one_line(line)}")
    return failed


def _summary(lives: dict[str, list[Transition]]) -> None:
    totals: dict[str, Counter[str]] = {}
    for life in lives.values():
        valid = next((t for t in life if t.state == "SUCCESS"), life[0])
        path = valid.meta["args"][0]
        counts: dict[str, Any] = valid.result if valid.state == "SUCCESS" else {"failed": 1}
        totals.setdefault(sources.library_of(path), Counter()).update({"files": 1, **counts})
    columns = ("files", "failed", "lines", "functions", "classes", "imports")
    ranked = sorted(totals, key=lambda name: -totals[name]["lines"])
    say(f"\nsummary the {min(LIBRARIES_SHOWN, len(ranked))} largest of {len(ranked)} packages and modules")
    rows: list[tuple[object, ...]] = [(n, *(totals[n][c] for c in columns)) for n in ranked[:LIBRARIES_SHOWN]]
    total = sum(totals.values(), Counter[str]())
    write_table(("", *columns), [*rows, ("all", *(total[column] for column in columns))])


def _starts(life: list[Transition]) -> int:
    return sum(transition.state == "STARTED" for transition in life)


def _outcome(run: Run, verdict: Verdict, lives: dict[str, list[Transition]]) -> None:
    again = sum(_starts(life) > 1 for life in lives.values())
    done = Counter(meta["status"] for meta in run.metas.values())
    say(
        f"\nresult  {len(run.metas):,} tasks in {run.seconds:.1f} s: {done['SUCCESS']:,} succeeded, "
        f"{done['FAILURE']:,} failed"
    )
    say(
        f"        tasks that began twice, because their worker was killed before it acknowledged them: {again}"
    )
    if run.sent_again:
        say(
            f"        tasks that were sent again, because their messages were lost with the worker: {run.sent_again}"
        )
    say(
        f"        the dispatch duty built queues and index in {run.turns} runs, with leases {run.leases}; "
        f"the last {run.behind_bytes:,} bytes are left to the next reader"
    )
    say(
        f"        a fresh process read all {verdict.checked:,} acknowledged results back: "
        f"{len(verdict.missing)} missing, {len(verdict.different)} different"
    )
    for task_id in [*verdict.missing, *verdict.different][:SHOWN]:
        say(f"        LOST {task_id}")


def _commands(store: Path, failed: list[Transition]) -> None:
    script = Path(sys.executable).parent / "cystore"
    command = _short(script) if script.exists() else f"{_short(Path(sys.executable))} -m cystore.cli"
    path = _short(store)
    key = records.key_of(failed[0].task_id) if failed else "TASK_ID"
    say(f"\nlook    {path} is an ordinary directory; it stays until the next run")
    say(f"        {command} info {path}")
    say(f"        {command} query {path} {records.RESULTS} {key}")
    say(f"        {command} tail {path} {records.RESULTS}")


def _short(path: Path) -> str:
    near = os.path.relpath(path)
    return near if len(near) < len(str(path)) else str(path)
