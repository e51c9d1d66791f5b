"""Goal: what is sealed of a store is read by URL alone, row for row as its host reads it, in bounded memory, and what
was copied badly is told with its URL. Method: copies of small stores, read in windows of all sizes; copies cut,
emptied, damaged, robbed of files."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.support.child import in_child
from tests.support.small_stores import LOG_BYTES, body_for, open_small
from tests.support.users import EVE

pa = pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

from cystore.columns import sealed  # noqa: E402 - needs pyarrow
from cystore.columns.arrow import (  # noqa: E402
    FOREVER,
    ReadSettings,
    RowFilter,
    plan_ranges,
    read_ranges,
)
from cystore.columns.object_store import ObjectStore  # noqa: E402
from cystore.columns.sealed import SealedLog, read_sealed  # noqa: E402
from cystore.errors import (  # noqa: E402
    CorruptRecordError,
    OffsetError,
    StoreConfigError,
    StoreFormatError,
    StorePermissionError,
)

COLUMNS = tuple(name for name in ReadSettings().columns if name != "store")
WINDOWS = (64, 100, 4000, LOG_BYTES, sealed.WINDOW_BYTES)
pytestmark = pytest.mark.unsanitized  # about files as other programs read them


def fill(store: cystore.MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(
            f"topic-{number % 2}",
            f"body {number}".encode() * (number % 40),
            queue_id=number % 3,
            keys=(f"key-{number}",),
            tags=("even", "odd")[number % 2],
        )


def log_at(path: Path | str, **more: Any) -> SealedLog:
    return SealedLog(*ObjectStore.of(f"file://{path}", {}), **more)


def rows_of(log: SealedLog, rows: RowFilter = RowFilter(), window: int = 1000, **more: Any) -> list[Any]:  # noqa: B008
    settings = ReadSettings(**{"columns": COLUMNS, "rows": rows, **more})
    found = []
    for batch in read_sealed(plan_ranges(log, rows), settings, log.object_store, window):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def segments(copy: Path) -> list[Path]:
    return sorted(copy.glob("commitlog/0*"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[cystore.MessageStore]:
    with open_small(tmp_path / "store") as opened:
        fill(opened, 600)
        opened.dispatch()
        opened.flush()
        yield opened


@pytest.fixture
def copy(store: cystore.MessageStore, tmp_path: Path) -> Path:
    """Of a store that continues being used: what a copy needs of it."""
    for name in ("commitlog", "consumequeue"):
        shutil.copytree(Path(store.path) / name, tmp_path / "copy" / name)
    copy = tmp_path / "copy"
    ready = int(segments(copy)[-1].name) + LOG_BYTES  # as the service `allocate` makes it ahead of time
    (copy / "commitlog" / f"{ready:020d}").write_bytes(bytes(LOG_BYTES))
    return copy


def expected(store: cystore.MessageStore, rows: RowFilter = RowFilter(), end: int = FOREVER) -> list[Any]:  # noqa: B008
    settings = ReadSettings(columns=COLUMNS, rows=rows)
    found = [
        row
        for batch in read_ranges(plan_ranges(store.snapshot(), rows), settings)
        for row in batch.to_pylist()
    ]
    return [row for row in found if row["physical_offset"] < end]


def test_the_sealed_segments_row_for_row_in_windows_of_all_sizes(store, copy):
    log = log_at(copy)
    assert 0 < log.end < store.snapshot().end
    assert log.end == int(segments(copy)[-2].name), "the last one is kept ready, and has no record"
    wanted = expected(store, end=log.end)
    assert len(wanted) > 300
    for window in WINDOWS:
        assert rows_of(log, window=window) == wanted, window


def test_a_record_that_is_larger_than_windows(tmp_path):
    with open_small(tmp_path / "store") as store:
        for size in (200, LOG_BYTES - 8, 5000, 9000, 300):
            store.put("T", body_for(size))
        store.flush()
        log = log_at(tmp_path / "store")
        for window in WINDOWS:
            assert rows_of(log, window=window) == expected(store, end=log.end)


def test_options_of_a_read_mean_what_they_mean_at_the_host(store, copy):
    log, messages = log_at(copy), list(store.scan())
    middle = messages[250].store_timestamp_ms
    for rows in (
        RowFilter(topics=("topic-1",)),
        RowFilter(keys=("key-77",)),
        RowFilter(tags=("odd",), queue_ids=(2,)),
        RowFilter(offsets=(10, 20)),
        RowFilter(times_ms=(middle, FOREVER)),
        RowFilter(times_ms=(-FOREVER, middle)),
        RowFilter(rules=(("topic-0", 1, 5, 9, -FOREVER, FOREVER),)),
    ):
        assert rows_of(log, rows) == expected(store, rows, log.end)


def test_times_choose_segments_by_few_of_their_first_records(tmp_path):
    with open_small(tmp_path / "store") as store:
        fill(store, 900)
        store.flush()
        log = log_at(tmp_path / "store")
        whole = plan_ranges(log, RowFilter())
        firsts = [log._first_timestamp(part.base) for part in whole]
        assert len(whole) > 8 and None not in firsts
        for time_ms in sorted({firsts[0] - 1, *firsts, firsts[-1] + 1}):
            late, early = RowFilter(times_ms=(time_ms, FOREVER)), RowFilter(times_ms=(-FOREVER, time_ms))
            for rows in (late, early):
                assert rows_of(log, rows) == expected(store, rows, log.end)
        assert plan_ranges(log, RowFilter(times_ms=(firsts[-1] + 1, FOREVER))) == whole[-1:]
        assert plan_ranges(log, RowFilter(times_ms=(-FOREVER, firsts[0]))) == []


def test_a_plan_that_nobody_has_any_more_is_forgotten(copy):
    """Seen: caches of the class kept each plan's object for as long as the process lived."""
    log = log_at(copy)
    assert plan_ranges(log, RowFilter(times_ms=(1, FOREVER)))
    assert log.queue_ranges["topic-0", 0]
    gone = weakref.ref(log)
    del log
    gc.collect()
    assert gone() is None


