"""Goal: index files follow each other as RocketMQ's do, and what is taken back leaves no trace. Method: files over a
real folder are filled with the kernel, cut at every place a log can be cut at, and compared with files that the
oracle built."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore import clock
from cystore._native.derived import index as kernel
from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig
from cystore.derived.files import index
from cystore.derived.files.index import ALLOCATE_BYTES, FIRST_STEP_BYTES, IndexFiles
from cystore.derived.files.index_layout import file_length
from cystore.derived.files.pace import Pace
from cystore.engine.files.segments import Mode
from cystore.errors import StoreFormatError, StoreFullError, StoreResourceError
from cystore.system import files as system_files
from tests.oracle import index as oracle
from tests.oracle.record import Record
from tests.support import parts
from tests.support.golden import stores

SLOTS, CAPACITY = 5, 8
CONFIG = StoreConfig(max_hash_slot_num=SLOTS, max_index_num=CAPACITY)
NOW = 1_700_000_000_000


def opened(root: Path, config: StoreConfig = CONFIG, mode: Mode = Mode.WRITE, control=None) -> IndexFiles:
    return IndexFiles(root, config, mode, control or parts.control_block(config))


def put(files: IndexFiles, key: str, physical_offset: int, store_timestamp_ms: int) -> None:
    """Dispatch of one key of topic T."""
    newest = files.newest() or files.add()
    data = bytearray(newest.file)
    hash_ = kernel.key_hash(b"T", key.encode())
    assert kernel.put(data, newest.slots, newest.capacity, hash_, physical_offset, store_timestamp_ms)
    newest.file.write(0, data)


def records(keys: list[list[str]]) -> list[Record]:
    return [
        Record(
            topic="T",
            physical_offset=100 * n,
            store_timestamp_ms=NOW + 1700 * n,
            raw_properties=b"KEYS\x01" + " ".join(names).encode(),
        )
        for n, names in enumerate(keys)
    ]


def fill(files: IndexFiles, written: list[Record]) -> None:
    for record in written:
        for key in record.index_keys:
            put(files, key, record.physical_offset, record.store_timestamp_ms)


def built(written: list[Record]) -> list[bytes]:
    made: list[oracle.IndexFile] = []
    oracle.build(made, written, SLOTS, CAPACITY, repeat_last=False)
    return [bytes(file.data) for file in made]


def on_disk(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


some_keys = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=4), max_size=16)


@given(some_keys)
def test_files_are_rocketmqs_bytes(keys):
    with tempfile.TemporaryDirectory() as folder:
        files = opened(Path(folder))
        fill(files, records(keys))
        assert (on_disk(Path(folder)) if built(records(keys)) else []) == built(records(keys))


@given(some_keys, st.data())
def test_what_is_taken_back_and_entered_again_leaves_no_trace(keys, data):
    written = records(keys)
    cut = data.draw(st.integers(-1, len(written))) * 100
    with tempfile.TemporaryDirectory() as folder:
        files = opened(Path(folder))
        fill(files, written)
        files.trim(cut)
        left = [r for r in written if r.physical_offset < cut]
        held = [file for file in files.files() if file.header.next_entry > 1]
        assert sum(file.header.next_entry - 1 for file in held) == sum(len(r.index_keys) for r in left)
        if held:
            last = next(r for r in reversed(left) if r.index_keys)
            end = held[-1].header
            assert end.end_physical_offset == last.physical_offset
            assert 0 <= end.end_timestamp_ms - last.store_timestamp_ms + 999 <= 1998
        files.trim(cut)
        fill(files, [r for r in written if r.physical_offset >= cut])
        assert (on_disk(Path(folder)) if built(written) else []) == built(written)


def test_a_new_file_begins_where_the_one_before_it_ends_also_when_its_maker_was_killed(tmp_path):
    files = opened(tmp_path)
    fill(files, records([["a"]] * 7))
    assert files.newest() is None
    before = files.files()[-1].header
    added = files.add()
    assert added.header[:4] == (before.end_timestamp_ms,) * 2 + (before.end_physical_offset,) * 2
    added.file.zero(0, 40)  # as a kill between making and filling it in leaves it
    again = opened(tmp_path)
    newest = again.newest()
    assert (
        newest is not None
        and newest.header[:4] == (before.end_timestamp_ms,) * 2 + (before.end_physical_offset,) * 2
    )


def test_others_see_a_new_file(tmp_path):
    files = opened(tmp_path)
    control = files._control
    other = opened(tmp_path, control=control)
    assert other.files() == []
    fill(files, records([["a"]] * 9))
    assert [file.header.next_entry for file in other.files()] == [8, 3]
    assert control.index_base == other.files()[-1].name
    listed = other.files()
    assert other.files() is listed  # no listing while nothing was made
    files.trim(0)
    assert [file.header.next_entry for file in other.files()] == [1]


def test_others_see_a_file_that_was_made_again_under_the_same_name(tmp_path, monkeypatch):
    """Seen: a dispatcher was killed in a record whose keys filled several files. The next one removed and remade them
    within the same millisecond. A third process wrote keys into its mapping of a removed file."""
    monkeypatch.setattr(clock, "now_ms", lambda *of: NOW)
    written = records([["a"]] * 5 + [list("abcdefghijklmnop")])
    files = opened(tmp_path)
    other = opened(tmp_path, control=files._control)
    fill(files, written)
    assert all(file.look() is not None for file in other.files())
    names = [file.name for file in other.files()]
    assert len(names) == 3
    files.trim(written[-1].physical_offset)
    fill(files, [replace(written[-1], physical_offset=written[-1].physical_offset + 7)])
    assert [file.name for file in other.files()] == names
    assert [bytes(file.file) for file in other.files()] == on_disk(tmp_path)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_trim_that_stopped_behind_the_removal_of_a_file_is_done_again(tmp_path, mapped):
    """Seen: a signal's exception ended a trim between the removal of a file and its publication. Each later dispatch
    failed, because the file was not there."""
    written = records([["a"]] * 5 + [list("abcdefghijklmnop")])
    files = opened(tmp_path)
    fill(files, written)
    newest = files.files()[-1]
    (tmp_path / "index" / f"{newest.name:017d}").unlink()
    if not mapped:
        files._mappings.drop(files._number, newest.name)
    seen = files._control.index_seq
    files.trim(written[-1].physical_offset)
    assert files._control.index_seq != seen  # a dispatcher may have this file for new keys
    fill(files, written[-1:])
    assert on_disk(tmp_path) == built(written)


@pytest.mark.parametrize("places", [[9], [8, 9], [1], [1, 2, 9]])
def test_a_trim_finds_entries_before_files_without_any(tmp_path, places):
    """Seen: dispatch ended, by a signal's exception or a kill, between the making of a file and its begin. The entries
    of the unfinished record in the file before it stayed, and were entered once more."""
    written = records([["a"]] * 5 + [list("abcdefghi")])
    files = opened(tmp_path)
    fill(files, written)
    first, newest = (tmp_path / "index" / f"{file.name:017d}" for file in files.files())
    begin = int(first.name)
    newest.rename(first.with_name(f"{begin + 5:017d}"))
    for place in places:
        first.with_name(f"{begin + place:017d}").write_bytes(bytes(file_length(SLOTS, CAPACITY)))
    again = opened(tmp_path)
    again.trim(written[-1].physical_offset)
    fill(again, written[-1:])
    assert [data for data in on_disk(tmp_path) if any(data)] == built(written)


def test_a_file_whose_maker_was_interrupted_is_found(tmp_path, monkeypatch):
    written = records([["a"]] * 10)
    files = opened(tmp_path)
    fill(files, written[:7])
    make = index.files.create_sized

    def interrupted(*given):
        make(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(index.files, "create_sized", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fill(files, written[7:])
    files.trim(written[7].physical_offset)
    fill(files, written[7:])
    assert on_disk(tmp_path) == built(written)


def test_a_trim_says_that_files_change_before_it_removes_one(tmp_path, monkeypatch):
    """Otherwise an exception behind the removal leaves a dispatcher with the removed file."""
    written = records([["a"]] * 5 + [list("abcdefghijklmnop")])
    files = opened(tmp_path)
    fill(files, written)
    seen = files._control.index_seq

    def interrupted(path):
        path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("cystore.system.files.remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.trim(written[-1].physical_offset)
    assert files._control.index_seq != seen
    files.trim(written[-1].physical_offset)
    fill(files, written[-1:])
    assert on_disk(tmp_path) == built(written)


# ------------------------------------------------------------------------------------------------- names


def test_names_are_the_local_time_and_never_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "now_ms", lambda *of: NOW)
    files = opened(tmp_path)
    fill(files, records([["a"]] * 30))
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert names[0] == clock.index_file_name(NOW)
    assert all(re.fullmatch(r"\d{17}", name) for name in names) and len(names) == 5
    assert [int(name) for name in names] == [int(names[0]) + n for n in range(5)]


@pytest.mark.parametrize(
    ("newest", "following"),
    [
        ("20991231235959999", "21000101000000000"),
        ("20990228235959998", "20990228235959999"),
        ("20990228235959999", "20990301000000000"),
        ("99999999999999998", "99999999999999999"),
    ],
)
def test_a_file_from_the_future_is_followed_by_the_next_millisecond(tmp_path, newest, following):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / newest).write_bytes(bytes(file_length(SLOTS, CAPACITY)))
    files = opened(tmp_path)
    assert files.add().name == int(following)


@pytest.mark.parametrize(
    "name", ["x", "2026112100153017", "202611210015301720", "2026112100153017x", "²0261121001530172"]
)
def test_a_strange_name_is_refused(tmp_path, name):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / name).write_bytes(bytes(file_length(SLOTS, CAPACITY)))
    with pytest.raises(StoreFormatError, match="not a valid") as caught:
        opened(tmp_path).files()
    assert str(caught.value.path).endswith(name)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "index" / "20261121001530172").mkdir(parents=True)
    with pytest.raises(StoreFormatError, match="not a valid"):
        opened(tmp_path).files()


# ------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("name", [name for name in stores.NAMES if name != "k_edge"])
def test_the_shape_of_a_file_follows_from_its_entries(tmp_path, name):
    """The settings are not needed to read (and go on in) index files that were made with others."""
    if not (stores.folder() / f"{name}.tar.gz").exists():
        pytest.skip("no golden stores: set CYSTORE_GOLDEN to their folder")
    golden = stores.unpack(name, tmp_path)
    config = golden.spec["config"]
    files = opened(golden.store, StoreConfig())
    for file in files.files():
        assert (file.slots, file.capacity) == (config["maxHashSlotNum"], config["maxIndexNum"])
    assert files.files()


@given(some_keys, st.integers(1, 12), st.integers(9, 30))
def test_any_shape_is_found(keys, slots, capacity):
    written = [replace(r, physical_offset=r.physical_offset + 1) for r in records(keys)]
    files: list[oracle.IndexFile] = []
    oracle.build(files, written, slots, capacity, repeat_last=False)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "index").mkdir()
        for n, file in enumerate(files):
            (Path(folder) / "index" / f"{20261121001530172 + n}").write_bytes(file.data)
        found = opened(Path(folder), StoreConfig()).files()
        assert [(file.slots, file.capacity) for file in found] == [(slots, capacity)] * len(files)


def test_a_file_of_unknown_shape_without_entries_is_left_alone(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20261121001530172").write_bytes(bytes(file_length(3, 9)))
    files = opened(tmp_path)
    assert files.files() == [] and files.newest() is None


@pytest.mark.parametrize("length", [0, 39, 64, 1000])
def test_a_file_of_another_length_is_refused(tmp_path, length):
    (tmp_path / "index").mkdir()
    data = bytearray(length)
    if length > 40:
        data[24:40] = b"\x00" * 7 + b"\x09" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x05"
    (tmp_path / "index" / "20261121001530172").write_bytes(data)
    with pytest.raises(StoreFormatError) as caught:
        opened(tmp_path).files()
    assert "20261121001530172" in str(caught.value.path)


def test_kernels_refuse_a_file_of_another_length():
    file = MappedFile.anonymous(0, 100)
    with pytest.raises(ValueError, match="no index file"):
        kernel.trim_file(file, SLOTS, CAPACITY, 0)


# ------------------------------------------------------------------------------------------ space and sync


def test_space_is_reserved_in_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(Pace, "is_fast", lambda self, step: False)
    config = StoreConfig(max_hash_slot_num=1000, max_index_num=600_000)
    files = opened(tmp_path, config)
    added = files.add()
    path = Path(added.file.path)
    first = 40 + 4000 + FIRST_STEP_BYTES
    assert files._control.index_allocated == first
    assert path.stat().st_size == file_length(1000, 600_000) == added.file.length
    assert first <= path.stat().st_blocks * 512 < first + 8192
    files.allocate(added, first + 20)
    assert files._control.index_allocated == first + 20 + FIRST_STEP_BYTES + 20
    files.allocate(added, 6_000_000)
    assert files._control.index_allocated == 6_000_000 + ALLOCATE_BYTES
    files.allocate(added, added.file.length)
    assert files._control.index_allocated == added.file.length <= path.stat().st_blocks * 512


def test_a_file_that_was_there_is_reserved_from_its_start(tmp_path):
    """RocketMQ's files are sparse: slots that were never used have no space either."""
    fill(opened(tmp_path), records([["a"]] * 3))
    again = opened(tmp_path)
    newest = again.newest()
    assert newest is not None and again._control.index_allocated == 0
    again.allocate(newest, 100)
    assert again._control.index_allocated == newest.file.length


