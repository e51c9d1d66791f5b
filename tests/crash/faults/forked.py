"""Forked: children of an attached process do to what they inherited what children should not.

They close the store or its descriptors, unlock what their parent locked, use the store and leave or are killed. The parent stays
attached, and whoever would have to be alone in the store is refused, until the parent itself is gone.
"""

from __future__ import annotations

from tests.crash.crew import Crew, check_reopened
from tests.crash.herd import Herd, environment
from tests.crash.lives import CHILDREN
from tests.crash.matrix import Fault, Run

WRITERS = 2
CHILDREN_A_CASE = 4


def run(run: Run) -> None:
    with Herd(environment()) as herd:
        for case in run.cases():
            with run.case(case), case.in_memory() as folder:
                herd.begin()
                path = folder / "store"
                does = case.rng.sample(sorted(CHILDREN), CHILDREN_A_CASE)
                crew = Crew(herd, path, case.rng, WRITERS, life="live_with_children", does=does)
                crew.goes_on()
                met = herd.knock(path, exclusive=True)
                assert met.startswith("StoreLockedError"), (does, met)
                crew.lose_one()
                met = herd.knock(path, exclusive=True)
                assert met.startswith("StoreLockedError"), (does, met)
                crew.goes_on()
                crew.end()
                run.tally(
                    acknowledged=check_reopened(path, herd),
                    children=WRITERS * CHILDREN_A_CASE,
                )


FAULT = Fault(
    "forked", "children close, unlock and use what they inherited from an attached process", 50, 6, run
)
