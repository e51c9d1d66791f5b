"""Goal: an archive holds what the log held, each record once and column for column, whenever a run is killed; nothing
goes from the log before that is certain (I7). Method: stores of small segments, archived by this process or by one
that kills itself at each place of a run; archives and files that were changed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

import pyarrow as pa
import pyarrow.parquet as pq

import cystore
from cystore.columns.archiver import archive_store
from cystore.columns.arrow import (
    COLUMNS,
    FOREVER,
    ReadSettings,
    RowFilter,
    plan_ranges,
    read_ranges,
)
from cystore.columns.parquet import (
    EVERYTHING,
    OF_LOG,
    may_hold,
    read_files,
    verify_files,
    write_range,
)
from cystore.services.retention.archive_mark import content_of
from tests.support.clock import turn
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about Parquet files
HOUR_MS = 3_600_000
PREPARED, COMMITTED, ROLLED_BACK = 4, 8, 12
EXPIRED = {"file_reserved_time_h": 0}


def put_some(store: cystore.MessageStore, count: int = 200, first: int = 0) -> None:
    """What is awkward in Parquet and in folder names is among them."""
    store.put_many(
        [
            cystore.Message(
                topic=("plain", "with%2F|percent", "RETRY-1")[number % 3],
                queue_id=number % 2,
                body=b"" if number % 7 == 0 else b"\x00body %d " % number * (number % 40),
                keys=() if number % 5 == 0 else (f"key-{number}", "schlüssel"),
                tags=None if number % 4 == 0 else "tag",
                sys_flag={3: PREPARED, 5: ROLLED_BACK, 7: COMMITTED}.get(number % 11, 0),
                properties={} if number % 6 == 0 else {"number": str(number), "ä": "\N{SNOWMAN}"},
            )
            for number in range(first, first + count)
        ]
    )
    store.put("plain", b"", keys=("x",), unique_key=f"unique-{first}")
    store.flush()


def log_rows(store: cystore.MessageStore, end: int | None = None) -> pa.Table:
    return cystore.to_arrow(store, columns=OF_LOG, transactions=True, end=end).read_all()


def archive_rows(store: cystore.MessageStore) -> pa.Table:
    """The view of a reader of the manifests."""
    content = content_of(store.archived())
    settings = ReadSettings(columns=OF_LOG, rows=EVERYTHING)
    listed = [one for part in content.manifests for one in part.files]
    batches = read_files(Path(content.archived.folder), listed, str(store.path), settings)
    return pa.Table.from_batches(batches, settings.schema).sort_by("physical_offset")


def check_folder(folder: Path, store: cystore.MessageStore) -> None:
    """Nothing is there that no manifest names, and nothing is named that is not there: whoever reads the folder reads
    no row twice."""
    content = content_of(store.archived())
    named = {folder / one.path for part in content.manifests for one in part.files}
    assert set((folder / "data").rglob("*.parquet")) == named
    assert {path.name for path in (folder / "manifests").iterdir()} == {
        Path(part.name).name for part in content.manifests
    }
    assert not list((folder / "tmp").iterdir())


def damage(store: cystore.MessageStore, position: int) -> Path:
    """Changes a byte of the record's body that begins there."""
    path = store.path / "commitlog" / f"{position // LOG_BYTES * LOG_BYTES:020d}"
    at = position % LOG_BYTES + store.read(position).size_bytes // 2
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 0xFF]))
    return path


