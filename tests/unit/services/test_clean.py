"""Goal: cleaning removes what expired and nothing that is still needed (I7), and who reads meanwhile is told. Method:
stores of small segments, and a clock that the test sets."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from pathlib import Path

import pytest

import cystore
from cystore import clock
from cystore.derived.dispatch import follow
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.derived.files.offsets import read_queue_offsets
from cystore.engine.files.progress import Progress
from cystore.engine.log.ages import Ages
from cystore.layout import LOCK_NAMES
from cystore.system import files, small_files
from tests.support.checks import check_closed, everything
from tests.support.cleaning import check_cleaned, fill, fill_disk
from tests.support.clock import stop, turn
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

HOUR_MS = 3_600_000
HOURS = {"file_reserved_time_h": 72}


@pytest.fixture
def later(monkeypatch):
    """Moves the clock that cleaning looks at; puts have the real one."""

    def move(hours: float) -> None:
        turn(monkeypatch, int(hours * HOUR_MS))

    return move


@pytest.fixture
def disk(monkeypatch):
    """Makes the file system as full as the test says (percent used, bytes free)."""

    def fill(percent: float, free_bytes: int = 1 << 30) -> None:
        fill_disk(monkeypatch, percent, free_bytes)

    return fill


@pytest.mark.disk
@pytest.mark.may_skip("needs a second file system in memory")
def test_disk_use_is_that_of_the_file_system_that_holds_the_store(tmp_path):
    """Also where that is mounted somewhere below another one, and the path leads there through a link."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        (tmp_path / "link").symlink_to(elsewhere)
        for folder in (tmp_path, tmp_path / "link"):
            with cystore.open(folder / "store", mapped_file_size_commit_log_bytes=1 << 20) as store:
                disk = shutil.disk_usage(folder)
                expected = 100 * disk.used / (disk.used + disk.free)
                assert store.used_disk_percent() == pytest.approx(expected, abs=2)


def segments(store) -> list[int]:
    return sorted(int(p.name) for p in (store.path / "commitlog").iterdir() if p.name != "CYSTORE")


def settle(store):
    store.dispatch()
    store.flush()


def test_offsets_are_saved_before_a_segment_goes(tmp_path, later):
    """A queue whose messages all go then counts on, also after a crash that loses its files."""
    with open_small(tmp_path / "s", **HOURS) as store:
        store.put("Once", b"")
        fill(store, 450)
        settle(store)
        (store.path / "config" / "queueOffset.json").unlink()
        later(73)
        assert store.clean().segments
        assert read_queue_offsets(store.path).next["Once", 0] == 1


