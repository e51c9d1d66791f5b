"""Goal: facts that only the store knows stand in its manifest: an earlier version's files are carried over, a
manifest that was lost pauses cleaning, and a first log file that somebody removed is reported. Method: stores with
the files of before, and damaged manifests."""

from __future__ import annotations

import json
import shutil

import pytest

import cystore
from cystore._native.record.checksum import crc32c
from cystore.cli.program import main
from cystore.engine.manifest.manifest import FILE_NAME, look
from cystore.services.retention import carry_over
from cystore.services.retention.hold import Hold
from cystore.services.scrub_progress import ScrubProgress, progress_fields, read_progress
from tests.support.small_stores import LOG_BYTES, body_for, open_small
from tests.unit.services.test_archive_mark import archive_file
from tests.unit.services.test_hold import holds_file

pytestmark = pytest.mark.unsanitized  # about files

EXPIRED = {"file_reserved_time_h": 0}


def filled(path) -> None:
    with open_small(path, **EXPIRED) as store:
        for _ in range(5 * LOG_BYTES // 1024):
            store.put("T", body_for(1024))


def scrub_file(progress: ScrubProgress) -> bytes:
    fields = progress_fields(progress)
    checksum = crc32c(json.dumps(fields, sort_keys=True).encode())
    return json.dumps({"scrub": fields, "checksum": checksum}).encode()


FILES = {
    "holds.json": holds_file({"mirror": Hold(LOG_BYTES, 7)}),
    "holds.json.bak": b"{",
    "archive.json": archive_file(LOG_BYTES),
    "scrub.json": scrub_file(ScrubProgress(position=64, began_ms=1, findings=({"kind": "record"},))),
}


def from_before(path) -> None:
    filled(path)
    for name, data in FILES.items():
        (path / "config" / name).write_bytes(data)


def check_carried(store: cystore.MessageStore) -> None:
    assert store.holds() == {"mirror": Hold(LOG_BYTES, 7)}
    assert store.archived().up_to == LOG_BYTES


@pytest.mark.parametrize("killed_at", ["never", "before removal"])
def test_a_store_of_today_is_carried_over(tmp_path, monkeypatch, killed_at):
    """Seen: facts in five files with five protocols."""
    path = tmp_path / "s"
    from_before(path)
    with open_small(path, read_only=True) as store:
        check_carried(store)
    assert all((path / "config" / name).exists() for name in FILES)
    if killed_at == "before removal":
        copies = {name: (path / "config" / name).read_bytes() for name in FILES}
        open_small(path).close()
        for name, data in copies.items():
            (path / "config" / name).write_bytes(data)
    with open_small(path) as store:
        check_carried(store)
        assert not any((path / "config" / name).exists() for name in FILES)
        assert (read_progress(path).position, read_progress(path).findings) == (64, ({"kind": "record"},))
        assert store.clean().min_physical_offset == LOG_BYTES
    with open_small(path) as store:
        check_carried(store)


def test_the_copy_counts_where_the_file_of_holds_is_damaged(tmp_path):
    path = tmp_path / "s"
    from_before(path)
    shutil.copy(path / "config" / "holds.json", path / "config" / "holds.json.bak")
    (path / "config" / "holds.json").write_bytes(b"{")
    with open_small(path) as store:
        check_carried(store)


@pytest.mark.parametrize("name", ["holds.json", "archive.json"])
def test_i7_a_file_of_before_that_cannot_be_read_pauses_cleaning(tmp_path, name):
    path = tmp_path / "s"
    from_before(path)
    (path / "config" / name).write_bytes(b"{")
    with open_small(path) as store:
        assert store.clean().segments == 0
        assert (path / "config" / name).exists()
    (path / "config" / name).unlink()
    (path / "config" / "holds.json.bak").unlink(missing_ok=True)
    with open_small(path) as store:
        assert store.clean().segments == 0
        assert store.resume_cleaning()
        store.clean()


def test_i7_a_manifest_that_was_lost_pauses_cleaning(tmp_path, caplog, capsys):
    """Seen: both slots damaged, the manifest was made anew, and cleaning continued as if nobody held anything."""
    path = tmp_path / "s"
    filled(path)
    with open_small(path) as store:
        store.hold("mirror", 0)
        assert store.clean().segments == 0
    (path / FILE_NAME).write_bytes(b"x" * (path / FILE_NAME).stat().st_size)
    for _ in range(2):
        with open_small(path, **EXPIRED) as store:
            assert store.holds() == {}
            assert store.clean().segments == 0
            assert store.clean_due().done == 0
    assert "cleaning is paused" in caplog.text
    assert main(["info", str(path)]) == 0
    assert "unknown holds" in capsys.readouterr().out
    assert main(["config", str(path), "--resume-cleaning"]) == 0
    with open_small(path) as store:
        assert store.clean().segments > 0
        assert not store.resume_cleaning()


def test_the_archive_ends_the_pause_too(tmp_path):
    path = tmp_path / "s"
    filled(path)
    with open_small(path) as store:
        archived = store.archive_mark.begin("a", "/archive")
    (path / FILE_NAME).write_bytes(b"x" * (path / FILE_NAME).stat().st_size)
    with open_small(path, **EXPIRED) as store:
        assert (store.archived(), store.clean().segments) == (None, 0)
        store.archive_mark.restore(archived)
        assert store.clean().segments == 0
        store.archive_mark.end()
        assert store.clean().segments > 0


def test_a_first_log_file_that_somebody_removed_is_reported(tmp_path, caplog, capsys):
    """Seen: the log simply began later, as after a clean."""
    path = tmp_path / "s"
    filled(path)
    with open_small(path) as store:
        store.hold("mirror", 2 * LOG_BYTES)
        minimum = store.clean().min_physical_offset
        assert look(path).facts.log_begin == minimum == 2 * LOG_BYTES
    with open_small(path) as store:
        assert store.recovery.clean
    (path / "commitlog" / f"{minimum:020d}").unlink()
    assert main(["verify", str(path)]) == 1
    assert f"{minimum}..{minimum + LOG_BYTES}: the log's first files are missing" in capsys.readouterr().out
    with open_small(path) as store:
        assert "first files are missing" in str(store.recovery)
        assert store.put("T", b"goes on").queue_offset > 0
    with open_small(path) as store:
        assert store.recovery.clean


def test_sections_are_known():
    assert [name for name, *_ in carry_over.SECTIONS] == ["holds", "archive", "scrub"]


@pytest.mark.parametrize("gone", ["the last file", "all files"])
def test_last_log_files_that_somebody_removed_are_reported(tmp_path, capsys, gone):
    """Seen: `verify` said "no damage" of a store whose log had gone as a whole, and `put` that it made a new store."""
    path = tmp_path / "s"
    filled(path)
    segments = sorted((path / "commitlog").glob("0*"))
    removed = segments[-1:] if gone == "the last file" else segments
    for segment in removed:
        segment.unlink()
    end = int(removed[0].name)
    assert main(["verify", str(path)]) == 1
    assert "the log's last files are missing" in capsys.readouterr().out
    with open_small(path) as store:
        assert f"its files end at {end} now" in str(store.recovery)
        assert store.put("T", b"goes on").queue_offset > 0
    with open_small(path) as store:
        assert store.recovery.clean
    assert main(["verify", str(path)]) == 0