def test_the_archive_is_the_log_column_for_column(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        done = archive_store(store, tmp_path / "a", all_sealed=True)
        assert done.segments > 2 and done.archived_up_to == done.log_bytes == done.segments * LOG_BYTES
        expected = log_rows(store, done.archived_up_to)
        assert done.rows == expected.num_rows > 100
        found = archive_rows(store)
        for name in OF_LOG:
            assert found[name].to_pylist() == expected[name].to_pylist(), name
        check_folder(tmp_path / "a", store)


def test_files_are_sorted_by_queue_and_lie_by_topic_and_date(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        archive_store(store, tmp_path / "a", all_sealed=True)
        content = content_of(store.archived())
        for one in (one for part in content.manifests for one in part.files):
            rows = pq.read_table(tmp_path / "a" / one.path, partitioning=None)
            places = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
            assert places == sorted(places)
            date = rows["timestamp"][0].as_py().date()
            assert f"/date={date}/" in one.path
        folders = {path.name for path in (tmp_path / "a" / "data").glob("*")}
        assert folders == {"topic=plain", "topic=with%252F%7Cpercent", "topic=RETRY-1"}
        dataset = pq.read_table(tmp_path / "a" / "data", partitioning="hive")
        assert set(dataset["topic"].to_pylist()) == {"plain", "with%2F|percent", "RETRY-1"}


def test_pieces_of_any_size_are_the_same_rows(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        snapshot = store.snapshot()
        (part, *_) = snapshot.segments(0, LOG_BYTES)
        whole = write_range(part, tmp_path / "r1", tmp_path / "r1" / "data")
        small = write_range(part, tmp_path / "r2", tmp_path / "r2" / "data", write_bytes=3000)
        assert whole.rows == small.rows == log_rows(store, LOG_BYTES).num_rows
        assert len(small.files) > len(whole.files) + 5
        assert sum(one.rows for one in small.files) == small.rows


@pytest.mark.slow
def test_every_filter_keeps_of_the_archive_what_it_keeps_of_the_log(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        store.put("plain", b"", unique_key="key-3")
        put_some(store, 200, 200)
        archived = archive_store(store, tmp_path / "a", all_sealed=True).archived_up_to
        (manifest,) = content_of(store.archived()).manifests
        ranges = plan_ranges(store.snapshot(), EVERYTHING, end=archived)
        times = sorted({message.store_timestamp_ms for message in store.scan(end=archived)})
        early, late = times[0], times[-1] + 1
        filters = [
            EVERYTHING,
            RowFilter(),
            *(RowFilter(topics=("plain",), queue_ids=(1, 7)), RowFilter(queue_ids=(5,))),
            *(RowFilter(topics=("with%2F|percent", "none")), RowFilter(topics=("none",))),
            *(RowFilter(tags=("tag", "x")), RowFilter(tags=("x",)), RowFilter(tags=("",))),
            *(
                RowFilter(keys=("key-3",)),
                RowFilter(keys=("schl\u00fcssel",)),
                RowFilter(keys=("unique-0", "no")),
            ),
            *(RowFilter(offsets=(3, 9)), RowFilter(physical=(2000, 20000))),
            *(
                RowFilter(times_ms=(early, late)),
                RowFilter(times_ms=(early + 1, late)),
                RowFilter(times_ms=(0, late - 1)),
            ),
            RowFilter(times_ms=(late, late + 5)),
            RowFilter(
                rules=(("plain", 1, 2, 9, -FOREVER, FOREVER), ("RETRY-1", -1, 0, FOREVER, early, late))
            ),
            RowFilter(rules=(("plain", 0, 2, 9, -FOREVER, FOREVER),), topics=("RETRY-1",)),
            RowFilter(
                rules=(("plain", 0, 0, 4, -FOREVER, FOREVER), ("plain", 0, 7, 9, early, late)), tags=("tag",)
            ),
        ]
        for rows in filters:
            for columns in (OF_LOG, ("value",), ("topic",), ("store", "offset")):
                settings = ReadSettings(columns=columns, rows=rows)
                log = pa.Table.from_batches(read_ranges(ranges, settings), settings.schema)
                listed = [one for one in manifest.files if may_hold(one, rows)]
                found = pa.Table.from_batches(
                    read_files(tmp_path / "a", listed, str(store.path), settings), settings.schema
                )
                assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, log.to_pylist())), (
                    rows,
                    columns,
                )


def test_a_run_goes_on_where_the_last_one_ended(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        first = archive_store(store, tmp_path / "a", all_sealed=True)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "data").rglob("*.parquet")}
        again = archive_store(store, tmp_path / "a", all_sealed=True)
        assert (again.segments, again.rows, again.begin) == (0, 0, first.archived_up_to)
        everything = log_rows(store)
        assert store.clean().min_physical_offset == first.archived_up_to
        put_some(store, 150, 200)
        everything = pa.concat_tables([everything, log_rows(store)]).sort_by("physical_offset")
        second = archive_store(store, tmp_path / "a", all_sealed=True, step_bytes=1)
        assert second.begin == first.archived_up_to and second.segments > 1
        assert len(content_of(store.archived()).manifests) == 1 + second.segments
        for path, time in before.items():
            assert path.stat().st_mtime_ns == time
        found = archive_rows(store)["physical_offset"].to_pylist()
        expected = sorted(
            {at for at in everything["physical_offset"].to_pylist() if at < second.archived_up_to}
        )
        assert found == expected
        check_folder(tmp_path / "a", store)


def test_only_what_expires_soon_is_archived(tmp_path, monkeypatch):
    with open_small(tmp_path / "s", file_reserved_time_h=72) as store:
        put_some(store)
        turn(monkeypatch, 47 * HOUR_MS)
        assert archive_store(store, tmp_path / "a").segments == 0
        assert store.archived().up_to == 0, "but the hold has begun"
        turn(monkeypatch, 49 * HOUR_MS)
        assert archive_store(store, tmp_path / "a").segments > 2
        assert store.clean().segments == 0
        turn(monkeypatch, 73 * HOUR_MS)
        assert store.clean().segments > 2


def test_i7_segments_go_only_when_the_manifest_is_durable_and_the_store_knows(tmp_path):
    seen: dict[str, tuple[int, bool]] = {}
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)

        def look(what: str, done: int, total: int) -> None:
            named = bool(list((tmp_path / "a").glob("manifests/*.json")))
            seen[what] = store.clean().segments, named

        done = archive_store(store, tmp_path / "a", all_sealed=True, report=look)
    assert list(seen) == ["writing", "verified", "placed", "named", "archived"]
    assert all(seen[what] == (0, False) for what in ("writing", "verified", "placed"))
    assert seen["named"] == (0, True)
    assert seen["archived"] == (done.segments, True) and done.segments > 2