def test_i7_what_expired_goes_and_the_rest_stays(tmp_path, later):
    with open_small(tmp_path / "s", **HOURS) as store:
        put = fill(store, 450)
        settle(store)
        before = segments(store)
        assert store.clean().files == 0
        later(73)
        done = store.clean()
        assert done.segments == len(
            [base for base in before if base < store.stats()["wrote"] // LOG_BYTES * LOG_BYTES]
        )
        assert segments(store)[0] == done.min_physical_offset == store.stats()["min_physical_offset"]
        assert done.queue_files > 0
        check_cleaned(store, put)
        put += fill(store, 50, start=len(put))
        settle(store)
        check_cleaned(store, put)
    with open_small(tmp_path / "s", **HOURS) as store:
        check_cleaned(store, put)


def test_a_segment_is_as_old_as_its_newest_record(tmp_path, monkeypatch):
    """Two halves of a log, three days apart: only segments wholly of the first go."""
    with open_small(tmp_path / "s", **HOURS) as store:
        old = fill(store)
        middle = clock.now_ms() + 1
        while clock.now_ms() <= middle:
            pass
        young = fill(store, start=len(old))
        settle(store)
        stop(monkeypatch, middle + 72 * HOUR_MS)
        done = store.clean()
        # The segment before one that begins with a young record may hold a young one itself: it stays.
        assert 0 < done.min_physical_offset == (young[0].physical_offset - 1) // LOG_BYTES * LOG_BYTES
        check_cleaned(store, old + young)


def test_i7_what_cannot_be_made_durable_stays(tmp_path, later, monkeypatch):
    def stands_still(self, position, timeout_ms=None):
        raise cystore.StoreTimeoutError("not flushed")

    with open_small(tmp_path / "s", **HOURS) as store:
        fill(store)
        later(1000)
        with monkeypatch.context() as stopped:
            stopped.setattr(type(store._attached().flusher), "flush_to", stands_still)
            assert store.clean().segments == 0
        assert store.clean().segments == 4


def test_i7_what_cannot_be_dispatched_stays(tmp_path, later, monkeypatch):
    def refuse(self, position):
        raise cystore.StoreIOError("cannot be written", path=self.files.directory)

    with open_small(tmp_path / "s", **HOURS) as store:
        fill(store)
        store.flush_log()
        later(1000)
        with monkeypatch.context() as full:
            full.setattr(ConsumeQueue, "prepare", refuse)
            assert store.clean().segments == 0
        assert store.stats()["dispatch_behind_bytes"]
        assert store.clean().segments == 4


def test_a_store_in_which_nobody_dispatches_is_cleaned(tmp_path, later):
    """Seen: pure writers with the default services, and nothing was ever removed."""
    with open_small(tmp_path / "s", **HOURS) as store:
        put = fill(store)
        store.flush_log()
        assert store.stats()["dispatch_behind_bytes"]
        later(1000)
        assert store.clean().segments == 4
        check_cleaned(store, put)


@pytest.mark.parametrize("harm", ["size", "body", "all", "missing"])
def test_damage_does_not_stop_retention(tmp_path, later, harm):
    """Seen: one damaged first record of a segment, or a missing segment, and nothing was ever removed again."""
    with open_small(tmp_path / "s", **HOURS) as store:
        fill(store, 450)
        settle(store)
        before = segments(store)
        second = store.path / "commitlog" / f"{before[1]:020d}"
        if harm == "missing":
            second.unlink()
        else:
            with second.open("r+b") as file:
                file.seek({"size": 0, "body": 200, "all": 0}[harm])
                file.write(bytes([0xFF]) * (LOG_BYTES if harm == "all" else 1))
        later(73)
        done = store.clean()
        assert done.min_physical_offset == store.stats()["wrote"] // LOG_BYTES * LOG_BYTES
        assert segments(store)[0] == done.min_physical_offset


def test_a_segment_in_front_of_damage_is_as_old_as_the_next_record_that_can_be_read(tmp_path, monkeypatch):
    """Not older than that: damage lets nothing go early."""
    with open_small(tmp_path / "s", **HOURS) as store:
        old = fill(store, 60)
        middle = clock.now_ms() + 1
        while clock.now_ms() <= middle:
            pass
        fill(store, 140, start=60)
        settle(store)
        first_young = old[-1].physical_offset // LOG_BYTES * LOG_BYTES + LOG_BYTES
        with (store.path / "commitlog" / f"{first_young:020d}").open("r+b") as file:
            file.write(b"\xff" * 4)
        stop(monkeypatch, middle + 72 * HOUR_MS)
        assert store.clean().min_physical_offset == first_young - LOG_BYTES


def test_a_segment_with_a_damaged_first_record_is_rolled(tmp_path, later):
    with open_small(tmp_path / "s", roll_interval_h=24, **HOURS) as store:
        fill(store, 5)
        settle(store)
        with (store.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.write(b"\xff" * 4)
        later(25)
        assert store._attached().cleaner._roller.run_once()


def test_appends_wait_for_no_part_of_a_clean(tmp_path, later, monkeypatch):
    """Seen: puts of 0.7 to 7 s, because segments, queues and index were cleaned under the lock that new room is made
    under. Whenever a file goes, or a queue follows, the locks that puts, reads and dispatch take are free."""
    watched = [name for name in LOCK_NAMES if name not in ("clean", "flush", "sync")]
    seen = []

    with open_small(tmp_path / "s", max_index_num=40, **HOURS) as store:
        put = fill(store, 450)
        settle(store)
        control = store._attached().control

        def watch(owner, name):
            original = getattr(owner, name)

            def watching(*given, **named):
                seen.append(name)
                assert [lock for lock in watched if control.owner(lock)] == []
                return original(*given, **named)

            monkeypatch.setattr(owner, name, watching)

        watch(files, "remove")
        watch(small_files, "move_onto")
        watch(ConsumeQueue, "offset_at")
        watch(ConsumeQueue, "remove_expired")
        later(73)
        done = store.clean()
        assert done.segments
        assert done.queue_files
        assert done.index_files
        assert {"remove", "move_onto", "offset_at", "remove_expired"} <= set(seen)
        check_cleaned(store, put)


def test_queues_follow_in_short_turns_and_others_go_on_between(tmp_path, later, monkeypatch):
    """Thousands of queues are not one turn: the lock is given back after a few milliseconds, however many are left."""
    monkeypatch.setattr(follow, "TURN_S", 0.0)  # a queue a turn
    with open_small(tmp_path / "s", **HOURS) as store:
        for n in range(300):
            store.put("T", b"x" * 300, queue_id=n % 50)
        settle(store)
        control = store._attached().control
        taken = []
        held = type(control).held

        class Counted:
            def __getattr__(self, name):
                return getattr(control, name)

            def held(self, name, **more):
                taken.append(name)
                return held(control, name, **more)

        monkeypatch.setattr(store._attached().cleaner._follower, "_control", Counted())
        later(73)
        assert store.clean().segments
        assert len(taken) >= 50
        for queue_id in range(50):
            minimum = store.get("T", queue_id, 0).min_offset
            assert minimum
            assert store.get("T", queue_id, minimum - 1).status.name == "OFFSET_TOO_SMALL"


def test_queues_follow_later_when_the_cleaner_was_killed_between(tmp_path, later):
    """Until then what leads below the log's minimum is too small for every reader."""
    hour = datetime.datetime.fromtimestamp(clock.now_ms() / 1000 + 73 * 3600).hour
    with open_small(tmp_path / "s", delete_when=f"{(hour + 12) % 24}", **HOURS) as store:
        put = fill(store)
        settle(store)
        later(73)
        cleaner = store._attached().cleaner
        assert cleaner.log.remove_expired(None, cleaner.needs, forced=False)
        cleaner.run_once()
        check_cleaned(store, put)


def test_index_files_that_lead_nowhere_go(tmp_path, later):
    with open_small(tmp_path / "s", max_index_num=40, **HOURS) as store:
        put = fill(store)
        settle(store)
        files = len(list((store.path / "index").iterdir()))
        later(73)
        assert 0 < store.clean().index_files < files
        check_cleaned(store, put)


def test_extended_units_go_with_their_queue(tmp_path, later):
    ext = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext_bytes": 1024}
    with open_small(tmp_path / "s", record_format="rocketmq", **ext, **HOURS) as store:
        for n in range(300):
            store.put("T", b"x" * 300, keys=(f"k{n}",), tags="a")
        settle(store)
        folder = store.path / "consumequeue_ext" / "T" / "0"
        before = len(list(folder.iterdir()))
        later(73)
        store.clean()
        assert 0 < len(list(folder.iterdir())) < before
        assert all(m.tags == "a" for m in everything(store)["T", 0])


def test_a_clean_goes_on_without_a_file_that_somebody_removed(tmp_path, later):
    """Seen: each clean raised OffsetError until a reader came to the file, and no other queue followed the log."""
    ext = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext_bytes": 1024}
    with open_small(tmp_path / "s", record_format="rocketmq", **ext, **HOURS) as store:
        for n in range(300):
            store.put("T", b"x" * 300, keys=(f"k{n}",), tags="a")
        settle(store)
        files = sorted((store.path / "consumequeue" / "T" / "0").iterdir())
        begin = next(m.queue_offset for m in store.scan(store.stats()["wrote"] // LOG_BYTES * LOG_BYTES))
        holder = [file for file in files if int(file.name) <= 20 * begin][-1]
    with open_small(tmp_path / "s", record_format="rocketmq", **ext, **HOURS) as store:
        holder.unlink()
        later(73)
        assert store.clean().segments
        found = everything(store)["T", 0]
        assert [m.queue_offset for m in found] == list(range(begin, 300))


def test_a_view_taken_before_stays_readable(tmp_path, later):
    with open_small(tmp_path / "s", **HOURS) as store:
        fill(store)
        settle(store)
        message = store.get("T", 0, 0, 1).messages[0]
        later(73)
        assert store.clean().segments
    assert bytes(message.body) == b"x" * 300


def test_other_processes_see_it_and_let_go(tmp_path, later):
    with open_small(tmp_path / "s", **HOURS) as store, Process() as other:
        put = fill(store)
        settle(store)
        other.do(
            "import cystore; store = cystore.open(path, **settings); store.scan().__next__(); parts = "
            "store._attached()",
            path=str(store.path),
            settings=SETTINGS,
        )
        assert other.do("sum(1 for _ in store.scan())") == len(put)
        later(73)
        store.clean()
        assert other.do("store.get('T', 0, 0).status.name") == "OFFSET_TOO_SMALL"
        other.do("parts.allocator.run_once()")
        assert "(deleted)" not in other.do(
            "'\\n'.join(x for x in open('/proc/self/maps') if 'commitlog' in x)"
        )


def test_bounded_and_goes_on(tmp_path, later, monkeypatch):
    now = datetime.datetime.fromtimestamp(clock.now_ms() / 1000 + 73 * 3600)
    with open_small(tmp_path / "s", delete_when=f"{now.hour:02d}", **HOURS) as store:
        fill(store, 600)
        settle(store)
        cleaner = store._attached().cleaner
        later(73)
        first = cleaner.run_once()
        assert first.more and first.done >= 10
        while cleaner.run_once().more:
            pass
        assert cleaner.run_once() == Progress(0)
        assert len(segments(store)) <= 2


def test_only_at_its_hour(tmp_path, later):
    hour = datetime.datetime.fromtimestamp(clock.now_ms() / 1000 + 73 * 3600).hour
    with open_small(tmp_path / "s", delete_when=f"{(hour + 5) % 24};{(hour + 9) % 24}", **HOURS) as store:
        fill(store)
        settle(store)
        later(73)
        assert store._attached().cleaner.run_once() == Progress(0)


def test_a_filling_disk_cleans_at_any_hour_but_only_what_expired(tmp_path, later, disk):
    hour = (datetime.datetime.now().hour + 12) % 24
    with open_small(tmp_path / "s", delete_when=f"{hour}", disk_max_used_space_ratio=75, **HOURS) as store:
        fill(store)
        settle(store)
        cleaner = store._attached().cleaner
        disk(88)
        assert cleaner.run_once() == Progress(0)
        later(73)
        assert cleaner.run_once().done


def test_forced_cleaning_takes_the_oldest_and_only_when_it_is_enabled(tmp_path, disk):
    with open_small(tmp_path / "s", clean_file_forcibly_enable=True, **HOURS) as store:
        put = fill(store)
        settle(store)
        before = segments(store)
        disk(86)
        store._attached().cleaner.run_once()
        assert segments(store) == before[1:]
        check_cleaned(store, put)


def test_full_disk_refuses_puts_and_space_brings_them_back(tmp_path, disk):
    with open_small(tmp_path / "s", **HOURS) as store:
        fill(store, 3)
        disk(91)
        store._attached().cleaner.run_once()
        with pytest.raises(cystore.StoreFullError, match=r"91\.0 % of the disk"):
            store.put("T", b"")
        assert store.get("T", 0, 0).messages
        disk(80)
        store.put("T", b"")  # nobody has to run for it


def test_too_few_bytes_left(tmp_path, disk):
    with open_small(tmp_path / "s", min_free_bytes=1 << 20, **HOURS) as store:
        fill(store, 3)
        disk(50, free_bytes=500_000)
        store._attached().cleaner.run_once()
        with pytest.raises(cystore.StoreFullError, match="min_free_bytes"):
            store.put("T", b"")


def test_a_small_store_rolls_and_expires(tmp_path, later):
    with open_small(tmp_path / "s", roll_interval_h=24, **HOURS) as store:
        put = fill(store, 5)
        settle(store)
        roller = store._attached().cleaner._roller
        assert not roller.run_once()
        later(25)
        assert roller.run_once()
        assert store.stats()["wrote"] == LOG_BYTES
        assert not roller.run_once()  # an empty segment is not old
        settle(store)
        check_cleaned(store, put)
        later(100)
        assert store.clean().segments == 1
        assert everything(store) == {}
        put += fill(store, 5, start=5)
        assert put[5].queue_offset == put[3].queue_offset + 1
        settle(store)
        check_cleaned(store, put)
    with open_small(tmp_path / "s", **HOURS) as store:
        check_cleaned(store, put)


def test_a_rolled_log_is_sound_for_verify(tmp_path, later):
    with open_small(tmp_path / "s") as store:
        fill(store, 5)
        later(25)
        store._attached().cleaner._roller.run_once()
        fill(store, 5, start=5)
    check_closed(tmp_path / "s", SETTINGS)


def test_wrong_hours_are_refused(tmp_path):
    for wrong in ("24", "4;x", "", "-1"):
        with pytest.raises(cystore.StoreConfigError, match="delete_when"):
            cystore.open(tmp_path / "s", delete_when=wrong)


def test_the_age_of_a_segment_that_another_cleaner_removes_meanwhile_is_unknown(tmp_path):
    """Seen: `clean` raised OffsetError "below the log's minimum offset" beside another cleaner."""
    with open_small(tmp_path / "s") as store:
        fill(store)
        parts = store._parts
        ages = Ages(parts.control, parts.commit_log)
        second = parts.commit_log.file_bytes
        assert ages.first_ms(second) is not None
        parts.control.min_physical_offset = 2 * second  # the other one has published it, and unlinks next
        assert ages.first_ms(second) is None


@pytest.mark.parametrize("begin", [None, 0])
def test_a_scan_goes_on_behind_what_is_cleaned_meanwhile(tmp_path, caplog, begin):
    """Seen: OffsetError, from each scan beside a cleaner that was faster."""
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        fill(store, 400)
        placed = [m.physical_offset for m in store.scan()]
        scan = store.scan(begin)
        first = next(scan)
        store.dispatch()
        store.flush()
        assert store.clean().segments > 3
        minimum = store.stats()["min_physical_offset"]
        rest = [m.physical_offset for m in scan]
        assert [at for at in rest if at >= minimum] == [at for at in placed if at >= minimum]
        assert len(rest) < len(placed) - 1
        assert "cleaned while it was read" in caplog.text
        assert first.physical_offset == 0
        with pytest.raises(cystore.OffsetError, match="below the log's minimum"):
            next(store.scan(0))
