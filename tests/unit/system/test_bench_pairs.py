"""Goal: a case that became slower is told from one that did not. Method: results of two checkouts, collected."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.suite import interpreters, pairs

pytestmark = pytest.mark.unsanitized  # Python alone


def result(ours_ns: float, ratio: float) -> dict:
    ours = {"label": "cystore", "ns_per_op_median": ours_ns, "ratio": None}
    return {
        "cases": [{"name": "get", "rows": [ours, {"label": "LMDB", "ns_per_op_median": 1, "ratio": ratio}]}]
    }


@pytest.mark.parametrize(
    ("now", "marked"),
    [((100, 2.0), []), ((125, 1.6), ["cystore", "LMDB"]), ((80, 2.5), []), ((105, 1.9), [])],
)
def test_only_what_is_slower_by_more_than_the_noise_is_marked(now, marked):
    before, after = defaultdict(list), defaultdict(list)
    for _ in range(2):
        pairs.collect(result(100, 2.0), before)
        pairs.collect(result(*now), after)
    shown = pairs.lines("get", before, after)
    assert [line.split()[0] for line in shown if line.endswith("SLOWER")] == marked


def test_a_row_that_varies_much_is_not_marked():
    before, after = defaultdict(list), defaultdict(list)
    for earlier, later in ((100, 125), (140, 150)):
        pairs.collect(result(earlier, 2.0), before)
        pairs.collect(result(later, 2.0), after)
    assert not any(line.endswith("SLOWER") for line in pairs.lines("get", before, after))


def test_a_case_that_the_other_checkout_lacks_is_shown_alone():
    after = defaultdict(list)
    pairs.collect(result(100, 2.0), after)
    assert [line.split() for line in pairs.lines("get", {}, after)[1:]] == [
        ["cystore", "-", "100"],
        ["LMDB", "-", "2"],
    ]


def test_the_table_of_interpreters_has_our_rows_and_compares_with_the_first():
    first, second, third = (defaultdict(list) for _ in range(3))
    pairs.collect(result(100, 2.0), first)
    pairs.collect(result(80, 2.0), second)
    assert interpreters.lines("get", [first, second, third]) == ["| get | 100 | 80 (1.25 ×) | not measured |"]