@pytest.mark.parametrize(("code", "kept"), [(errno.EMFILE, True), (errno.ENOMEM, False)])
def test_mappings_end_for_memory_but_not_for_descriptors(tmp_path, monkeypatch, code, kept):
    fill(opened(tmp_path), records([["a"]] * 20))
    again = opened(tmp_path)
    first, second, _ = again.files()
    held = again.look(first)

    def refuse(*given, **named):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr("cystore.system.files.map_file", refuse)
        with pytest.raises(StoreResourceError):
            again.look(second)
    assert (again.look(first) is held) == kept


def test_flush_syncs_the_files_with_entries_that_are_not_durable(tmp_path, monkeypatch):
    files = opened(tmp_path)
    fill(files, records([["a"]] * 20))
    synced = []

    class Watched:
        def __init__(self, file: MappedFile, number: int) -> None:
            self.file, self.number = file, number

        def sync(self) -> None:
            synced.append(self.number)
            self.file.sync()

    look, names = files.look, [file.name for file in files.files()]
    monkeypatch.setattr(files, "look", lambda file: Watched(look(file), names.index(file.name)))
    files.flush()
    assert synced == [2, 1, 0]
    synced.clear()
    files._control.index_flushed = 1000
    files.flush()
    assert synced == [2, 1]


