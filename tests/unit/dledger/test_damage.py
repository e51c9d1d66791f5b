"""Goal: nothing in a DLedger's files is trusted: what is wrong is found, named, and never taken for a record. Method:
the golden stores with single faults; random faults, which raise nothing but typed errors."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore.config import StoreConfig
from cystore.dledger.entries import HEAD_BYTES, Entry, InvalidEntry, parsed, size_of
from cystore.dledger.place import find
from cystore.dledger.source import Source
from cystore.dledger.verify import verify
from cystore.errors import StoreError, StoreFormatError, StorePermissionError
from cystore.operate.ledger_import import import_ledger
from tests.oracle import ledger
from tests.support.golden.ledger_stores import SMALL, WITH_BODY, entry, killed, overwrite, switched, unpack

__all__ = ["killed", "switched"]
INDEX_ENTRY_BYTES = ledger.INDEX_ENTRY.size
# Each field of a head: where it is, and a value that is wrong for entry 40.
FIELDS = {
    "magic": (0, struct.pack(">i", 2)),
    "size": (4, struct.pack(">i", 1 << 30)),
    "index": (8, struct.pack(">q", 39)),
    "term": (16, struct.pack(">q", -1)),
    "pos": (24, struct.pack(">q", 0)),
    "channel": (32, struct.pack(">i", 1)),
    "chain CRC": (36, struct.pack(">i", 1)),
    "body CRC": (40, struct.pack(">i", 1)),
    "body size": (44, struct.pack(">i", 10)),
}


def found_in(store: Path) -> list:
    source = Source(find(store), 1 << 30)
    try:
        return list(verify(source))
    finally:
        source.close()


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_is_one_damaged_entry(switched, field):
    at, wrong = FIELDS[field]
    bad, following = entry(switched, 40), entry(switched, 41)
    path = overwrite(switched, bad.pos + at, wrong)
    (damage,) = found_in(switched.store)
    assert (damage.kind, damage.path, damage.begin, damage.end) == ("entry", path, bad.pos, following.pos)
    assert field in damage.reason


@pytest.mark.parametrize("at", [0, 28, 100])
def test_a_wrong_byte_of_a_record_is_one_damaged_entry(switched, at):
    bad = entry(switched, WITH_BODY)
    overwrite(switched, bad.physical_offset + at, bytes([bad.body[at] ^ 0x40]))
    (damage,) = found_in(switched.store)
    assert (damage.kind, damage.begin, damage.end) == ("entry", bad.pos, bad.pos + bad.size)


def test_a_wrong_byte_of_the_old_log(switched):
    with open(switched.store / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    (damage,) = found_in(switched.store)
    assert (damage.kind, damage.begin) == ("record", 0)


def test_a_wrong_index_entry(switched):
    path = overwrite(switched, 7 * INDEX_ENTRY_BYTES, b"\x07" * 2 * INDEX_ENTRY_BYTES, "index")
    (damage,) = found_in(switched.store)
    assert (damage.kind, damage.path) == ("entry_index", path)
    assert (damage.begin, damage.end) == (7 * INDEX_ENTRY_BYTES, 9 * INDEX_ENTRY_BYTES)


def test_index_entries_of_uncommitted_entries_may_be_missing(killed):
    last = ledger.committed(ledger.ledger_of(killed.store))[-1].index
    overwrite(killed, (last + 1) * INDEX_ENTRY_BYTES, bytes(5 * INDEX_ENTRY_BYTES), "index")
    assert found_in(killed.store) == []
    overwrite(killed, last * INDEX_ENTRY_BYTES, bytes(INDEX_ENTRY_BYTES), "index")
    assert [damage.kind for damage in found_in(killed.store)] == ["entry_index"]


def test_a_missing_data_file_is_damage(switched):
    files = sorted((ledger.ledger_of(switched.store) / "data").iterdir())
    files[1].unlink()
    entries = [damage for damage in found_in(switched.store) if damage.kind == "entry"]
    assert [(damage.begin, damage.end) for damage in entries] == [(int(files[1].name), int(files[2].name))]
    files[2].unlink()
    assert "committed" in next(one for one in found_in(switched.store) if one.kind == "entry").reason


def test_a_term_that_falls_is_damage(killed):
    overwrite(killed, entry(killed, 10).pos + 16, struct.pack(">q", 5))
    for index in range(11, 71):
        overwrite(killed, entry(killed, index).pos + 16, struct.pack(">q", 4))
    reasons = [damage.reason for damage in found_in(killed.store) if damage.kind == "entry"]
    assert reasons[0] == "term is 4 behind 5"


def test_a_term_that_the_member_does_not_know(killed):
    overwrite(killed, entry(killed, 70).pos + 16, struct.pack(">q", 5))
    overwrite(killed, 70 * INDEX_ENTRY_BYTES + 24, struct.pack(">q", 5), "index")
    assert [damage.path.name for damage in found_in(killed.store)] == ["currterm"]


def test_a_torn_end_is_no_damage_behind_the_committed_index(killed):
    """DLedger cuts it when it starts. Old entries behind it do not belong to the log again."""
    torn = entry(killed, 70)
    overwrite(killed, torn.pos + HEAD_BYTES + 30, b"\xff\xff")
    source = Source(find(killed.store), 1 << 30)
    found = list(source.records(uncommitted=True))
    source.close()
    assert [one.index for one in found] == list(range(70))
    assert (source.walk.end, source.walk.last) == (torn.pos, 69)
    assert "physical offset" in source.walk.tail
    assert found_in(killed.store) == []


def test_a_leftover_of_an_earlier_leader_does_not_follow(killed):
    """A new leader's log may end before entries of an old one."""
    for index in (60, 61):
        overwrite(killed, entry(killed, index).pos + 16, struct.pack(">q", 3))
    overwrite(killed, entry(killed, 62).pos + HEAD_BYTES + 30, b"\xff\xff")
    source = Source(find(killed.store), 1 << 30)
    assert [one.index for one in source.records(uncommitted=True)] == list(range(62))
    source.close()


