"""Forked: children of an attached process do to what they inherited what children should not.

They close the store or its descriptors, unlock what their parent locked, use the store and leave or are killed. The
parent stays attached, and whoever would have to be alone in the store is refused, until the parent itself is gone.
"""

from __future__ import annotations

from tests.crash.matrix import Fault, Run
from tests.support.processes.fork_server import ForkServer, environment
from tests.support.processes.forked_writers import CHILDREN
from tests.support.processes.writer_group import WriterGroup, check_reopened
from tests.support.small_stores import SETTINGS

WRITERS = 2
CHILDREN_A_CASE = 4


def run(run: Run) -> None:
    with ForkServer(environment()) as fork_server:
        for case in run.cases():
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                path = folder / "store"
                case.begin(path, SETTINGS)
                does = case.rng.sample(sorted(CHILDREN), CHILDREN_A_CASE)
                writer_group = WriterGroup(
                    fork_server, path, case.rng, WRITERS, life="live_with_children", does=does
                )
                writer_group.goes_on()
                met = fork_server.knock(path, exclusive=True)
                assert met.startswith("StoreLockedError"), (does, met)
                writer_group.lose_one()
                met = fork_server.knock(path, exclusive=True)
                assert met.startswith("StoreLockedError"), (does, met)
                writer_group.goes_on()
                writer_group.end()
                run.tally(
                    acknowledged=check_reopened(path, fork_server),
                    children=WRITERS * CHILDREN_A_CASE,
                )


FAULT = Fault(
    "forked", "children close, unlock and use what they inherited from an attached process", 50, 6, run
)
