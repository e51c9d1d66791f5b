"""Goal: a benchmark run that fell behind the committed ratios is told from one that did not. Method: results beside
committed ratios."""

from __future__ import annotations

import json

import pytest

from benchmarks.suite import cases, check

pytestmark = pytest.mark.unsanitized  # Python alone


def result(**ratios: float | None) -> dict:
    rows = [{"label": "cystore", "ratio": None}]
    rows += [{"label": label, "ratio": ratio} for label, ratio in ratios.items()]
    return {"cases": [{"name": "get", "rows": rows}]}


@pytest.mark.parametrize(
    ("now", "code", "words"),
    [
        (2.0, 0, "no ratio of get fell"),
        (1.5, 0, "no ratio"),
        (1.0, 1, "1.00, 2.00 before"),
        (None, 1, "not measured"),
    ],
)
def test_a_ratio_beside_the_committed_one(tmp_path, capsys, now, code, words):
    committed = tmp_path / "ratios.json"
    check.keep(result(LMDB=2.0), committed)
    assert check.compare(result(LMDB=now), committed, margin=0.3) == code
    assert words in capsys.readouterr().out


def test_a_run_without_committed_ratios_proves_nothing(tmp_path):
    committed = tmp_path / "ratios.json"
    committed.write_text('{"put-100": {"LMDB": 2.0}}')
    assert check.compare(result(LMDB=9.0), committed) == 1


def test_the_cases_of_another_run_stay_committed(tmp_path):
    committed = tmp_path / "ratios.json"
    committed.write_text('{"put-100": {"LMDB": 2.0}, "get": {"LMDB": 1.0}}')
    check.keep(result(LMDB=3.0), committed)
    assert json.loads(committed.read_text()) == {"put-100": {"LMDB": 2.0}, "get": {"LMDB": 3.0}}


def test_a_long_case_runs_only_under_its_whole_name():
    case = cases.Case("get-large", "", "", cases.Job("get", 1, ""), (), long=True)
    assert not case.chosen_by([]) and not case.chosen_by(["get"]) and case.chosen_by(["get", "get-large"])