def test_private_files_stay_in_memory(tmp_path):
    fill(opened(tmp_path), records([["a"]] * 9))
    before = on_disk(tmp_path)
    private = opened(tmp_path, mode=Mode.PRIVATE)
    private.trim(600)
    assert len(private.files()) == 1
    fill(private, records([["a"]] * 20)[6:])
    assert [bytes(file.file) for file in private.files()] == built(records([["a"]] * 20))
    private.flush()
    assert on_disk(tmp_path) == before
    assert os.listdir(tmp_path) == ["index"] or sorted(os.listdir(tmp_path)) == ["index", "tmp"]


@pytest.mark.parametrize("fast", [True, False])
def test_the_pages_of_a_fast_index_are_written_ahead(tmp_path, monkeypatch, fast):
    monkeypatch.setattr(Pace, "is_fast", lambda self, step: fast)
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(system_files, "write_zeros_ahead", lambda fd, *place: written.append(place))
    files = opened(tmp_path, StoreConfig(max_hash_slot_num=1000, max_index_num=600_000))
    needed = 40 + 4000 + ALLOCATE_BYTES + 20
    files.allocate(files.add(), needed)
    end = min(needed + 2 * ALLOCATE_BYTES, file_length(1000, 600_000))
    assert written == ([(needed, end)] if fast else [])
    assert files._control.index_allocated == (end if fast else needed + ALLOCATE_BYTES)


