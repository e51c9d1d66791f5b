"""Goal: whatever damage is in whatever files, the store opens and serves what is whole. Method: the damages that once
kept stores from opening, and random ones; after each the store is written to, rebuilt, verified and opened again."""

from __future__ import annotations

import shutil
import struct

import pytest

from cystore._native.derived import queue_ext
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


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(1)
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


EXT_BYTES = 512
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext_bytes": EXT_BYTES}


def with_longer_units(root, length):
    """Gives the 30 entries of the queue units with bitmaps, as RocketMQ writes them."""
    files, position = {}, 0
    queue = root / "consumequeue/T/0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    for number in range(30):
        if position % EXT_BYTES + length + 4 > EXT_BYTES:
            position += EXT_BYTES - position % EXT_BYTES
        file = files.setdefault(position - position % EXT_BYTES, bytearray(EXT_BYTES))
        assert queue_ext.put(file, position % EXT_BYTES, 7, 8, b"\x01" * (length - 20)) == ("ok", length)
        struct.pack_into(">q", data, 20 * number + 12, queue_ext.address_of(position))
        position += length
    queue.write_bytes(data)
    for base, file in files.items():
        (root / "consumequeue_ext/T/0" / f"{base:020d}").write_bytes(file)


@pytest.mark.parametrize("kept", [1, 9, 25])
def test_units_behind_the_cut_of_a_queue_are_gone(tmp_path, kept):
    """RocketMQ reads the units of a queue one behind the other: nothing of a cut entry's unit may follow the new
    ones."""
    root, length = tmp_path / "s", 33
    puts = filled(root, **EXT)
    with_longer_units(root, length)
    for file in (root / "commitlog").glob("0*"):
        begin = max(puts[kept].physical_offset - int(file.name), 0)
        overwrite(file, begin, bytes(max(LOG_BYTES - begin, 0)))
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "config")
    (root / "abort").touch()
    with open_small(root, **EXT) as store:
        assert store.next_queue_offset("T", 0) == kept
        names = sorted(path.name for path in (root / "consumequeue_ext/T/0").iterdir())
        fit = (EXT_BYTES - 4) // length  # units of a file
        assert names == [f"{base:020d}" for base in range(0, max(-(-kept // fit), 1) * EXT_BYTES, EXT_BYTES)]
        last = (root / "consumequeue_ext/T/0" / names[-1]).read_bytes()
        assert not last[length * (kept - fit * (len(names) - 1)) :].strip(b"\0")
        assert store.put("T", b"new", tags="red").queue_offset == kept
        store.dispatch()
        assert [m.queue_offset for m in store.get("T", 0, 0, 99, tags="red").messages] == [*range(kept + 1)]
