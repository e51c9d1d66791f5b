"""Goal: no bytes in a store, and nothing that a user gives, crash a kernel or a parser or are served for what they
are not. Method: a short run of every fuzz target, in the build under test: its corpus, then mutations of it by the
run's seed."""

from __future__ import annotations

import pytest

from tests.fuzz import loop
from tests.fuzz.target import CORPUS, Target, Wrong
from tests.fuzz.targets import TARGETS
from tests.structure.sources import ROOT, files

SHARE_S = 0.15  # of a target, in an uninstrumented build; twice that at most


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_short_run_of(target, seed):
    outcome = loop.run(target, seed=str(seed), seconds=2 * SHARE_S, inputs=int(SHARE_S * target.per_second))
    if outcome.failed is not None:
        data, error = outcome.failed
        raise AssertionError(f"{target.name} fails for {data!r}") from error
    assert outcome.inputs >= len(target.corpus()) > 0


def test_a_target_that_fails_is_told_with_its_input():
    """And the same seed finds the same input again."""

    def refuse(data: bytes) -> None:
        if b"\xff" in data:
            raise Wrong("such bytes")

    target = Target("record", refuse, list)
    first, again = (loop.run(target, seed="1", inputs=100_000) for _ in range(2))
    assert first.failed is not None and again.failed is not None
    assert b"\xff" in first.failed[0] and first.failed[0] == again.failed[0]
    assert first.inputs == again.inputs


def test_every_target_has_a_small_corpus_and_every_corpus_a_target():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    for target in TARGETS.values():
        sound = {path.name: path.read_bytes() for path in (CORPUS / target.name).glob("seed-*")}
        assert sound == {f"seed-{number}": data for number, data in enumerate(target.seeds())}, target.name
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 32 * 1024


# Kernels whose name does not contain their target's.
REACHED_BY = {
    "checksum": "checksum",
    "control": "control",
    "control_fields": "control",
    "locks": "control",
    "store_clock": "control",
    "descriptor": "store",
    "argument_checks": "put",
    "queue_table": "control",
    "queue_files": "store",
    "mapping": "query",
    "record": "record",
    "message": "message",
    "transfer": "message",
    "append": "put",
    "append_loop": "put",
    "group_commit": "recovery",
    "light": "light",
    "latest": "latest",
    "copied": "copied",
    "inflow": "slave",
    "outflow": "master",
    "properties": "properties",
    "program": "filter",
    "bitmap": "filter",
    "appender": "put",
    "put": "put",
    "window": "queue",
    "queue": "queue",
    "queue_ext": "ext",
    "index": "index",
    "key_reader": "query",
    "many_keys": "query",
    "sequence": "query",
    "visible": "query",
    "time_search": "store",
    "queue_reader": "store",
    "get_result": "store",
    "counts": "store",
    "tail": "query",
    "tail_table": "query",
    "dispatch": "recovery",
    "delay": "put",
    "due_run": "store",
    "log_walk": "scan",
    "text_walk": "text",
    "index_chains": "mend",
    "columns": "columns",
    "entries": "entries",
    "log_files": "recovery",
    "pages": "recovery",
    "failpoint": "recovery",
}


def test_every_kernel_has_a_target():
    kernels = {path.stem for path in files(".pyx", under="cystore/_native")}
    assert kernels == set(REACHED_BY), f"see {ROOT / 'docs' / 'fuzzing.md'}"
    assert set(REACHED_BY.values()) <= set(TARGETS)