def test_a_full_disk_gives_the_index_what_one_entry_needs(tmp_path, monkeypatch):
    whole = system_files.allocate

    def short(fd, begin, end, path=""):
        if end - begin > 8192:
            raise StoreFullError("no space left on the disk", path=path)
        whole(fd, begin, end, path)

    files = opened(tmp_path, StoreConfig(max_hash_slot_num=1000, max_index_num=600_000))
    added = files.add()
    monkeypatch.setattr(system_files, "allocate", short)
    before = files._control.index_allocated
    files.allocate(added, before + 20)
    assert before + 20 <= files._control.index_allocated <= before + 8192


def test_a_private_index_writes_nothing_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(Pace, "is_fast", lambda self, step: True)
    config = StoreConfig(max_hash_slot_num=1000, max_index_num=600_000)
    last = file_length(1000, 600_000) - 20
    opened(tmp_path, config).add().file.write(last, b"on disk")
    before = on_disk(tmp_path)
    private = opened(tmp_path, config, Mode.PRIVATE)
    private.allocate(private.files()[0], last - 100)
    assert on_disk(tmp_path) == before


@pytest.mark.parametrize("backlog_bytes", [0, 4 * 50_000])
def test_the_slots_for_a_long_backlog_come_into_memory_at_once(tmp_path, monkeypatch, backlog_bytes):
    faulted: list[tuple[int, int]] = []
    monkeypatch.setattr(index, "fault_in", lambda file, begin, end: faulted.append((begin, end)))
    files = opened(tmp_path, StoreConfig(max_hash_slot_num=50_000, max_index_num=1000))
    files.add(backlog_bytes)
    assert faulted == ([(0, 40 + 4 * 50_000)] if backlog_bytes else [])


def test_a_file_grows_fast_if_a_long_step_soon_follows_another(monkeypatch):
    now = iter([100.0, 100.5, 101.0, 103.0, 103.1])
    monkeypatch.setattr("cystore.derived.files.pace.monotonic_s", lambda: next(now))
    pace = Pace()
    steps = [1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20]
    assert [pace.is_fast(step) for step in steps] == [False, True, False, False, True]
