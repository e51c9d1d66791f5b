"""Page order: power cuts after which each page of a file may be the old one or the new one, whatever was written
first."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cystore
from cystore.verify.verifier import verify
from tests.crash import images
from tests.crash.images import PAGE_BYTES, Files, Patches, Put
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath

IMAGES = 4096  # of a case: every subset of 12 dirty pages
DIRTY_MAX = 12
SECTOR_BYTES = 512
WRITABLE_EVERY = 16  # so many images are recovered in private memory for one that is recovered on the disk
LOG = "commitlog/"


@dataclass(frozen=True)
class Unit:
    """A part of a file that was written to since it was last durable: a page, or a sector."""

    name: str
    at: int
    old: bytes
    new: bytes


@dataclass
class Crash:
    """A store when the power went: `old` is durable, `new` stood in the page cache; the first `durable` puts are on
    the disk."""

    settings: dict
    old: Files
    new: Files
    puts: list[Put] = field(default_factory=list)
    durable: int = 0

    def units(self, size: int) -> list[Unit]:
        """The differing pages. A file that only the page cache had filled was made, all zero, before it was written."""
        found = []
        for name, new in self.new.items():
            old = self.old.get(name, bytes(len(new)))
            assert len(old) == len(new), name
            found += [
                Unit(name, at, old[at : at + size], new[at : at + size])
                for at in range(0, len(new), size)
                if old[at : at + size] != new[at : at + size]
            ]
        return found


def crash(case: Case, folder: Path) -> Crash:
    """A store that was flushed, then written to with sync puts, which make the log alone durable, then with others."""
    rng = case.rng
    settings = images.settings(rng)
    path = folder / "live"
    puts: list[Put] = []

    def write(store: cystore.MessageStore, most: int) -> None:
        for _ in range(rng.randrange(most)):
            puts.append(images.put(store, rng, len(puts)))
            if rng.random() < 0.1:
                store.dispatch()

    with cystore.open(path, **settings) as store:
        write(store, 60)
        if rng.random() < 0.5:
            store.dispatch()
        store.flush()
        old, durable = images.read_files(path), len(puts)
        write(store, 20)
        if rng.random() < 0.7:
            puts.append(images.put(store, rng, len(puts), flush="sync"))
            durable = len(puts)
            # A sync put made the log durable, and no more than the log.
            old |= {name: data for name, data in images.read_files(path).items() if name.startswith(LOG)}
        write(store, 40)
        if rng.random() < 0.5:
            store.dispatch()
        new = images.read_files(path)
    shutil.rmtree(path)
    return Crash(settings, old, new, puts, durable)


class Disk:
    """An image on the disk whose units are replaced one by one, and what a log made of them must hold."""

    def __init__(self, crashed: Crash, path: Path, units: list[Unit]) -> None:
        self.path, self.units = path, units
        self._crashed, self._patches = crashed, Patches(path)
        self._torn: set[int] = set()  # units of the checkpoint that are neither old nor new
        self._differs: dict[int, int] = {}  # place in the log from which on a unit is not the new one
        images.write_files(
            path, {name: crashed.old.get(name, bytes(len(data))) for name, data in crashed.new.items()}
        )
        for number, unit in enumerate(units):
            self._note(number, unit.old)

    def set(self, number: int, data: bytes) -> None:
        unit = self.units[number]
        self._patches.write(unit.name, unit.at, data)
        self._note(number, data)

    def _note(self, number: int, data: bytes) -> None:
        unit = self.units[number]
        if unit.name == "checkpoint":
            (self._torn.discard if data in (unit.old, unit.new) else self._torn.add)(number)
        if not unit.name.startswith(LOG):
            return
        at = next((i for i in range(len(data)) if data[i] != unit.new[i]), -1) if data != unit.new else -1
        if at < 0:
            self._differs.pop(number, None)
        else:
            self._differs[number] = int(unit.name.removeprefix(LOG)) + unit.at + at

    @property
    def torn_checkpoint(self) -> bool:
        """Whether the checkpoint is one that never was."""
        return bool(self._torn)

    def there(self) -> list[Put]:
        """A log is a prefix: the puts before the first byte that did not reach the disk."""
        first = min(self._differs.values(), default=1 << 62)
        return [one for one in self._crashed.puts if one.end <= first]

    def close(self) -> None:
        self._patches.close()


def subsets(disk: Disk, rng: random.Random, count: int) -> Iterator[None]:
    """Images of old and new pages: all there are, in the order of a Gray code, or `count` of them."""
    pages = len(disk.units)
    new = [False] * pages

    def turn(number: int) -> None:
        new[number] = not new[number]
        unit = disk.units[number]
        disk.set(number, unit.new if new[number] else unit.old)

    yield
    if pages <= DIRTY_MAX and 1 << pages <= count:
        for number in range(1, 1 << pages):
            turn((number & -number).bit_length() - 1)
            yield
        return
    for number in range(pages):
        if rng.random() < 0.5:
            turn(number)
    for _ in range(count - 1):
        for number in rng.sample(range(pages), rng.randrange(1, min(pages, 4) + 1)):
            turn(number)
        yield


def torn(disk: Disk, rng: random.Random, count: int) -> Iterator[None]:
    """Images whose sectors are old, new, or broken off in the middle."""
    for _ in range(count):
        for number in rng.sample(range(len(disk.units)), rng.randrange(1, min(len(disk.units), 4) + 1)):
            unit = disk.units[number]
            cut = rng.choice([0, len(unit.new), rng.randrange(len(unit.new))])
            disk.set(number, unit.new[:cut] + unit.old[cut:])
        yield


Kind = Callable[[Disk, random.Random, int], Iterator[None]]


def recover(crashed: Crash, path: Path, disk: Disk, *, read_only: bool) -> None:
    """Nothing durable is missing, nothing behind the first lost byte came back, and all that follows from the log is
    of the log.

    With a checkpoint that is neither the old nor the new one the watermark is told by the millisecond: what was
    stored in the last durable one counts as durable, and what of it did not reach the disk is a reported hole.
    """
    there = disk.there()
    assert len(there) >= crashed.durable
    with cystore.open(path, read_only=read_only, **crashed.settings) as store:
        report = store.recovery
        assert report is not None and report.abnormal, str(report)
        if disk.torn_checkpoint:
            there = images.without(crashed.puts, report.end, report.holes)
            assert there[: crashed.durable] == crashed.puts[: crashed.durable]
        else:
            assert not report.lost and not report.holes, str(report)
        images.check(store, there)
    if not read_only:
        damages = list(verify(path, cystore.StoreConfig(**crashed.settings)))
        assert all(d.kind == "record" and (d.begin, d.end) in report.holes for d in damages), damages
        aftermath(path, crashed.settings, lambda store: images.check(store, there))


def run(run: Run) -> None:
    wanted = min(IMAGES, run.row.wanted)
    for case in run.cases(worth=wanted):
        with run.case(case), images.scratch(case) as folder:
            crashed = crash(case, folder)
            pages = crashed.units(PAGE_BYTES)
            whole = len(pages) <= DIRTY_MAX and 1 << len(pages) <= wanted
            page_images = 1 << len(pages) if whole else wanted // 2
            run_images(crashed, pages, subsets, page_images, folder, case.rng)
            run_images(crashed, crashed.units(SECTOR_BYTES), torn, wanted - page_images, folder, case.rng)
            run.tally(durable_puts=crashed.durable, dirty_pages=len(pages), complete_cases=int(whole))


def run_images(
    crashed: Crash, units: list[Unit], kind: Kind, count: int, folder: Path, rng: random.Random
) -> None:
    """Recovers so many images; most in private memory, which leaves the image as it is, some on the disk."""
    path, copy = folder / "image", folder / "copy"
    disk = Disk(crashed, path, units)
    for number, _ in enumerate(kind(disk, rng, count)):
        if number % WRITABLE_EVERY:
            recover(crashed, path, disk, read_only=True)
        else:
            shutil.copytree(path, copy)
            recover(crashed, copy, disk, read_only=False)
            shutil.rmtree(copy)
    disk.close()
    shutil.rmtree(path)


FAULT = Fault(
    "page-order",
    "power cuts after which any pages (every subset of up to 12), or any sectors, whole or torn, are the old ones",
    250_000,
    256,
    run,
)
