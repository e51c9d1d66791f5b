"""Goal: a store that a group shares continues when a user's process is killed inside of it: what it left belongs to
the group, and another user repairs it. Method: one user's process dies at named places, another one, that may only
what the group may, lives on or comes next."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.process import Process
from tests.support.processes.writers import arm
from tests.support.users import (
    ALICE,
    BOB,
    NEEDS_ROOT,
    TEAM,
    User,
    common_place,
    needs_root,
)

OPEN = "store = cystore.open(root, **settings, group=group)"
WORK = (
    "for n in range(300): store.put(f'T{n % 5}', b'x' * 100, keys=str(n)); "
    "store.query(f'T{n % 5}', str(n)); store.flush()"
)
LOOK = "[len(list(store.scan())), len(store.query('T', 'after'))]"
# Inside each lock, and where files are made and replaced: whether the other user is attached at the kill, or comes
# later.
PLACES = {
    "append.bytes_written": True,
    "append.published": False,
    "dispatch.queue": True,
    "index.counted": False,
    "flush.synced": True,
    "control.queue_counted": True,
    "allocate.created": True,
    "files.made": False,
    "files.replaced": False,
    "attach.marked": False,
}


def go_on(user: Process, root: str) -> None:
    """Another user writes into everything, and finds all of it."""
    user.do("store.put('T', b'after', keys='after', flush='sync'); store.flush()")
    records, found = user.do(LOOK)
    assert records >= 1 and found == 1
    user.do(WORK)
    user.do("store.close()")
    for path in [Path(root), *Path(root).rglob("*")]:
        assert path.stat().st_gid == TEAM
        assert path.stat().st_mode & 0o777 == (0o770 if path.is_dir() else 0o660), path


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failpoint", "survivor"), PLACES.items())
def test_another_user_goes_on_behind_a_kill(build_environment, failpoint, survivor):
    environment = build_environment("failpoints")
    with (
        common_place() as place,
        User(ALICE, TEAM, environment=environment, umask=0o077) as alice,
        User(BOB, TEAM, environment=environment) as bob,
    ):
        (place / "shared").mkdir()
        os.chown(place / "shared", 0, TEAM)
        (place / "shared").chmod(0o2770)
        root = str(place / "shared" / "store")
        given = {"root": root, "group": str(TEAM)}
        alice.do("put(root, group=group)", **given)
        if survivor:
            bob.do(OPEN, **given)
        arm(alice, failpoint if failpoint == "attach.marked" else f"{failpoint}:3")
        with pytest.raises(EOFError):
            alice.do(f"{OPEN}\n{WORK}", **given)
        assert alice.wait() == -signal.SIGKILL
        if not survivor:
            bob.do(OPEN, **given)
        go_on(bob, root)
