"""Goal: a kill while a log with several folders grows, or while its folders change, costs nothing (I1, I2, I6), and no
file of the log is in two folders. Method: a writer is killed where files are made; the first process of a store at each
write of the list and of the marks."""

from __future__ import annotations

import os
import signal

import pytest

from tests.crash.test_kill_places import goes_on, kill
from tests.support.checks import check, check_closed
from tests.support.processes.writers import acknowledged, arm, start
from tests.support.small_stores import SETTINGS, open_small

PLACES = {"allocate.created": 4, "allocate.reserved": 6, "files.made": 8, "files.named": 8}


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


@pytest.fixture
def others(in_memory):
    found = [in_memory / "one", in_memory / "two"]
    for folder in found:
        folder.mkdir()
    return found


def bases_once(path, others) -> set[str]:
    names = [
        name for folder in (path / "commitlog", *others) for name in os.listdir(folder) if name.isdecimal()
    ]
    assert len(names) == len(set(names))
    return set(names)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_i1_i2_i6_a_kill_while_the_log_grows(path, others, log, rng, victim, place, survivors):
    settings = {**SETTINGS, "store_path_commit_log": f"commitlog,{others[0]},{others[1]}"}
    store = open_small(path, **settings) if survivors else None
    start(victim, path, log, rng.randrange(1 << 30), settings)
    arm(victim, f"{place}:{rng.randrange(1, PLACES[place] + 1)}")
    kill(victim, "work(4000)")
    with store or open_small(path) as store:
        goes_on(store, log)
        bases_once(path, others)
    check_closed(path, SETTINGS)
    with open_small(path, read_only=True) as store:
        check(store, acknowledged(log))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["files.written", "files.replaced"])
@pytest.mark.parametrize("passes", range(1, 6))
def test_a_kill_while_folders_are_added(path, others, log, rng, victim, place, passes):
    """Two marks, the list, and files of the open behind them."""
    with open_small(path) as store:
        put = store.put("shared", b"x", keys=("k",))
        store.configure(store_path_commit_log=f"commitlog,{others[0]},{others[1]}")
    arm(victim, f"{place}:{passes}")
    with pytest.raises(EOFError):
        victim.do(
            "store = cystore.open(path, **settings); os.kill(os.getpid(), 9)",
            path=str(path),
            settings=SETTINGS,
        )
    assert victim.wait() == -signal.SIGKILL
    with open_small(path) as store:
        goes_on(store, log)
        assert bytes(store.read(put.physical_offset).body) == b"x"
        assert os.listdir(others[0]) or os.listdir(others[1])
    assert all((folder.with_name(f"{folder.name}.cystore") / "mark.json").exists() for folder in others)
    with pytest.raises(Exception, match="belongs to the store"):
        open_small(path.with_name("another"), store_path_commit_log=str(others[0]))