def test_queue_offsets_are_those_of_the_sealed_segments(store, copy):
    log = log_at(copy)
    begins: dict[Any, int] = {}
    ends: dict[Any, int] = {}
    for message in store.scan():
        queue = (message.topic, message.queue_id)
        begins.setdefault(queue, message.queue_offset)
        if message.physical_offset < log.end:
            ends[queue] = message.queue_offset + 1
    assert {queue: tuple(found) for queue, found in log.queue_ranges.items()} == {
        queue: (begins[queue], ends[queue]) for queue in begins
    }
    for name in segments(copy)[:3]:
        name.unlink()
    later = log_at(copy)
    first = {}
    for message in store.scan():
        if message.physical_offset >= later.minimum:
            first.setdefault((message.topic, message.queue_id), message.queue_offset)
    assert {queue: found.min_offset for queue, found in later.queue_ranges.items()} == first


def test_a_hole_entry_moves_no_queue_offset_but_at_the_border_itself(store, copy):
    """It says nothing of where in the log it was: the entry behind it does."""
    for name in segments(copy)[:3]:
        name.unlink()
    (found,) = {tuple(log_at(copy).queue_range("topic-1", 1))}
    file = copy / "consumequeue" / "topic-1" / "1" / f"{0:020d}"
    content = file.read_bytes()
    assert found[0] > 2 and found[1] > found[0] + 10
    for number in range(min(found[1] + 3, len(content) // 20)):
        at = number * 20
        file.write_bytes(content[:at] + struct.pack(">qiq", 0, 0x7FFFFFFF, 0) + content[at + 20 :])
        for translated, border in zip(log_at(copy).queue_range("topic-1", 1), found, strict=True):
            assert translated == border or translated == number == border - 1


def test_without_consume_queues_rows_are_read_and_offsets_by_queue_say_what_is_missing(store, copy):
    shutil.rmtree(copy / "consumequeue")
    log = log_at(copy)
    assert rows_of(log) == expected(store, end=log.end)
    with pytest.raises(StoreFormatError, match="there are no consume queues here") as error:
        list(log.queue_ranges)
    assert error.value.path == f"file://{copy}/consumequeue"


def test_a_store_of_one_segment_has_none_that_is_sealed(tmp_path):
    with open_small(tmp_path / "store") as store:
        store.put("T", b"x")
        store.flush()
        assert rows_of(log_at(tmp_path / "store")) == []


def test_what_is_no_copy_of_a_store_is_told(store, copy, tmp_path):
    url = f"file://{tmp_path}/nothing"
    with pytest.raises(StoreFormatError, match="there is no store here") as error:
        log_at(tmp_path / "nothing")
    assert error.value.path == url
    (tmp_path / "nothing").mkdir()
    with pytest.raises(StoreFormatError, match="there is no segment here") as error:
        log_at(tmp_path / "nothing")
    assert error.value.path == f"{url}/commitlog"
    (copy / "commitlog" / "00000000000000000000.tmp").touch()
    with pytest.raises(StoreFormatError, match="not a valid") as error:
        log_at(copy)
    assert error.value.path == f"file://{copy}/commitlog/00000000000000000000.tmp"


def test_a_segment_that_is_missing_between_others(store, copy):
    gone = segments(copy)[2]
    gone.unlink()
    with pytest.raises(OffsetError, match="missing between others") as error:
        log_at(copy)
    assert (error.value.path, error.value.offset) == (f"file://{gone}", int(gone.name))
    log = log_at(copy, fail_on_data_loss=False)
    begin = int(gone.name)
    assert rows_of(log) == [
        row for row in expected(store, end=log.end) if not begin <= row["physical_offset"] < begin + LOG_BYTES
    ]


def test_a_segment_that_was_not_copied_whole(store, copy):
    short = segments(copy)[1]
    content = short.read_bytes()
    log = log_at(copy)
    short.write_bytes(content[:5000])
    with pytest.raises(StoreFormatError, match="the segment has 5000 bytes, the others have 16384") as error:
        log_at(copy)
    assert error.value.path == f"file://{short}"
    with pytest.raises(StoreFormatError, match="the file ends at 5000") as error:
        rows_of(log)
    assert error.value.path == f"file://{short}"


def test_a_segment_that_was_copied_before_it_was_full_is_damage(store, copy):
    """Its end is zeros: nothing says that no record was there."""
    early = segments(copy)[1]
    content = early.read_bytes()
    messages = [m.physical_offset for m in store.scan() if m.physical_offset >= LOG_BYTES]
    cut = messages[10] - LOG_BYTES
    early.write_bytes(content[:cut] + bytes(LOG_BYTES - cut))
    log = log_at(copy)
    for window in WINDOWS:
        with pytest.raises(CorruptRecordError, match="zero") as error:
            rows_of(log, window=window)
        assert (error.value.path, error.value.offset) == (f"file://{early}", messages[10])


@pytest.mark.parametrize("window", WINDOWS)
def test_damage_inside_of_a_segment(store, copy, window):
    log, wanted = log_at(copy), expected(store)
    wanted = [row for row in wanted if row["physical_offset"] < log.end]
    bad = [row for row in wanted if row["physical_offset"] > LOG_BYTES][12]["physical_offset"]
    following = min(row["physical_offset"] for row in wanted if row["physical_offset"] > bad)
    file = segments(copy)[1]
    content = bytearray(file.read_bytes())
    for at, bits in (
        (40, 0xFF),
        (0, 0x20),
        (2, 0x20),
    ):  # a field, and the length: too large for the file, and not
        damaged = bytearray(content)
        damaged[bad - LOG_BYTES + at] ^= bits
        file.write_bytes(damaged)
        with pytest.raises(CorruptRecordError, match=f"damaged up to {following}") as error:
            rows_of(log, window=window)
        assert (error.value.path, error.value.offset) == (f"file://{file}", bad)
        others = [row for row in wanted if row["physical_offset"] != bad]
        assert rows_of(log, window=window, on_corruption="skip") == others
        translated = rows_of(
            log, window=window, on_corruption="column", columns=("physical_offset", "corrupt", "corrupt_end")
        )
        assert [(row["physical_offset"], row["corrupt_end"]) for row in translated if row["corrupt"]] == [
            (bad, following)
        ]


def test_a_segment_that_is_removed_after_planning(store, copy):
    log = log_at(copy)
    wanted = expected(store, end=log.end)
    segments(copy)[0].unlink()
    with pytest.raises(OffsetError, match="removed after the read was planned") as error:
        rows_of(log)
    assert error.value.path == f"file://{copy}/commitlog/{0:020d}"
    assert rows_of(log, fail_on_data_loss=False) == [
        row for row in wanted if row["physical_offset"] >= LOG_BYTES
    ]


def test_no_more_than_some_windows_are_held(store, copy, monkeypatch):
    """Each piece that is asked for is a window, and each is asked for once."""
    asked: list[tuple[str, int, int]] = []
    read = ObjectStore.read

    def counted(self: ObjectStore, file: Any, url: str, at: int, count: int) -> bytes:
        asked.append((url, at, count))
        return read(self, file, url, at, count)

    held: list[int] = []
    move = sealed._Windows.move

    def looked_at(self: Any, position: int, needed: int = 0) -> None:
        move(self, position, needed)
        held.append(len(self.data))

    log = log_at(copy)
    largest = max(message.size_bytes for message in store.scan())
    monkeypatch.setattr(ObjectStore, "read", counted)
    monkeypatch.setattr(sealed._Windows, "move", looked_at)
    rows_of(log, window=1000)
    assert max(held) <= 1000 + largest
    assert max(count for _, _, count in asked) == 1000
    assert sum(count for _, _, count in asked) == log.end
    assert len(set(asked)) == len(asked)


def test_a_reader_that_is_left_closes_its_file(store, copy):
    log = log_at(copy)
    batches = read_sealed(
        plan_ranges(log, RowFilter()), ReadSettings(batch_rows=5), log.object_store, window_bytes=100
    )
    next(batches)
    batches.close()


def test_refused_access(copy):
    def look() -> None:
        if os.geteuid() == 0:
            os.setresuid(EVE, EVE, EVE)
        with pytest.raises(StorePermissionError, match="access refused"):
            log_at(copy)

    (copy / "commitlog").chmod(0)
    try:
        assert in_child(look) == 0
    finally:
        (copy / "commitlog").chmod(0o700)


BAD_URLS = [
    ("s3://AKIAKEY:hush-hush@bucket/store", {}, "a URL must not contain credentials"),
    ("s3://AKIAKEY@bucket/store", {}, "a URL must not contain credentials"),
    ("s3://bucket/store?secret_key=hush-hush", {}, "a URL must end with its path \\(s3://bucket/store\\)"),
    ("s3:///store", {}, "names no bucket"),
    ("file://elsewhere/store", {}, "names the host elsewhere"),
]


@pytest.mark.parametrize(("url", "options", "message"), BAD_URLS)
def test_bad_urls_are_refused_and_keep_their_secrets(url, options, message):
    with pytest.raises(StoreConfigError, match=message) as error:
        ObjectStore.of(url, options)
    assert "hush" not in str(error.value) and "AKIAKEY" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("nope://bucket/store", {}, "scheme nope "),
        ("s3://bucket/store", {"no_such": "hush-hush"}, "does not accept the options fs.no_such"),
        (
            "s3://bucket/store",
            {"secret_key": "hush-hush"},
            "does not accept the options fs.secret_key: .*access_key",
        ),
        ("s3://bucket/store", {"connect_timeout": "soon"}, "must be a number of seconds, not 'soon'"),
    ],
)
def test_what_the_file_system_does_not_know_is_told(url, options, message):
    object_store, url = ObjectStore.of(url, options)
    with pytest.raises(StoreConfigError, match=message) as error:
        SealedLog(object_store, url)
    assert "hush" not in str(error.value)


