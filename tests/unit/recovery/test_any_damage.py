"""Goal: whatever damage is in whatever files, the store opens and serves what is whole. Method: the damages that once
kept stores from opening, and random ones; after each the store is written to, rebuilt, verified and opened again."""

from __future__ import annotations

import shutil

import pytest

from cystore.cli.program import main
from tests.fuzz import damage
from tests.support.small_stores import LOG_BYTES, open_small

pytestmark = pytest.mark.unsanitized  # about recovery of whole stores; fuzz targets feed the kernels


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(root, put):
    base = put.physical_offset - put.physical_offset % LOG_BYTES
    overwrite(root / "commitlog" / f"{base:020d}", put.physical_offset % LOG_BYTES + 95, b"\xff" * 4)


def filled(root, count=30, **settings):
    with open_small(root, **settings) as store:
        return [store.put("T", b"%d" % n * 20, keys=("k",), tags="red", flush="sync") for n in range(count)]


def check(root, numbers, **settings):
    """Opens, serves, takes a put, is rebuilt, verified and opened again."""
    for turn in range(2):
        with open_small(root, **settings) as store:
            store.dispatch()
            found = damage.served(store, "T", 0)
            assert {n: found.get(n) for n in numbers} == {n: b"%d" % n * 20 for n in numbers}
            assert store.put("T", b"new", flush="sync").queue_offset == 30 + 2 * turn
            store.dispatch()
            assert damage.served(store, "T", 0)[30 + 2 * turn] == b"new"
        with open_small(root, **settings) as store:
            assert store.put("T", b"again", flush="sync").queue_offset == 31 + 2 * turn
            store.clean()
        assert main(["rebuild", str(root)]) in (0, 1)
        assert main(["verify", str(root)]) in (0, 1)


@pytest.mark.parametrize("gap", [0, 1, 5])
def test_hole_and_loss_behind_it(tmp_path, gap):
    """Seen: a store with a known hole that then lost the records behind it could not be opened for writing any more."""
    root = tmp_path / "s"
    puts = filled(root)
    flip(root, puts[20])
    with open_small(root) as store:
        assert len(store.recovery.new_holes) == 1
    for put in puts[21 + gap :]:
        flip(root, put)
    check(root, [*range(20), *range(21, 21 + gap)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", range(12, 20))
@pytest.mark.parametrize("number", [0, 10, 29])
def test_flipped_bit_in_the_tags_code_of_a_hole_entry(tmp_path, number, at):
    """Seen: recovery looked for a message before the hole entry and ran past the beginning of the queue."""
    root = tmp_path / "s"
    puts = filled(root)
    flip(root, puts[number])
    with open_small(root) as store:
        store.dispatch()
    overwrite(root / "consumequeue/T/0" / f"{0:020d}", 20 * number + at, b"\x10")
    check(root, [n for n in range(30) if n != number])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("units", [1, 3, 30])
@pytest.mark.parametrize("crashed", [True, False])
def test_zeroed_last_units_of_an_extended_queue(tmp_path, units, crashed):
    """Seen: a power cut alone took the last unit; dispatch looked there for the place of the next one, and no process
    could open the store for writing any more."""
    root = tmp_path / "s"
    filled(root, enable_consume_queue_ext=True)
    file = root / "consumequeue_ext/T/0" / f"{0:020d}"
    used = len(file.read_bytes().rstrip(b"\0"))
    size = -(-used // 30)
    overwrite(file, (30 - units) * size, bytes(units * size))
    if crashed:
        (root / "abort").touch()
    check(root, range(30), enable_consume_queue_ext=True)


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("gone", ["checkpoint", "config"])
def test_damage_in_the_log_and_one_witness_of_its_durable_end(tmp_path, gone, crashed):
    """Seen: after a crash, without its checkpoint, the log was cut at the first damaged record; queueOffset.json
    tells how far the log was durable, too."""
    root = tmp_path / "s"
    puts = filled(root)
    flip(root, puts[5])
    if gone == "config":
        shutil.rmtree(root / "config")
    else:
        (root / "checkpoint").unlink()
        shutil.rmtree(root / "consumequeue")
    if crashed:
        (root / "abort").touch()
    check(root, [n for n in range(30) if n != 5])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lost", [3, 30])
@pytest.mark.parametrize("crashed", [True, False])
def test_a_loss_is_reported_once(tmp_path, crashed, lost):
    """Seen: until the next put, each open reported the lost tail again, and `cystore rebuild` ended with 1 each
    time."""
    root = tmp_path / "s"
    for put in filled(root)[30 - lost :]:
        flip(root, put)
    if crashed:
        (root / "abort").touch()
    with open_small(root) as store:
        assert store.recovery.lost is not None
    with open_small(root) as store:
        assert store.recovery.lost is None
    for _ in range(2):
        assert main(["rebuild", str(root)]) == 0
        assert main(["verify", str(root)]) == 0
    check(root, range(30 - lost))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [0, 5, 10, 15])
def test_random_damage(first):
    """Any file, one to five places; `python -m tests.fuzz.damage` runs more of it."""
    damage.run(first, 5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100_000, 102_000, 100))
def test_much_random_damage(first):
    damage.run(first, 100)
