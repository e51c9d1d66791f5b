"""Goal: what damage took from the log can be listed, looked at and put back, and nothing else can. Method: records
damaged on disk; the command, what the store gives afterwards, and what `verify` says."""

from __future__ import annotations

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.engine.manifest.manifest import read_damaged_ranges
from cystore.recovery.restore import listed, parts, restore
from tests.support.cli import stores
from tests.support.cli.command import settings

SETTINGS = settings(stores.SMALL)
CONFIG = StoreConfig(**stores.SMALL, exclusive=True)
LOG = "0" * 20


def log_bytes(path, begin, end):
    return (path / "commitlog" / LOG).read_bytes()[begin:end]


def holed(path, first=10, behind=13):
    """A store with 40 messages, of which recovery stepped over those from `first` on; gives their range, name and
    true bytes."""
    puts = stores.write(path, 40)
    begin, end = puts[first].physical_offset, puts[behind].physical_offset
    whole = log_bytes(path, begin, end)
    for put in puts[first:behind]:
        stores.damage(path, put.physical_offset + 100)
    (path / "abort").touch()
    with cystore.open(path, **stores.SMALL) as store:
        assert store.recovery.new_holes == ((begin, end),)
    return puts, (begin, end), f"commitlog-{begin:020d}-{end:020d}", whole


def numbers(path):
    """The content of the log, and the records that queues and index point to."""
    with cystore.open(path, **stores.SMALL) as store:
        in_log = sorted(int(message.properties["number"]) for message in store.scan())
        read = [
            int(message.properties["number"])
            for topic, queues in store.topics().items()
            for queue_id in queues
            for offset in range(queues[queue_id].min_offset, queues[queue_id].max_offset)
            for message in store.get(topic, queue_id, offset, 1).messages
        ]
        found = [n for n in range(40) if store.query(stores.TOPICS[n % 2], f"key-{n}")]
    assert sorted(set(read)) == in_log == found
    return in_log


def test_list_and_show(command, store_path):
    stores.write(store_path.with_name("empty"), 3)
    assert command.ok("quarantine", "list", store_path.with_name("empty")) == "0 in quarantine\n"
    _, (begin, end), name, _ = holed(store_path)
    (one,) = command.json_lines("quarantine", "list", store_path)
    assert (one["name"], one["begin"], one["end"], one["state"]) == (name, begin, end, "damaged")
    assert one["size_bytes"] == end - begin and "checksum" in one["reason"] and one["found_ms"] > 0
    text = command.ok("quarantine", "list", store_path)
    assert name in text and text.endswith("1 in quarantine\n")
    (part,) = command.json_lines("quarantine", "show", store_path, name)
    assert (part["kind"], part["begin"], part["end"]) == ("bytes", begin, end)
    assert bytes.fromhex(part["hex"]) == log_bytes(store_path, begin, begin + 64)
    text = command.ok("quarantine", "show", store_path, name)
    assert f"{begin}..{end} bytes" in text and text.endswith("0 whole records\n")


def test_a_repaired_copy_goes_back_and_everything_is_served_again(command, store_path):
    puts, (begin, end), name, whole = holed(store_path)
    assert numbers(store_path) == [*range(10), *range(13, 40)]
    repaired = store_path.with_name("repaired")
    repaired.write_bytes(whole)
    shown = command.json_lines("quarantine", "show", store_path, name, "--from", repaired)
    assert [(one["kind"], one["topic"], one["queue_offset"]) for one in shown] == [
        ("record", stores.TOPICS[n % 2], puts[n].queue_offset) for n in range(10, 13)
    ]
    (done,) = command.json_lines("quarantine", "restore", store_path, name, "--from", repaired, *SETTINGS)
    assert done == {"ranges": [[begin, end]], "records": 3, "left": [], "damaged_again": []}
    assert not read_damaged_ranges(store_path)
    assert numbers(store_path) == list(range(40))
    assert command.ok("verify", store_path, *SETTINGS) == "no damage\n"
    (one,) = listed(store_path)
    assert (one.name, one.state) == (name, "cut")
    done = command.run("quarantine", "restore", store_path, name, "--from", repaired, *SETTINGS)
    assert done.returncode == 2 and "the log is not damaged from" in done.stderr
    assert done.stderr.startswith("cystore quarantine restore: error: ")
    with cystore.open(store_path, **stores.SMALL) as store:
        put = store.put(stores.TOPICS[1], b"", queue_id=1)
        assert put.queue_offset == max(p.queue_offset for p in puts) + 1


def test_what_is_whole_goes_back_and_the_rest_stays_damaged(command, store_path):
    puts, (begin, _), name, whole = holed(store_path)
    middle = puts[11].physical_offset, puts[12].physical_offset
    repaired = bytearray(whole)
    repaired[middle[0] - begin + 100] ^= 1
    path = store_path.with_name("repaired")
    path.write_bytes(repaired)
    done = command.run("quarantine", "restore", store_path, name, "--from", path, *SETTINGS)
    assert done.returncode == 1 and "2 records are back" in done.stdout
    assert f"still damaged: {middle[0]}..{middle[1]}" in done.stdout
    assert read_damaged_ranges(store_path).ranges() == [middle]
    assert numbers(store_path) == [n for n in range(40) if n != 11]
    path.write_bytes(whole)
    assert "1 records are back" in command.ok(
        "quarantine", "restore", store_path, name, "--from", path, *SETTINGS
    )
    assert numbers(store_path) == list(range(40))