def test_the_copy_of_the_checkpoint_counts_when_it_is_alone(switched):
    (ledger.ledger_of(switched.store) / "checkpoint").unlink()
    (ledger.ledger_of(switched.store) / "checkpoint.bak").write_text("endIndex=9\ncommittedIndex=7\n")
    source = Source(find(switched.store), 1 << 30)
    assert source.committed == 7
    source.close()


@pytest.mark.parametrize(
    "text", ["", "committedIndex=\n", "committedIndex=-1\n", "committedIndex=x", "\xff\x00", "="]
)
def test_a_checkpoint_that_says_nothing(switched, text):
    folder = ledger.ledger_of(switched.store)
    (folder / "checkpoint.bak").unlink()
    (folder / "checkpoint").write_text(text, encoding="latin-1")
    assert Source(find(switched.store), 1 << 30).committed == -1


def test_a_strange_name_among_the_data_files(switched):
    (ledger.ledger_of(switched.store) / "data" / "notes").write_text("")
    with pytest.raises(StoreFormatError, match="notes"):
        found_in(switched.store)


def test_a_link_among_the_data_files(switched):
    folder = ledger.ledger_of(switched.store) / "data"
    file = sorted(folder.iterdir())[0]
    shutil.move(file, folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(StorePermissionError, match="link"):
        found_in(switched.store)


def test_two_ledgers_in_one_directory(switched):
    shutil.copytree(ledger.ledger_of(switched.store) / "data", switched.store / "dledger-n1" / "data")
    with pytest.raises(StoreFormatError, match="name the folder"):
        find(switched.store)
    assert find(switched.store / "dledger-n1").folder.name == "dledger-n1"


def test_no_open_takes_the_directory_for_a_store(switched):
    before = sorted((path, path.stat().st_size) for path in switched.store.rglob("*"))
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match="cystore import"):
            cystore.open(switched.store, read_only=read_only)
    assert sorted((path, path.stat().st_size) for path in switched.store.rglob("*")) == before


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return unpack("killed", tmp_path_factory.mktemp("pristine"))


