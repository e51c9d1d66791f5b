"""Goal: what is not archived stays through every clean, once a store has an archive (I7); what is archived goes; who must act is told.
Method: stores of small segments in which everything has expired, and config/archive.json written as the archive job does."""

from __future__ import annotations

import logging

import pytest

import cystore
from cystore.archive import (
    Archived,
    ArchivedFile,
    Manifest,
    content_of,
    parse_archived,
    parse_manifest,
    render_archived,
    render_manifest,
)
from tests.cleaned import check_cleaned, filled
from tests.process import Process
from tests.small import LOG_BYTES, SETTINGS, open_small

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
        mark.path.unlink()
        assert store.clean().segments > 0, "no file means no hold"


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
        with pytest.raises(cystore.StoreConfigError, match="has an archive already"):
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


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"archivedUpTo": 99999999}', b"[]", b"\xff", b"[" * 100_000]
)
def test_i7_a_damaged_file_keeps_everything_and_says_so(tmp_path, content):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        store.archive_mark.begin("a", "/archive")
        store.archive_mark.path.write_bytes(content)
        with pytest.raises(cystore.StoreFormatError, match=r"nothing is cleaned.*--restore.*archive\.json"):
            store.clean()
        assert store.stats()["min_physical_offset"] == 0


def test_i7_a_link_in_its_place_keeps_everything_too(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        filled(store)
        store.checkpoint()
        store.archive_mark.path.symlink_to(tmp_path / "nowhere")
        with pytest.raises(cystore.StorePermissionError, match=r"link.*archive\.json"):
            store.clean()
        assert store.stats()["min_physical_offset"] == 0


def test_a_changed_byte_is_noticed(tmp_path):
    data = render_archived(Archived("a", "/archive", 16384, "m"))
    assert parse_archived(data) == Archived("a", "/archive", 16384, "m")
    with pytest.raises(ValueError, match="checksum"):
        parse_archived(data.replace(b"16384", b"16385"))


def a_manifest(begin: int, end: int, previous: str | None) -> Manifest:
    name = f"data/topic=a%7Cb/{begin}.parquet"
    one = ArchivedFile(name, "a|b", 3, 10, 7, (begin, end - 1), (5, 6), {0: (begin, end), 12: (1, 2)})
    return Manifest("id", "/store", begin, end, previous, (one,), ((begin + 1, begin + 2, "why"),))


def test_a_manifest_reads_back_and_a_changed_byte_is_noticed():
    manifest = a_manifest(0, 100, None)
    data = render_manifest(manifest)
    assert parse_manifest(data) == manifest
    for changed in (data.replace(b'"rows": 3', b'"rows": 4'), data[:-10], b"{}", b"[]", b"\xff"):
        with pytest.raises(ValueError):
            parse_manifest(changed)


def test_manifests_are_followed_back_and_must_meet(tmp_path):
    first, second = a_manifest(0, 100, None), a_manifest(100, 250, None)
    second = Manifest(**{f: getattr(second, f) for f in second.__slots__} | {"previous": first.name})
    (tmp_path / "manifests").mkdir()
    for one in (first, second):
        (tmp_path / one.name).write_bytes(render_manifest(one))
    archived = Archived("id", str(tmp_path), 250, second.name)
    content = content_of(archived)
    assert content.manifests == (first, second)
    assert content.queue_begins == {("a|b", 0): 0, ("a|b", 12): 1}
    for wrong in (
        Archived("other", str(tmp_path), 250, second.name),
        Archived("id", str(tmp_path), 251, second.name),
    ):
        with pytest.raises(cystore.CorruptRecordError, match="bring it back"):
            content_of(wrong)
    (tmp_path / first.name).write_bytes(b"{}")
    with pytest.raises(cystore.CorruptRecordError, match="bring it back"):
        content_of(archived)
    (tmp_path / first.name).unlink()
    with pytest.raises(cystore.StoreFormatError, match="mounted"):
        content_of(archived)