def test_a_copy_that_is_still_damaged_is_refused(command, store_path):
    _, (begin, end), name, _ = holed(store_path)
    before = stores.snapshot(store_path / "commitlog")
    done = command.run("quarantine", "restore", store_path, name, *SETTINGS)
    assert done.returncode == 2 and "the bytes are still damaged" in done.stderr
    with pytest.raises(cystore.CorruptRecordError, match="no valid record"):
        restore(store_path, name, CONFIG)
    assert stores.snapshot(store_path / "commitlog") == before
    assert read_damaged_ranges(store_path).ranges() == [(begin, end)]
    assert not (store_path / "abort").exists()


@pytest.mark.parametrize("wrong", ["shorter", "longer", "records of another place", "other records"])
def test_bytes_that_do_not_fit_are_refused(store_path, wrong):
    puts, (begin, _), name, whole = holed(store_path)
    path = store_path.with_name("repaired")
    other = log_bytes(store_path, puts[20].physical_offset, puts[20].physical_offset + len(whole))
    path.write_bytes(
        {
            "shorter": whole[:-1],
            "longer": whole + b"\0",
            "records of another place": other,
            "other records": b"\0" + whole[:-1],
        }[wrong]
    )
    error = cystore.StoreFormatError if wrong in ("shorter", "longer") else cystore.CorruptRecordError
    with pytest.raises(error):
        restore(store_path, name, CONFIG, path)
    assert read_damaged_ranges(store_path).ranges()[0][0] == begin
    assert numbers(store_path) == [*range(10), *range(13, 40)]


@pytest.mark.parametrize("name", ["holes.json", "../commitlog/" + LOG, f"commitlog-{5:020d}-{5:020d}", ""])
def test_a_name_that_is_none_is_refused(store_path, name):
    holed(store_path)
    with pytest.raises(cystore.StoreFormatError, match="is not the name of a copy"):
        restore(store_path, name, CONFIG)
    with pytest.raises(cystore.StoreFormatError, match="is not the name of a copy"):
        list(parts(store_path, name, CONFIG))


def test_records_where_the_log_is_whole_are_refused(store_path):
    puts, *_ = holed(store_path)
    begin, end = puts[20].physical_offset, puts[22].physical_offset
    path = store_path.with_name("repaired")
    path.write_bytes(log_bytes(store_path, begin, end))
    with pytest.raises(cystore.OffsetError, match="the log is not damaged from"):
        restore(store_path, f"commitlog-{begin:020d}-{end:020d}", CONFIG, path)


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_store_in_use_is_listed_and_not_changed(command, store_path, exclusive):
    _, _, name, whole = holed(store_path)
    path = store_path.with_name("repaired")
    path.write_bytes(whole)
    with cystore.open(store_path, exclusive=exclusive, **stores.SMALL):
        assert [one.name for one in listed(store_path)] == [name]
        done = command.run("quarantine", "restore", store_path, name, "--from", path, *SETTINGS)
        assert done.returncode == 2 and "the store is in use" in done.stderr
        assert len(read_damaged_ranges(store_path)) == 1


def test_a_restore_that_ends_before_the_list_is_written_can_be_repeated(store_path, monkeypatch):
    """A kill between any two steps: the range is still damaged, or the store is marked so that its next load mends
    the rest."""
    _, _, name, whole = holed(store_path)
    path = store_path.with_name("repaired")
    path.write_bytes(whole)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    for step in ("mark_undispatched", "record_damaged_ranges"):
        with monkeypatch.context() as patch:
            patch.setattr(f"cystore.recovery.restore.{step}", killed)
            with pytest.raises(Killed):
                restore(store_path, name, CONFIG, path)
        assert numbers(store_path) == [*range(10), *range(13, 40)]
    assert restore(store_path, name, CONFIG, path).records == 3
    assert numbers(store_path) == list(range(40))


def test_a_missing_file_of_the_log_is_made_again_from_a_backup(store_path):
    """The range of a file that somebody removed has no copy; a backup of the file has its records."""
    puts = stores.write(store_path, 40)
    size = stores.SMALL["mapped_file_size_commit_log_bytes"]
    with cystore.open(store_path, **stores.SMALL) as store:
        while store.wrote_position < 2 * size:
            store.put("alpha", b"x" * 50_000)
        kept = [(m.topic, m.queue_id, m.queue_offset) for m in store.scan()]
    backup = store_path.with_name("backup")
    (store_path / "commitlog" / f"{size:020d}").rename(backup)
    (store_path / "abort").touch()
    with cystore.open(store_path, **stores.SMALL) as store:
        assert store.recovery.new_holes == ((size, 2 * size),)
    (one,) = listed(store_path)
    assert (one.begin, one.end, one.state) == (size, 2 * size, "damaged")
    done = restore(store_path, f"commitlog-{size:020d}-{2 * size:020d}", CONFIG, backup)
    assert done.ranges == ((size, 2 * size),) and not done.left
    with cystore.open(store_path, **stores.SMALL) as store:
        assert [(m.topic, m.queue_id, m.queue_offset) for m in store.scan()] == kept
        assert len(store.get("alpha", 0, puts[-2].queue_offset, 100).messages) > 0
