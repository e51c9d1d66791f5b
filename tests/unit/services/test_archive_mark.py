"""Goal: what is not archived stays through every clean, once a store has an archive (I7); what is archived goes; who
must act is told. Method: stores of small segments in which everything has expired, and config/archive.json written as
the archive job does."""

from __future__ import annotations

import json
import logging

import pytest

import cystore
from cystore._native.record.checksum import crc32c
from cystore.services.retention.archive_mark import Archived, parse_archived
from tests.support.cleaning import check_cleaned, filled
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about what is kept, which no kernel decides

EXPIRED = {"file_reserved_time_h": 0}
FULL_AT = {"disk_max_used_space_ratio": 10, "disk_space_clean_forcibly_ratio": 10}


def test_without_an_archive_nothing_is_held(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        assert store.archived() is None
        assert store.clean().segments > 3


def test_i7_what_is_not_archived_stays(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put = filled(store)
        mark = store.archive_mark
        first = mark.begin("a", "/archive")
        assert first.up_to == 0
        assert store.clean().files == 0
        second = Archived("a", "/archive", 2 * LOG_BYTES, "manifests/x.json")
        mark.move(first, second)
        assert store.archived() == second
        assert store.clean().min_physical_offset == 2 * LOG_BYTES
        assert store.clean().files == 0
        check_cleaned(store, put)
        assert mark.end()
        assert store.clean().segments > 0, "nothing archived means no hold"


def test_the_hold_begins_where_the_log_does(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        minimum = store.clean().min_physical_offset
        assert minimum > 0
        assert store.archive_mark.begin("a", "/archive").up_to == minimum


def test_the_archive_moves_on_from_where_it_is_only(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        mark = store.archive_mark
        first = mark.begin("a", "/archive")
        with pytest.raises(cystore.StoreConfigError, match="already has an archive"):
            mark.begin("b", "/archive")
        second = Archived("a", "/archive", LOG_BYTES, "m")
        mark.move(first, second)
        for before, after in (
            (first, Archived("a", "/archive", 2 * LOG_BYTES, "m")),
            (second, Archived("a", "/archive", 0, "m")),
            (second, Archived("a", "/archive", store.wrote_position + LOG_BYTES, "m")),
        ):
            with pytest.raises(cystore.StoreConfigError, match="run the job again"):
                mark.move(before, after)
        assert store.archived() == second


def test_i7_a_full_disk_takes_nothing_that_is_not_archived_and_one_warning_says_so(tmp_path, caplog):
    forced = {"clean_file_forcibly_enable": True, **FULL_AT}
    with open_small(tmp_path / "s", **forced, disk_space_warning_level_ratio=100) as store:
        filled(store)
        store._attached().cleaner._space.used_percent = lambda: 80.0
        store._attached().cleaner._space.watch = lambda: 80.0
        mark = store.archive_mark
        first = mark.begin("a", "/archive")
        with caplog.at_level(logging.WARNING, "cystore"):
            for _ in range(3):
                assert store.clean_due().done == 0
        assert caplog.text.count("not archived") == 1
        second = Archived("a", "/archive", LOG_BYTES, "m")
        mark.move(first, second)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cystore"):
            assert store.clean_due().done > 0
            assert "not archived" not in caplog.text
            store.clean_due()
        assert caplog.text.count("not archived") == 1, "it stalls at another place"


def test_a_stalled_hold_is_no_warning_while_there_is_space(tmp_path, caplog):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        caplog.clear()  # the open says what a retention of 0 lets go
        store._attached().cleaner._space.used_percent = lambda: 74.9
        store.archive_mark.begin("a", "/archive")
        with caplog.at_level(logging.WARNING, "cystore"):
            assert store.clean().files == 0
        assert not caplog.records


def test_what_is_archived_is_that_of_all_processes_and_outlives_them(tmp_path):
    path = tmp_path / "s"
    with open_small(path, **EXPIRED) as store:
        filled(store)
        with Process() as other:
            other.do(
                "import cystore; store = cystore.open(path, **s)", path=str(path), s={**SETTINGS, **EXPIRED}
            )
            other.do("store.archive_mark.begin('a', '/archive') and None")
            other.kill()
        assert store.clean().segments == 0
    with open_small(path, **EXPIRED) as store:
        assert store.archived() == Archived("a", "/archive", 0)
        assert store.clean().segments == 0
    with cystore.open(path, read_only=True) as store:
        assert store.archived() == Archived("a", "/archive", 0)
        with pytest.raises(cystore.StoreNotWritableError):
            _ = store.archive_mark


@pytest.mark.parametrize("content", [{}, [], "x", {"archivedUpTo": 99999999}, {"archivedUpTo": True}])
def test_i7_a_section_that_names_no_archive_keeps_everything_and_says_so(tmp_path, content):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        store._attached().manifest.set_section("archive", content)
        with pytest.raises(cystore.StoreFormatError, match=r"cleaning is paused.*--restore.*--end-archive"):
            store.clean()
        assert store.stats()["min_physical_offset"] == 0
        assert store.archive_mark.end()
        assert store.clean().segments > 0


def archive_file(up_to):
    """config/archive.json as earlier versions wrote it."""
    content = {"archiveId": "a", "folder": "/archive", "archivedUpTo": up_to, "manifest": "m"}
    checksum = crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps({**content, "checksum": checksum}, indent=1).encode()


def test_a_changed_byte_is_noticed():
    assert parse_archived(archive_file(16384)) == Archived("a", "/archive", 16384, "m")
    with pytest.raises(ValueError, match="checksum"):
        parse_archived(archive_file(16384).replace(b"16384", b"16385"))
