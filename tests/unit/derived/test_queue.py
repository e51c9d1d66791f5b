"""Goal: consume queue files are made, filled, reserved and made durable as the format says. Method: one queue over
real files, looked at through the oracle; every step of a preparation can be cut off and done again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore._native.derived import queue as kernel
from cystore._native.derived import queue_ext
from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ConsumeQueue, ConsumeQueues
from cystore.derived.files.consume_queue_ext import ConsumeQueueExt
from cystore.derived.files.pace import Pace
from cystore.engine.files.segments import Mode
from cystore.errors import CorruptRecordError, OffsetError, StoreFormatError, StoreFullError
from cystore.system import files
from tests.oracle import queue as oracle
from tests.support import parts
from tests.support.property.strategies import INT64

FILE_BYTES = 20 * 5000
CONFIG = StoreConfig(
    mapped_file_size_consume_queue_bytes=FILE_BYTES, mapped_file_size_consume_queue_ext_bytes=256
)


def opened(
    root: Path, *, first: int = 0, config: StoreConfig = CONFIG, mode: Mode = Mode.WRITE
) -> ConsumeQueue:
    control = parts.control_block(config)
    control.add_queue("T", 3, next=first, dispatched=first, minimum=first)
    queue = ConsumeQueues(root, config, mode, control).find("T", 3)
    assert queue is not None
    return queue


def add(queue: ConsumeQueue, physical_offset: int, size: int, tags_code: int = 0) -> None:
    """Dispatch of one record."""
    number = queue.max_offset
    file = queue.prepare(20 * number)
    file.write(20 * number - file.base, oracle.encode_entry(oracle.Entry(physical_offset, size, tags_code)))
    queue._control.set_queue_dispatched(queue.slot, number + 1)


def on_disk(root: Path) -> dict[int, oracle.Entry]:
    return oracle.read_entries(oracle.read_queue_directories(root / "consumequeue")["T", 3])


def allocated_blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


# ----------------------------------------------------------------------------------------------- kernels


@given(INT64, st.integers(-(2**31), 2**31 - 1), INT64)
def test_an_entry_is_rocketmqs_bytes(physical_offset, size, tags_code):
    data = bytearray(60)
    kernel.put_entry(data, 20, physical_offset, size, tags_code)
    assert data == bytes(20) + oracle.encode_entry(oracle.Entry(physical_offset, size, tags_code)) + bytes(20)
    for position in (-1, 41, 60, 2**40):
        with pytest.raises(ValueError, match="no room"):
            kernel.put_entry(data, position, 0, 0, 0)


@given(st.lists(st.booleans(), max_size=30), st.data())
def test_holes_are_stepped_over_in_both_directions(messages, data):
    file = MappedFile.anonymous(0, 20 * 32)
    kernel.put_holes(file, 0, 32)
    for number, is_message in enumerate(messages):
        if is_message:
            file.write(20 * number, oracle.encode_entry(oracle.Entry(100 * number, 90, 1)))
    begin = data.draw(st.integers(0, 32))
    end = data.draw(st.integers(begin, 32))
    there = [number for number in range(begin, end) if number < len(messages) and messages[number]]
    forward = kernel.step_over_holes(file, 20 * begin, 20 * end)
    backward = kernel.step_over_holes(file, 20 * begin, 20 * end, backwards=True)
    assert (forward, backward) == ((20 * there[0], 20 * there[-1]) if there else (-1, -1))


def test_kernels_refuse_places_outside_the_file():
    file = MappedFile.anonymous(0, 200)
    for position in (-20, 190, 2**40):
        with pytest.raises(ValueError, match="no entry"):
            kernel.entry_at(file, position)
    for begin, end in ((-20, 20), (0, 220), (40, 20), (10, 40), (0, 30)):
        with pytest.raises(ValueError, match="no whole entries"):
            kernel.step_over_holes(file, begin, end)
    for position, count in ((0, 11), (-20, 1), (0, -1), (200, 1)):
        with pytest.raises(ValueError, match="cannot write"):
            kernel.put_holes(file, position, count)


# ------------------------------------------------------------------------------------------------- files


def test_space_is_reserved_in_steps_that_double(tmp_path):
    queue = opened(tmp_path)
    path = tmp_path / "consumequeue/T/3" / f"{0:020d}"
    steps = []
    for number in range(5000):
        add(queue, 100 * number, 100)
        reserved = queue._control.queue_allocated(queue.slot)
        if not steps or steps[-1] != reserved:
            steps.append(reserved)
            assert allocated_blocks(path) >= reserved > 20 * number
    assert steps == [4096, 8192, 16384, 32768, 65536, FILE_BYTES]
    assert path.stat().st_size == FILE_BYTES
    add(queue, 500_000, 100)
    assert queue._control.queue_allocated(queue.slot) == 2 * FILE_BYTES
    assert len(on_disk(tmp_path)) == 5001


@pytest.mark.parametrize("fast", [True, False])
def test_a_queue_that_filled_a_file_gets_long_steps(tmp_path, monkeypatch, fast):
    """A fast one gets more: each step waits for the interpreter."""
    monkeypatch.setattr(Pace, "is_fast", lambda self, step: fast)
    queue = opened(tmp_path, config=replace(CONFIG, mapped_file_size_consume_queue_bytes=20 * 300_000))
    assert queue.prepare(0).base == 0
    steps = [queue._control.queue_allocated(queue.slot)]
    while steps[-1] < 6_000_000:
        queue.allocate(steps[-1])
        steps.append(queue._control.queue_allocated(queue.slot))
    mib = 1024 * 1024
    long = [] if fast else range(2 * mib, 6 * mib, mib)
    assert steps == [*(4096 << n for n in range(9)), *long, 6_000_000]
    queue.prepare(6_000_000)
    assert queue._control.queue_allocated(queue.slot) == 6_000_000 + (6_000_000 if fast else mib)


def test_a_full_disk_gives_a_queue_what_one_entry_needs(tmp_path, monkeypatch):
    whole = files.allocate_mapped

    def short(path, file, begin, end, zeros_from):
        if end - begin > 4096:
            raise StoreFullError("no space left on the disk", path=path)
        whole(path, file, begin, end, zeros_from)

    queue = opened(tmp_path)
    monkeypatch.setattr(files, "allocate_mapped", short)
    for number in range(1000):
        add(queue, 100 * number, 100)
        assert queue._control.queue_allocated(queue.slot) == 4096 * (5 * (number + 1) // 1024 + 1)
    assert len(on_disk(tmp_path)) == 1000


@pytest.mark.disk
@pytest.mark.parametrize("fast", [True, False])
def test_the_pages_of_a_fast_queue_are_read_ahead(tmp_path, monkeypatch, fast):
    monkeypatch.setattr(Pace, "is_fast", lambda self, step: fast)
    queue = opened(tmp_path)
    for number in range(820):
        add(queue, 100 * number, 100)
    queue._control.set_queue_allocated(queue.slot, 0)
    file = queue.prepare(820 * 20)
    assert queue._control.queue_allocated(queue.slot) == 32768
    assert list(file.pages_in_memory()[:8]) == [1, 1, 1, 1, 1, fast, fast, fast]
    assert [entry.physical_offset for entry in on_disk(tmp_path).values()] == [*range(0, 82_000, 100)]


def test_a_file_that_another_process_made_is_used(tmp_path):
    first = opened(tmp_path)
    add(first, 0, 90)
    second = ConsumeQueue(tmp_path, "T", 3, first.slot, CONFIG, Mode.WRITE, first._control)
    add(second, 90, 90)
    add(first, 180, 90)
    assert [e.physical_offset for e in on_disk(tmp_path).values()] == [0, 90, 180]
    assert first.entry(1) == (90, 90, 0)


@pytest.mark.parametrize("left_by_a_kill", ["nothing", "file", "half of the pre-blank entries"])
def test_a_queue_that_begins_inside_a_file_is_filled_up_to_its_first_entry(tmp_path, left_by_a_kill):
    queue = opened(tmp_path, first=12_345)
    if left_by_a_kill != "nothing":
        file = queue.files.create(10_000 * 20, 4096)
        if left_by_a_kill != "file":
            queue.files.allocate(10_000 * 20, 0, 8192)
            kernel.put_holes(file, 0, 300)
        queue = ConsumeQueue(tmp_path, "T", 3, queue.slot, CONFIG, Mode.WRITE, queue._control)
    add(queue, 777, 90, 5)
    add(queue, 867, 90, 5)
    files = oracle.read_queue_directories(tmp_path / "consumequeue")["T", 3]
    entries = {12_345: oracle.Entry(777, 90, 5), 12_346: oracle.Entry(867, 90, 5)}
    assert files == oracle.queue_files(entries, FILE_BYTES)
    assert queue.entry(12_345) == (777, 90, 5)
    assert queue.entry(12_000) is None


def test_old_entries_below_a_queue_that_starts_again_stay(tmp_path):
    """All its messages expired: the queue continues in the same file, and what is there is not pre-blank."""
    queue = opened(tmp_path)
    for number in range(10):
        add(queue, 90 * number, 90)
    queue._control.set_queue_minimum(queue.slot, 10)
    add(queue, 5000, 90)
    assert [e.physical_offset for e in on_disk(tmp_path).values()] == [*range(0, 900, 90), 5000]


def test_a_gap_is_filled_over_several_files(tmp_path):
    queue = opened(tmp_path)
    add(queue, 0, 90)
    queue.fill_gap(11_000)
    add(queue, 90, 90)
    entries = on_disk(tmp_path)
    assert sorted(entries) == list(range(11_001))
    assert [n for n, e in entries.items() if not e.is_hole] == [0, 11_000]
    assert queue.next_message(1, queue.max_offset) == 11_000
    assert queue.next_message(1, 11_000) is None
    assert queue.previous_message(0, 11_000) == 0
    assert queue.previous_message(1, 11_000) is None
    assert queue.end_of_last_record() == 180


def test_a_gap_at_the_start_is_none(tmp_path):
    queue = opened(tmp_path)
    queue.fill_gap(700)
    assert (queue.min_offset, queue.max_offset, queue.has_files()) == (700, 700, False)


def test_entries(tmp_path):
    queue = opened(tmp_path, first=4)
    for number in range(3):
        add(queue, 90 * number, 90, number)
    assert list(queue.entries(0, 100)) == [(4, (0, 90, 0)), (5, (90, 90, 1)), (6, (180, 90, 2))]
    assert list(queue.entries(5, 6)) == [(5, (90, 90, 1))]
    for offset in (-1, 7, 2**70):
        with pytest.raises(OffsetError, match=str(offset)):
            queue.entry(offset)


@pytest.mark.parametrize("size", [60, FILE_BYTES - 1, 2 * FILE_BYTES])
def test_files_get_the_length_that_recovery_found(tmp_path, size):
    """A hand may shorten or lengthen a file while processes are attached."""
    folder = tmp_path / "consumequeue/T/3"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(size))
    queue = opened(tmp_path)
    for number in range(FILE_BYTES // 20 + 1):
        add(queue, 90 * number, 90)
    lengths = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert lengths == {f"{FILE_BYTES * n:020d}": FILE_BYTES for n in range(2)}


def test_only_the_queues_used_last_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("cystore.derived.files.consume_queue.MAX_OPEN", 3)
    control = parts.control_block(CONFIG)
    for number in range(6):
        control.add_queue("T", number)
    queues = ConsumeQueues(tmp_path, CONFIG, Mode.WRITE, control)
    first = queues.get(0)
    for number in range(1, 3):
        queues.get(number)
    assert queues.get(0) is first
    queues.get(3)
    assert queues.get(0) is first
    for number in range(1, 4):
        queues.get(number)
    assert queues.get(0) is not first
    assert queues.find("other", 0) is None


def test_no_descriptor_is_kept_for_a_queue(tmp_path):
    control = parts.control_block(CONFIG)
    queues = ConsumeQueues(tmp_path, CONFIG, Mode.WRITE, control)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        control.add_queue("T", number)
        add(queues.get(number), 0, 90)
    assert len(os.listdir("/proc/self/fd")) == before


# ------------------------------------------------------------------------------------------------- flush


def test_flush_syncs_what_has_entries_that_are_not_durable(tmp_path, monkeypatch):
    control = parts.control_block(replace(CONFIG, mapped_file_size_consume_queue_bytes=60))
    queues = ConsumeQueues(tmp_path, CONFIG, Mode.WRITE, control)
    synced = []
    for number in range(3):
        control.add_queue("T", number)
    for number in (0, 2):
        for at in range(7):
            add(queues.get(number), 90 * at, 90)

    class Watched:
        def __init__(self, file: MappedFile) -> None:
            self.file = file

        def sync(self) -> None:
            synced.append((Path(self.file.path).parent.name, self.file.base))
            self.file.sync()

    for number in (0, 2):
        files = queues.get(number).files
        monkeypatch.setattr(files, "get", lambda base, get=files.get: Watched(get(base)))
    queues.flush()
    assert synced == [(queue, base) for queue in ("0", "2") for base in (0, 60, 120)]
    assert [control.queue_flushed(slot) for slot in range(3)] == [7, 0, 7]
    synced.clear()
    queues.flush()
    assert synced == []
    control.set_queue_flushed(2, 3)
    queues.flush()
    assert synced == [("2", 60), ("2", 120)]


# -------------------------------------------------------------------------------------------------- ext


def test_units_of_an_extended_queue(tmp_path):
    units = ConsumeQueueExt(tmp_path, "T", 3, CONFIG, Mode.WRITE)
    assert units.next_position([]) == 0
    assert units.get(queue_ext.address_of(0)) is None
    file, allocated = units.prepare(0)
    assert (file.base, file.length, allocated) == (0, 256, 256)
    data = bytearray(256)
    assert queue_ext.put(data, 0, 77, 1234, b"bitmap") == ("ok", 26)
    file.write(0, data)
    address = queue_ext.address_of(0)
    assert units.get(address) == (26, 77, 1234, b"bitmap")
    assert units.next_position([(3, 5), (2, -(2**31)), (1, address), (0, 9)]) == 26
    assert units.next_position([(0, 5)]) == 0
    gone, impossible = queue_ext.address_of(256), queue_ext.address_of(1 << 60)
    assert units.next_position([(9, impossible), (1, gone), (0, address)]) == 512
    with pytest.raises(CorruptRecordError, match="not a valid extended unit: end") as caught:
        units.get(queue_ext.address_of(26))
    assert caught.value.offset == 26
    assert units.get(queue_ext.address_of(256)) is None
    units.flush(address)
    units.flush(5)


def test_the_next_unit_goes_behind_that_of_the_newest_entry(tmp_path):
    config = replace(CONFIG, enable_consume_queue_ext=True)
    queue = opened(tmp_path, config=config)
    file, position, _ = queue.prepare_ext(-1)
    assert position == 0
    data = bytearray(256)
    for at in (0, 20, 40):
        assert queue_ext.put(data, at, 7, 8)[0] == "ok"
    file.write(0, data)
    add(queue, 0, 90, queue_ext.address_of(0))
    add(queue, 90, 90, queue_ext.address_of(20))
    add(queue, 180, 90, 12)
    queue.fill_gap(6)
    # The unit at 40 belongs to no entry: its dispatcher was killed. It is written over.
    assert queue.prepare_ext(-1)[1] == 40
    assert queue.prepare_ext(256)[0].base == 256
    queue.flush()
    plain = opened(tmp_path / "plain")
    with pytest.raises(StoreFormatError, match="extended"):
        plain.prepare_ext(0)


def test_names_are_made_durable_by_the_first_flush_that_counts_on_them(tmp_path, monkeypatch):
    queue = opened(tmp_path, first=4_000)  # 5,000 entries in a file
    synced = []
    monkeypatch.setattr(
        "cystore.system.files.sync_directory", lambda path: synced.append(path.relative_to(tmp_path))
    )
    add(queue, 0, 90)
    assert Path("consumequeue/T/3") not in synced
    synced.clear()
    names = [Path("consumequeue/T/3"), Path("consumequeue/T"), Path("consumequeue"), Path()]
    queue.flush()
    assert synced == names
    synced.clear()
    for number in range(1, 1_000):
        add(queue, 90 * number, 90)
    queue.flush()
    assert synced == []
    add(queue, 90_000, 90)  # the first entry of the next file
    queue.flush()
    assert synced == names