@given(st.data())
def test_an_entry_is_valid_or_refused(pristine, data):
    """Cut off or changed anywhere, with any room behind it."""
    index = data.draw(st.integers(0, 70))
    whole = entry(pristine, index)
    head = ledger.HEAD.pack(1, whole.size, index, 0, whole.pos, 0, 0, 0, len(whole.body))
    raw = bytearray(head + whole.body)
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    room = data.draw(st.sampled_from([len(cut), len(raw) + 8, 16384]))
    try:
        size = size_of(cut[:HEAD_BYTES], whole.pos, room)
        found = parsed(cut[:size], whole.pos)
    except InvalidEntry:
        pass
    else:
        assert isinstance(found, Entry)
        assert found.size == len(cut)


def spoiled(pristine, path: Path, data) -> Path:
    """A copy with some faults in data files, checkpoint and term."""
    shutil.copytree(
        pristine.store, path / "store", ignore=lambda folder, names: ["index"] if "index" in names else []
    )
    files = sorted(one for one in (path / "store" / "dledger-n0").rglob("*") if one.is_file())
    for _ in range(data.draw(st.integers(1, 3))):
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content)))
        match data.draw(st.integers(0, 2)):
            case 0:
                del content[at:]
            case 1:
                content[at : at + 4] = data.draw(st.binary(min_size=1, max_size=40))
            case 2:
                content[at : at + 8] = bytes(8)
        file.write_bytes(content)
    return path / "store"


@pytest.mark.parametrize(("size", "room"), [((4 << 20) + 1, 1 << 30), (993, 1000), (48, 1000), (-1, 1000)])
def test_a_size_is_bounded_before_it_is_used(size, room):
    head = ledger.HEAD.pack(1, size, 0, 0, 0, 0, 0, 0, size - HEAD_BYTES)
    with pytest.raises(InvalidEntry, match=f"size is {size}"):
        size_of(head, 0, room)


@hypothesis.settings(max_examples=15)
@given(st.data())
def test_random_faults_raise_typed_errors(pristine, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("faults")
    with contextlib.suppress(StoreError):
        found_in(spoiled(pristine, path, data))
    shutil.rmtree(path)


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@given(st.data())
def test_an_import_of_random_faults_is_whole_or_refused(pristine, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("faults")
    store = spoiled(pristine, path, data)
    config = StoreConfig.from_mapping(SMALL)
    try:
        done = import_ledger(store, path / "out", config, uncommitted=True, skip_damaged=True)
    except StoreError:
        assert not list(path.glob("out*"))
    else:
        with cystore.open(path / "out", read_only=True) as made:
            assert len(list(made.scan())) == done.records
    shutil.rmtree(path)


# The byte of a record, the bit, and whether the entry alone shows that it is wrong.
OUTSIDE_OF_THE_BODY = {
    "sign of the queue id": (12, 0x80, True),
    "high bit of the queue id": (12, 0x40, False),
    "sign of the queue offset": (20, 0x80, True),
    "high bit of the queue offset": (20, 0x40, False),
}


@pytest.mark.parametrize("what", OUTSIDE_OF_THE_BODY)
def test_a_flipped_bit_outside_of_the_body_is_named_by_an_import(switched, tmp_path, what):
    """The record's checksum is that of the body alone. Seen: the error named the copy, which was gone by then."""
    at, bit, shown = OUTSIDE_OF_THE_BODY[what]
    bad = entry(switched, 40)
    path = overwrite(switched, bad.physical_offset + at, bytes([bad.body[at] ^ bit]))
    found = [(one.path, one.begin, one.end) for one in found_in(switched.store)]
    assert found == ([(path, bad.pos, bad.pos + bad.size)] if shown else [])
    target = tmp_path / "target"
    with pytest.raises(cystore.CorruptRecordError, match="skip-damaged" if shown else "contradicts") as error:
        import_ledger(switched.store, target, StoreConfig(**SMALL))
    assert (error.value.path, error.value.offset) == (path, bad.pos if shown else bad.physical_offset)
    assert list(tmp_path.glob("target*")) == []
