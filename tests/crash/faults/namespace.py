"""Namespace: somebody in another PID namespace opens a store that is in use.

The kernel knows the owner of a shared lock by a thread id of one namespace. So a writer of the other namespace is
refused with an error that says so, whoever was there first. A reader takes no lock and is let in. Those who are
attached go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.crash.matrix import Fault, Run
from tests.support.processes.fork_server import ForkServer, environment
from tests.support.processes.writer_group import WriterGroup, check_reopened
from tests.support.small_stores import SETTINGS

WRITERS = 2
# As a user's root where we are not root; its first process dies with it.
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["--map-root-user"])]
NAMESPACE = "__import__('os').stat('/proc/self/ns/pid').st_ino"
REFUSED = "StoreFormatError: attached processes differ in PID namespace"


def obstacle() -> str:
    if not shutil.which("unshare"):
        return "no unshare"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no PID namespace can be made: {done.stderr.strip()}" if done.returncode else ""


def run(run: Run) -> None:
    with ForkServer(environment()) as here, ForkServer(environment(), through=UNSHARE) as there:
        assert here.ask(NAMESPACE) != there.ask(NAMESPACE)
        for case in run.cases():
            first, late = (here, there) if case.number % 2 else (there, here)
            with run.case(case), case.in_memory() as folder:
                here.begin()
                there.begin()
                path = folder / "store"
                case.begin(path, SETTINGS)
                writer_group = WriterGroup(first, path, case.rng, WRITERS)
                writer_group.goes_on()
                met = late.knock(path)
                assert met.startswith(REFUSED) and "--pid=host" in met, met
                assert late.knock(path, read_only=True) == "opened"
                assert late.knock(path, exclusive=True).startswith("StoreLockedError")
                writer_group.goes_on()
                writer_group.lose_one()
                assert late.knock(path).startswith(REFUSED)
                writer_group.goes_on()
                writer_group.end()
                if late is there:
                    assert (
                        late.knock(path, **SETTINGS) == "opened"
                    )  # nobody is attached: another namespace is as good
                run.tally(acknowledged=check_reopened(path, first))


FAULT = Fault("namespace", "a store in use is opened from another PID namespace", 50, 3, run, obstacle)