def test_options_of_a_file_system_are_in_no_text_of_it():
    object_store, _ = ObjectStore.of(
        "s3://bucket/store", {"access_key": "AKIAKEY", "secret_key": "hush-hush"}
    )
    assert "hush" not in repr(object_store) and "AKIAKEY" not in repr(object_store)
    assert pickle.loads(pickle.dumps(object_store)) == object_store
    with pytest.raises(cystore.StoreError) as error, object_store.translated("s3://bucket/store"):
        raise OSError("no luck with hush-hush of AKIAKEY")
    assert "no luck with *** of ***" in str(error.value)


def test_urls_with_wildcards_name_folders(tmp_path):
    for name in ("host-1", "host-2", "other"):
        (tmp_path / name / "store").mkdir(parents=True)
    object_store, url = ObjectStore.of(f"file://{tmp_path}/host-*/store/", {})
    assert object_store.matching(url) == [f"file://{tmp_path}/host-{number}/store" for number in (1, 2)]
    assert object_store.matching(f"file://{tmp_path}/nobody-*/store") == []


def test_through_fsspec(store, copy):
    fsspec = pytest.importorskip("fsspec", reason="pip install fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(f"{copy}/", "/mine/store/", recursive=True)
    try:
        log = SealedLog(*ObjectStore.of("memory://mine/store", {}))
        assert rows_of(log) == expected(store, end=log.end)
        memory.rm("/mine/store/commitlog/" + f"{0:020d}")
        with pytest.raises(OffsetError, match="removed after the read was planned"):
            rows_of(log)
    finally:
        memory.rm("/mine", recursive=True)
