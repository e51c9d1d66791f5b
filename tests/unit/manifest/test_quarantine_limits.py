"""Goal: quarantine/ is trimmed by age and size, and what damage of late needs stays. Method: a clock that is moved
on, copies of given ages, the calls that clean."""

import os

import pytest

from cystore import clock
from tests.support.clock import turn
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about files in quarantine/

HOUR_MS = 3_600_000


@pytest.fixture
def later(monkeypatch):
    """Moves the library's clock on by so many hours."""
    hours = [0.0]
    turn(monkeypatch, lambda: int(hours[0] * HOUR_MS))

    def move(by):
        hours[0] += by

    return move


def copy(path, begin, hours_ago=0.0, size=4096):
    """A copy in quarantine/, made so long ago."""
    path = path / "quarantine" / f"commitlog-{begin:020d}-{begin + size:020d}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    at_s = clock.now_ms() / 1000 - hours_ago * 3600
    os.utime(path, (at_s, at_s))
    return path


def quarantined(path):
    return sorted(int(one.name[10:30]) for one in (path / "quarantine").glob("commitlog-*"))


@pytest.mark.parametrize("call", ["clean", "clean_due"])
def test_old_copies_go_and_young_ones_stay(tmp_path, caplog, call):
    """Seen: quarantine/ was never trimmed."""
    with open_small(tmp_path, quarantine_reserved_time_h=10) as store:
        gone = copy(tmp_path, 100_000, hours_ago=11)
        copy(tmp_path, 200_000, hours_ago=9)
        other = tmp_path / "quarantine" / "notes of somebody"
        other.write_text("kept")
        os.utime(other, (0, 0))
        getattr(store, call)()
        assert quarantined(tmp_path) == [200_000] and other.exists()
        assert f"{gone}: removed" in caplog.text


def test_the_oldest_go_when_all_take_too_much(tmp_path):
    with open_small(tmp_path, quarantine_bytes_max=3 * 4096) as store:
        for number in range(6):
            copy(tmp_path, number * 100_000, hours_ago=6 - number)
        store.clean()
        assert quarantined(tmp_path) == [300_000, 400_000, 500_000]
        store.configure(quarantine_bytes_max=0)
        store.clean()
        assert quarantined(tmp_path) == []


def test_what_belongs_to_damage_found_of_late_stays(tmp_path, later):
    """Neither age nor size takes it: the copy may be older than the list, as after a second look at the same bytes."""
    with open_small(tmp_path, quarantine_reserved_time_h=10, quarantine_bytes_max=0) as store:
        manifest = store._attached().manifest
        copy(tmp_path, 8_000, hours_ago=20)
        copy(tmp_path, 100_000, hours_ago=1)
        manifest.add_damage(8_000, 8_100, "bad checksum", "")
        store.clean()
        assert quarantined(tmp_path) == [8_000]
        later(9)
        store.clean()
        assert quarantined(tmp_path) == [8_000]
        later(2)
        store.clean()
        assert quarantined(tmp_path) == []
        assert store.stats()["holes"] == [(8_000, 8_100)]


def test_no_quarantine_is_nothing_to_trim(tmp_path):
    with open_small(tmp_path) as store:
        store.clean()
        assert not (tmp_path / "quarantine").exists()


def compacted_copy(path, number, hours_ago):
    made = copy(path, 0, hours_ago)
    return made.rename(made.with_name(f"compacted-{number:020d}"))


def test_copies_of_compacted_files_are_trimmed_too(tmp_path):
    """The newest one stays for its time, whatever space it takes."""
    with open_small(tmp_path, quarantine_reserved_time_h=10, quarantine_bytes_max=1) as store:
        too_old, too_much, newest = (
            compacted_copy(tmp_path, number, hours) for number, hours in ((1, 11), (2, 9), (3, 8))
        )
        foreign = compacted_copy(tmp_path, 4, 11)
        foreign = foreign.rename(foreign.with_name("compacted-4"))
        store.clean()
        assert [one.exists() for one in (too_old, too_much, newest, foreign)] == [False, False, True, True]
        os.utime(newest, (0, 0))
        store.clean()
        assert not newest.exists()
