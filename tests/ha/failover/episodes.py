"""Episodes: one fault each, chosen by a seed, while three members write.

A round is some episodes, and then the checker reads everything."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.disks.disks import POWER_CUTS
from tests.support.ha.fleet import LEASE_MS, Fleet

ROUND = 10
QUIET_S = 0.05


@dataclass
class Outcome:
    """Of a run. `failovers_ms`: from the last acknowledged put of an epoch to the first one of the next."""

    episodes: int = 0
    faults: list[str] = field(default_factory=list)
    failovers_ms: list[int] = field(default_factory=list)
    acknowledged: int = 0


def _others(fleet: Fleet, name: str) -> list[str]:
    return [one for one in fleet.names if one != name]


def kill(fleet: Fleet, rng: random.Random, name: str) -> None:
    fleet.kill(name)
    _more(fleet, rng)
    fleet.start(name)


def kill_two(fleet: Fleet, rng: random.Random, name: str) -> None:
    both = [name, rng.choice(_others(fleet, name))]
    for one in both:
        fleet.kill(one)
    _pass(rng.random() * 2 * LEASE_MS / 1000)
    for one in rng.sample(both, 2):
        fleet.start(one)


def kill_all(fleet: Fleet, rng: random.Random, name: str) -> None:
    for one in fleet.names:
        fleet.kill(one)
    for one in rng.sample(fleet.names, len(fleet.names)):
        fleet.start(one)


def stop(fleet: Fleet, rng: random.Random, name: str) -> None:
    """For longer than the lease, or a little less."""
    fleet.stop(name)
    _pass(LEASE_MS / 1000 * rng.uniform(0.6, 2.5))
    fleet.go_on(name)


def stop_often(fleet: Fleet, rng: random.Random, name: str) -> None:
    for _ in range(rng.randrange(2, 6)):
        fleet.stop(name)
        _pass(rng.uniform(0.05, 0.6) * LEASE_MS / 1000)
        fleet.go_on(name)
        _pass(QUIET_S)


def cut_off(fleet: Fleet, rng: random.Random, name: str) -> None:
    """Both ways, from everybody."""
    _cut(fleet, [(name, "")] + [pair for one in _others(fleet, name) for pair in ((name, one), (one, name))])
    _more(fleet, rng)


def cut_out(fleet: Fleet, rng: random.Random, name: str) -> None:
    """One way: others hear nothing of it, and it hears them."""
    _cut(fleet, [(name, one) for one in _others(fleet, name)])
    _more(fleet, rng)


def cut_in(fleet: Fleet, rng: random.Random, name: str) -> None:
    """One way: it hears nothing of the others, and they hear it."""
    _cut(fleet, [(one, name) for one in _others(fleet, name)])
    _more(fleet, rng)


def cut_from_etcd(fleet: Fleet, rng: random.Random, name: str) -> None:
    _cut(fleet, [(name, "")])
    _pass(LEASE_MS / 1000 * rng.uniform(0.5, 2.5))


def cut_one_pair(fleet: Fleet, rng: random.Random, name: str) -> None:
    _cut(fleet, [(name, rng.choice(_others(fleet, name)))])
    _more(fleet, rng)


def etcd_stands_still(fleet: Fleet, rng: random.Random, name: str) -> None:
    fleet.etcd.stop()
    _pass(LEASE_MS / 1000 * rng.uniform(0.3, 2.0))
    fleet.etcd.go_on()


def etcd_is_killed(fleet: Fleet, rng: random.Random, name: str) -> None:
    fleet.etcd.kill()
    if rng.random() < 0.5:
        fleet.kill(name)
    _pass(LEASE_MS / 1000 * rng.uniform(0.0, 1.5))
    fleet.etcd.start()


def etcd_loses_a_member(fleet: Fleet, rng: random.Random, name: str) -> None:
    """Killed, or standing still; the others are a majority."""
    lost = rng.randrange(len(fleet.etcd))
    away, back = rng.choice(((fleet.etcd.kill, fleet.etcd.start), (fleet.etcd.stop, fleet.etcd.go_on)))
    away(lost)
    if rng.random() < 0.5:
        fleet.kill(name)
    _pass(LEASE_MS / 1000 * rng.uniform(0.5, 2.0))
    _more(fleet, rng)
    back(lost)


def slow_link(fleet: Fleet, rng: random.Random, name: str) -> None:
    """What others send it takes its time, answers of etcd too; what is too much is lost."""
    fleet.network.slow(name, rng.choice((16, 64, 256, 1024)))
    _more(fleet, rng)
    fleet.network.slow(name, 0)


def full_disk(fleet: Fleet, rng: random.Random, name: str) -> None:
    """A master with a full disk takes no put, and gives the role to another after a lease. A replica leaves the set."""
    fleet.disks.fill(name)
    _pass(LEASE_MS / 1000 * rng.uniform(0.5, 2.5))
    if rng.random() < 0.3:
        fleet.kill(name)
    fleet.disks.empty(name)


def failed_sync(fleet: Fleet, rng: random.Random, name: str) -> None:
    """Syncs fail, and succeed again. Only a new life of the member may believe them."""
    if fleet.calls is None:
        return
    fleet.fail_syncs(name)
    _more(fleet, rng)
    fleet.end_failures(name)
    _more(fleet, rng)
    fleet.kill(name)
    _more(fleet, rng)


def clock_jump(fleet: Fleet, rng: random.Random, name: str) -> None:
    """The wall clock of a host is set, and perhaps set right again. Leases are measured by another clock."""
    if not fleet.clocks:
        return
    fleet.clocks[name].offset_ms = rng.choice((-1, 1)) * rng.choice((5_000, 3_600_000, 86_400_000))
    _more(fleet, rng)
    if rng.random() < 0.5:
        fleet.kill(name)
    if rng.random() < 0.5:
        fleet.clocks[name].offset_ms = 0


def power_cut(fleet: Fleet, rng: random.Random, name: str) -> None:
    """The host loses what it has not synced."""
    if fleet.disks.can_lose_power:
        fleet.lose_power({name: rng.choice(POWER_CUTS)})
        _more(fleet, rng)
        fleet.start(name)


def power_cut_of_more(fleet: Fleet, rng: random.Random, name: str) -> None:
    """Two hosts, or all, lose what they have not synced."""
    if fleet.disks.can_lose_power:
        hosts = [name, *rng.sample(_others(fleet, name), rng.randrange(1, len(fleet.names)))]
        fleet.lose_power({one: rng.choice(POWER_CUTS) for one in hosts})
        _pass(rng.random() * 2 * LEASE_MS / 1000)
        for one in rng.sample(hosts, len(hosts)):
            fleet.start(one)


EPISODES: tuple[Callable[[Fleet, random.Random, str], None], ...] = (
    kill,
    kill_two,
    kill_all,
    stop,
    stop_often,
    cut_off,
    cut_out,
    cut_in,
    cut_from_etcd,
    cut_one_pair,
    etcd_stands_still,
    etcd_is_killed,
    etcd_loses_a_member,
    slow_link,
    full_disk,
    failed_sync,
    clock_jump,
    power_cut,
    power_cut_of_more,
)


def _cut(fleet: Fleet, ways: list[tuple[str, str]]) -> None:
    for source, target in ways:
        fleet.network.cut(source, target)


def _pass(seconds: float) -> None:
    """The fault lasts so long: that is what it is."""
    signal.sigtimedwait([], seconds)


def _more(fleet: Fleet, rng: random.Random) -> None:
    """The group goes to work again, beside the fault."""
    fleet.wait_more(rng.randrange(1, 30))


def _again(fleet: Fleet) -> None:
    """The fault is over: all members come back, and puts are acknowledged."""
    fleet.network.heal()
    for name in fleet.names:
        if name not in fleet.running():
            fleet.start(name)
    fleet.wait_in_sync(len(fleet.names))
    fleet.wait_more(5)


def run(
    folder: Path,
    seed: int,
    count: int,
    chosen: tuple[str, ...] = (),
    told: Callable[[str], None] = lambda line: None,
    environment: dict[str, str] | None = None,
) -> Outcome:
    """So many episodes. Ends at the first round with a fault, whose folder is kept. `environment`: of the members."""
    outcome, number = Outcome(), 0
    episodes = [one for one in EPISODES if not chosen or one.__name__ in chosen]
    while number < count and not outcome.faults:
        place = folder / f"round-{number}"
        place.mkdir(parents=True)
        with Fleet(place, environment=environment) as fleet:
            fleet.wait_in_sync(len(fleet.names))
            fleet.wait_more()
            for _ in range(min(ROUND, count - number)):
                rng = random.Random(f"{seed}.{number}")
                episode = rng.choice(episodes)
                master = fleet.wait_master()
                name = master if rng.random() < 0.7 else rng.choice(_others(fleet, master))
                told(f"{number} {episode.__name__} {name}{' (master)' if name == master else ''}")
                number += 1
                begun = time.monotonic()
                try:
                    episode(fleet, rng, name)
                    _again(fleet)
                except TimeoutError as error:
                    stand = {one: fleet.facts(one) for one in fleet.running()}
                    outcome.faults.append(f"{number - 1} {episode.__name__}: {error}: {stand}")
                    break
                told(f"  over after {time.monotonic() - begun:.1f} s")
            outcome.episodes = number
            if not outcome.faults:
                outcome.faults += fleet.check()
            if outcome.faults:
                fleet.keep()
            lines = fleet.acknowledged()
            outcome.acknowledged += len(lines)
            outcome.failovers_ms += _failovers(lines)
        if not outcome.faults:
            shutil.rmtree(place)
    return outcome


def _failovers(lines: list[dict]) -> list[int]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for line in lines:
        epoch, ms = line["epoch"], line["ms"]
        first[epoch] = min(first.get(epoch, ms), ms)
        last[epoch] = max(last.get(epoch, ms), ms)
    epochs = sorted(first)
    return [first[b] - last[a] for a, b in itertools.pairwise(epochs)]