PROGRAM = """
import os, signal
import cystore
from cystore.columns import archiver
def tell(what, done, total):
    if what == place:
        os.kill(os.getpid(), signal.SIGKILL)
def some(task, parts):
    found = []
    for number, part in enumerate(parts):
        if place == "between parts" and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        found.append(task(part))
    return found
renamed = []
def rename(source, target, real=archiver.files.rename_no_replace):
    real(source, target)
    renamed.append(target)
    if place == "between files" and len(renamed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
archiver.files.rename_no_replace = rename
store = cystore.open(path, **settings)
archiver.archive_store(store, folder, all_sealed=True, step_bytes=step_bytes, report=tell, mapper=some)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "place",
    [
        *("between parts", "between files", "named", "archived"),
        *(pytest.param(place, marks=pytest.mark.slow) for place in ("writing", "verified", "placed")),
    ],
)
def test_i7_killed_anywhere_nothing_is_missing_and_nothing_twice(tmp_path, place):
    settings = {**SETTINGS, **EXPIRED}
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", all_sealed=True)
        put_some(store, 200, 200)
        before = store.archived()
        with Process() as other, pytest.raises(EOFError):
            other.do(
                PROGRAM,
                path=str(store.path),
                folder=str(tmp_path / "a"),
                settings=settings,
                place=place,
                step_bytes=1 << 30,
            )
        known = log_rows(store)
        named = set((tmp_path / "a").glob("manifests/*"))
        if place != "archived":
            assert store.archived() == before
            assert store.clean().min_physical_offset == before.up_to, (
                "nothing goes that the store does not know archived"
            )
        # More is full by now: the range of the next run is another one, and takes the place of what the killed one
        # left.
        put_some(store, 80, 400)
        known = pa.concat_tables([known, log_rows(store)])
        done = archive_store(store, tmp_path / "a", all_sealed=True)
        expected = sorted({at for at in known["physical_offset"].to_pylist() if at < done.archived_up_to})
        assert archive_rows(store)["physical_offset"].to_pylist() == expected
        check_folder(tmp_path / "a", store)
        assert named <= set((tmp_path / "a").glob("manifests/*")), "what was verified is not done again"
        raw = pq.read_table(tmp_path / "a" / "data", columns=["physical_offset"])
        assert sorted(raw["physical_offset"].to_pylist()) == expected


def test_i7_killed_in_the_first_run_the_hold_stays(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        given = {"path": str(store.path), "folder": str(tmp_path / "a"), "settings": {**SETTINGS, **EXPIRED}}
        with Process() as other, pytest.raises(EOFError):
            other.do(PROGRAM, **given, place="placed", step_bytes=1)
        assert store.archived().up_to == 0 and store.clean().segments == 0
        done = archive_store(store, tmp_path / "a", all_sealed=True)
        assert archive_rows(store).num_rows == done.rows == log_rows(store, done.archived_up_to).num_rows
        check_folder(tmp_path / "a", store)


def test_a_damaged_record_is_named_and_nothing_goes(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        bad = [m.physical_offset for m in store.scan() if m.size_bytes > 300][20]
        path = damage(store, bad)
        with pytest.raises(cystore.CorruptRecordError) as error:
            archive_store(store, tmp_path / "a", all_sealed=True)
        assert (error.value.path, error.value.offset) == (str(path), bad)
        assert store.archived().up_to == 0 and store.clean().segments == 0
        assert not list((tmp_path / "a").glob("manifests/*"))
        done = archive_store(store, tmp_path / "a", all_sealed=True, skip_damage=True)
        (manifest,) = content_of(store.archived()).manifests
        assert [(begin, why) for begin, _, why in manifest.damaged] == [
            (bad, "a hole: recovery finds no valid record in it")
        ]
        offsets = archive_rows(store)["physical_offset"].to_pylist()
        left = cystore.to_arrow(store, on_corruption="skip", transactions=True, end=done.archived_up_to)
        assert offsets == left.read_all()["physical_offset"].to_pylist()
        assert bad not in offsets
        assert store.clean().segments == done.segments


def written(store: cystore.MessageStore, folder: Path) -> tuple[Any, Any, Path]:
    (part, *_) = store.snapshot().segments(0, LOG_BYTES)
    return part, write_range(part, folder, folder / "data"), folder / "data"


def changed(data: Path, one: Any, change: Any) -> Any:
    """The file with other rows, as a mistake in writing it would have made it: its checksum is its own."""
    from cystore._native.record.checksum import crc32c

    rows = change(pq.read_table(data / one.path, partitioning=None))
    pq.write_table(rows, data / one.path, write_page_checksum=True)
    content = (data / one.path).read_bytes()
    return replace(one, crc32c=crc32c(content), size_bytes=len(content), rows=rows.num_rows)


def swapped(rows: pa.Table, name: str) -> pa.Table:
    """The values of two rows that have other ones, of one column alone; or another value where all are alike."""
    values = rows[name].to_pylist()
    other = next((n for n, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        values[0], values[other] = values[other], values[0]
    elif "timestamp" in name:
        values[0] = values[0].replace(year=values[0].year - 1)
    else:
        values[0] += 1
    return rows.set_column(rows.column_names.index(name), name, pa.array(values, COLUMNS[name]))


def test_verifying_notices_another_value_in_any_column(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        part, done, data = written(store, tmp_path / "r")
        settings = ReadSettings(columns=OF_LOG, rows=EVERYTHING)
        assert verify_files(part, data, done.files, settings) == done.rows
        good = (data / done.files[0].path).read_bytes()
        for name in OF_LOG:
            if name in ("topic", "physical_offset"):
                continue  # what rows are found by
            wrong = changed(data, done.files[0], lambda rows, name=name: swapped(rows, name))
            with pytest.raises(cystore.CorruptRecordError, match=f"column {name} "):
                verify_files(part, data, [wrong, *done.files[1:]], settings)
            (data / done.files[0].path).write_bytes(good)
        other = next(one for one in done.files if one.topic != done.files[0].topic)
        swap = {done.files[0].path: other.path, other.path: done.files[0].path}
        for path in swap:
            (data / path).rename(data / f"{path}.moved")
        for path, to in swap.items():
            (data / f"{path}.moved").rename(data / to)
        moved = [replace(one, path=swap.get(one.path, one.path)) for one in done.files]
        with pytest.raises(cystore.CorruptRecordError, match="column topic "):
            verify_files(part, data, moved, settings)


def test_verifying_notices_missing_and_repeated_rows_and_other_bytes(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        part, done, data = written(store, tmp_path / "r")
        settings = ReadSettings(columns=OF_LOG, rows=EVERYTHING)
        with pytest.raises(cystore.CorruptRecordError, match="rows, the log"):
            verify_files(part, data, done.files[1:], settings)
        with pytest.raises(cystore.CorruptRecordError, match="rows, the log"):
            verify_files(part, data, [*done.files, done.files[0]], settings)
        # A row twice in the place of another one: the number is right.
        one = changed(data, done.files[0], lambda rows: pa.concat_tables([rows.slice(1), rows.slice(1, 1)]))
        with pytest.raises(cystore.CorruptRecordError, match="column"):
            verify_files(part, data, [one, *done.files[1:]], settings)
        path = data / done.files[1].path
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(cystore.CorruptRecordError, match="other bytes than were written"):
            verify_files(part, data, done.files[1:], settings)


def test_what_an_attempt_left_is_no_part_of_the_archive_and_a_missing_file_refuses(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)

        def twice(task: Any, parts: Any) -> list[Any]:
            return [[task(part), task(part)][1] for part in parts]

        archive_store(store, tmp_path / "a", all_sealed=True, mapper=twice)
        check_folder(tmp_path / "a", store)
        assert archive_rows(store).num_rows == log_rows(store, store.archived().up_to).num_rows
        put_some(store)

        def loses(task: Any, parts: Any) -> list[Any]:
            found = [task(part) for part in parts]
            next((tmp_path / "a" / "tmp").rglob("*.parquet")).unlink()
            return found

        for mapper, error in (
            (loses, cystore.StoreFormatError),
            (lambda task, parts: [task(part) for part in parts[1:]], cystore.CorruptRecordError),
        ):
            before = store.archived()
            with pytest.raises(error):
                archive_store(store, tmp_path / "a", all_sealed=True, mapper=mapper)
            assert store.archived() == before


def test_two_runs_at_once_are_one_too_many(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        errors = []

        def second(what: str, done: int, total: int) -> None:
            if what == "writing":
                with pytest.raises(cystore.StoreLockedError) as error:
                    archive_store(store, tmp_path / "a")
                errors.append(error)

        archive_store(store, tmp_path / "a", all_sealed=True, report=second)
        assert errors


def test_the_folder_must_be_this_stores(tmp_path):
    with open_small(tmp_path / "s") as store, open_small(tmp_path / "t") as other:
        put_some(store)
        put_some(other)
        for folder in (store.path, store.path / "archive", tmp_path):
            with pytest.raises(cystore.StoreConfigError, match="not contain each other"):
                archive_store(store, folder)
        archive_store(store, tmp_path / "a", all_sealed=True)
        with pytest.raises(cystore.StoreConfigError, match="does not know"):
            archive_store(other, tmp_path / "a", all_sealed=True)
        assert other.archived() is None
        with pytest.raises(cystore.StoreConfigError, match=r"is in .*/a: name that folder"):
            archive_store(store, tmp_path / "b", all_sealed=True)
        shutil.move(tmp_path / "a", tmp_path / "c")
        with pytest.raises(cystore.StoreFormatError, match="mounted"):
            archive_store(store, tmp_path / "a", all_sealed=True)
        archive_store(store, tmp_path / "c", all_sealed=True)
        assert store.archived().folder == str(tmp_path / "c")
        assert archive_rows(store).num_rows
        for wrong in ({"expiring_within_h": -1}, {"step_bytes": 0}, {"piece_bytes": 0}):
            with pytest.raises(cystore.StoreConfigError, match="expiring_within_h"):
                archive_store(store, tmp_path / "c", **wrong)


def test_a_lost_or_old_file_is_restored_from_the_manifests(tmp_path):
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        archive_store(store, tmp_path / "a", all_sealed=True)
        old = store.archived()
        put_some(store, 200, 200)
        archive_store(store, tmp_path / "a", all_sealed=True)
        known, rows = store.archived(), archive_rows(store).num_rows
        store.clean()
        # An old copy: what is behind it is in the archive alone, and must not be taken for a killed run's rest.
        store.archive_mark.restore(old)
        newest = tmp_path / "a" / known.manifest
        (tmp_path / "a" / "manifests" / "README").write_text("not ours")
        newest.rename(tmp_path / "away")
        with pytest.raises(cystore.StoreFormatError, match="neither has the records between"):
            archive_store(store, tmp_path / "a", all_sealed=True)
        (tmp_path / "away").rename(newest)
        assert archive_store(store, tmp_path / "a", all_sealed=True).rows == 0
        assert store.archived() == known
        for broken in ({"archivedUpTo": -1}, None):
            store._attached().manifest.set_section("archive", broken)
            with pytest.raises(cystore.StoreError, match="--restore"):
                archive_store(store, tmp_path / "a", all_sealed=True)
            archive_store(store, tmp_path / "a", all_sealed=True, restore=True)
            assert store.archived() == known
        assert archive_rows(store).num_rows == rows
        assert store.archive_mark.end()
        with pytest.raises(cystore.StoreConfigError, match="no manifest of this store"):
            archive_store(store, tmp_path / "b", restore=True)


def test_no_changed_bit_of_an_archive_is_served_as_data(tmp_path):
    with open_small(tmp_path / "s") as store:
        put_some(store)
        archive_store(store, tmp_path / "a", all_sealed=True)
        content = content_of(store.archived())
        one = next(one for part in content.manifests for one in part.files)
        path = tmp_path / "a" / one.path
        good = path.read_bytes()
        settings = ReadSettings(columns=OF_LOG, rows=EVERYTHING)
        for at in range(0, len(good), 7):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(cystore.CorruptRecordError, match="bring it back"):
                list(read_files(tmp_path / "a", [one], "", settings))
        path.write_bytes(good[:-1])
        with pytest.raises(cystore.CorruptRecordError, match="bring it back"):
            archive_rows(store)
        unchecked = replace(settings, check_checksum=False)
        with pytest.raises(cystore.CorruptRecordError, match="bring it back"):
            list(read_files(tmp_path / "a", [one], "", unchecked))
        path.unlink()
        with pytest.raises(cystore.OffsetError, match="mounted"):
            archive_rows(store)
        path.write_bytes(good)
        assert archive_rows(store).num_rows
        assert sum(batch.num_rows for batch in read_files(tmp_path / "a", [one], "", unchecked)) == one.rows


def test_a_url_is_no_folder_of_an_archive_and_releases_nothing(tmp_path, monkeypatch):
    """Seen: the files went into a local folder `s3:`, and cleaning removed the segments."""
    monkeypatch.chdir(tmp_path)
    with open_small(tmp_path / "s", **EXPIRED) as store:
        put_some(store)
        before = archive_store(store, tmp_path / "a", all_sealed=True).archived_up_to
        put_some(store, first=200)
        for folder in ("s3://bucket/archive", "file:///archive", "gs://bucket/archive"):
            with pytest.raises(cystore.StoreConfigError, match="is a URL, and an archive needs a folder"):
                archive_store(store, folder, all_sealed=True)
        assert store.archived().up_to == before
        store.clean()
        assert log_rows(store)["physical_offset"][0].as_py() == before, "what is not archived stays"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "s"]
