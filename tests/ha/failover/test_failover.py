"""Goal: a put that was acknowledged as replicated survives the master, and no two masters acknowledge at the same
place. Method: three members on hosts of their own with a real etcd; the master is killed, stopped, and cut off, and a
checker reads everything afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.ha.failover.episodes import run
from tests.support.ha.etcd import needs_etcd
from tests.support.ha.fleet import Fleet
from tests.support.ha.ha_pair import until
from tests.support.ha.network import needs_namespaces

pytestmark = [needs_etcd, needs_namespaces]


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path) as fleet:
        fleet.wait_in_sync(3)
        fleet.wait_more()
        yield fleet


def cut_off(fleet: Fleet, name: str) -> None:
    for other in ("", *(member for member in fleet.names if member != name)):
        fleet.network.cut(name, other)


@pytest.mark.slow  # the episodes do each of them too
@pytest.mark.parametrize("lose", [Fleet.kill, Fleet.stop, cut_off])
def test_the_master_is_lost_for_longer_than_its_lease(fleet, lose):
    epoch, master = fleet.newest(), fleet.wait_master()
    lose(fleet, master)
    assert fleet.wait_master(after=epoch) != master
    fleet.wait_more()
    if lose == Fleet.stop:
        fleet.go_on(master)
        fleet.wait_in_sync(3)
    assert fleet.check() == []


def test_a_slice_of_the_episodes(tmp_path, rng):
    found = run(tmp_path, seed := rng.randrange(2**32), 3)
    assert not found.faults, f"seed {seed}"
    assert found.episodes == 3 and found.acknowledged > 0


@pytest.mark.slow  # also as `make ha ARGS="--build asan"`
def test_episodes_of_members_with_sanitized_kernels(tmp_path, rng, build_environment):
    chosen = ("kill", "stop", "cut_off", "cut_one_pair")
    found = run(tmp_path, seed := rng.randrange(2**32), 4, chosen, environment=build_environment("asan"))
    assert not found.faults, f"seed {seed}"
    assert found.episodes == 4 and found.acknowledged > 0


def cystore_ha(fleet: Fleet, name: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [*fleet.network.through(name), sys.executable, "-W", "ignore", "-m", "cystore", "ha", *words],
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_an_operator_chooses_the_master(fleet):
    master, places = fleet.wait_master(), {name: str(fleet.folder / name) for name in fleet.names}
    other = next(name for name in fleet.names if name != master)
    epoch = fleet.newest()
    code, text = cystore_ha(fleet, other, "promote", places[other])
    assert (code, text.partition(" in epoch")[0]) == (0, f"{other} is the master of fleet")
    assert fleet.wait_master(after=epoch) == other
    fleet.wait_in_sync(3)

    slaves = [name for name in fleet.names if name != other]

    def told() -> dict[str, Any]:
        """The list of slaves is written down every second; a slave that has just come has no name yet."""
        _, text = cystore_ha(fleet, other, "status", places[other], "--json")
        found = json.loads(text)
        return found if sorted(slave["name"] for slave in found["slaves"]) == slaves else {}

    found = until(told)
    assert found["elected"] == other and found["in_sync"] == list(fleet.names)
    code, text = cystore_ha(fleet, master, "status", places[master])
    assert code == 0 and f"elected: {other} at" in text and "in sync: a, b, c" in text, text
    code, text = cystore_ha(fleet, master, "demote", places[master])
    assert code == 2 and f"{master} is not the master; that is {other}" in text
    epoch = fleet.newest()
    code, text = cystore_ha(fleet, other, "demote", places[other])
    assert code == 0, text
    assert fleet.wait_master(after=epoch) != other
    assert fleet.check() == []


@pytest.mark.slow  # test_checker.py gives the checker what it must find
def test_a_lie_of_the_master_is_found(fleet):
    """A planted fault: what it acknowledges without its members is lost with it."""
    epoch, master = fleet.newest(), fleet.wait_master()
    fleet.do(master, "node.acknowledge_all()")
    for other in (name for name in fleet.names if name != master):
        fleet.network.cut(master, other)
    fleet.wait_more(5)
    fleet.network.cut(master, "")
    assert fleet.wait_master(after=epoch) != master
    fleet.wait_more()
    assert any("lost" in fault for fault in fleet.check())
