"""Goal: a crash, a full disk or an error in the middle of recovery costs nothing; a second run ends where one run
would have. Method: the plan is broken off before every step and inside those that write, then recovery runs again;
real full disks."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from cystore.engine.manifest.manifest import read_damaged_ranges
from cystore.errors import StoreError, StoreFullError
from cystore.recovery.apply import Apply
from cystore.recovery.plan import plan
from cystore.recovery.scan import scan
from cystore.system.ranges import file_ranges
from tests.support.recovery_stores import (
    FILE_BYTES,
    aside,
    fingerprint,
    log_bytes,
    make_records,
    write,
)


def worst_case(path):
    """Damage below the watermark, a torn record above it, later files that hold something, entries from the future,
    an index that is ahead, a queue file of another length."""
    store = write(path, make_records(200), durable=120)
    store.flip(store.records[90])
    store.flip(store.records[100])
    store.flip(store.records[160])
    odd = store.queue_file(2, 200)
    odd.write_bytes(odd.read_bytes()[:77])
    return store


def settled(path) -> dict[str, str]:
    """The state that must be the same however often recovery was broken off: everything but copies made twice."""
    return {
        name: digest
        for name, digest in fingerprint(path).items()
        if not name.startswith(("quarantine/", "tmp/")) and name != "manifest"  # it counts its updates
    }


def planned(store):
    return plan(scan(store.path, store.config, abnormal=True))


class PowerCut(BaseException):
    pass


@pytest.fixture
def expected(tmp_path):
    store = worst_case(tmp_path / "expected")
    state = store.recover()
    return settled(store.path), state, set(aside(store.path).values())


def assert_recovers_to(store, expected) -> None:
    want, state, copies = expected
    again = store.recover()
    assert settled(store.path) == want
    assert (again.wrote, again.queues, again.dispatched) == (state.wrote, state.queues, state.dispatched)
    assert (
        again.damaged_ranges.ranges()
        == state.damaged_ranges.ranges()
        == read_damaged_ranges(store.path).ranges()
    )
    assert copies <= set(aside(store.path).values())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("done", range(40))
def test_broken_off_before_any_step(tmp_path, expected, done):
    store = worst_case(tmp_path / "s")
    chosen = planned(store)
    if done > len(chosen.actions):
        assert done > 8  # the plan has that many steps at least
        return
    Apply(store.path, type(chosen)(chosen.scan, chosen.actions[:done], chosen.damaged_ranges)).run()
    assert_recovers_to(store, expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("calls", range(0, 60, 3))
def test_broken_off_inside_a_step(tmp_path, expected, monkeypatch, calls):
    """The power goes at the n-th write, rename or unlink, half of the write done."""
    store = worst_case(tmp_path / "s")
    left = calls
    real = {name: getattr(os, name) for name in ("pwrite", "unlink", "rename", "ftruncate", "write")}

    def cut(name):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                if name == "pwrite":
                    fd, data, offset = args
                    real["pwrite"](fd, memoryview(data)[: len(data) // 2], offset)
                raise PowerCut
            left -= 1
            return real[name](*args, **kwargs)

        return call

    for name in real:
        monkeypatch.setattr(os, name, cut(name))
    try:
        store.recover()
    except PowerCut:
        pass
    monkeypatch.undo()
    shutil.rmtree(store.path / "tmp", ignore_errors=True)
    assert_recovers_to(store, expected)


def test_a_copy_that_is_there_already_is_not_made_twice(tmp_path):
    store = worst_case(tmp_path / "s")
    chosen = planned(store)
    for _ in range(3):
        Apply(store.path, type(chosen)(chosen.scan, chosen.actions[:3], chosen.damaged_ranges)).run()
    assert len(aside(store.path)) == 3


def test_another_copy_of_that_name_is_left_alone(tmp_path):
    store = worst_case(tmp_path / "s")
    bad = store.records[90]
    (store.path / "quarantine").mkdir()
    taken = store.path / "quarantine" / f"commitlog-{bad.physical_offset:020d}-{bad.end:020d}"
    taken.write_bytes(b"older")
    state = store.recover()
    assert taken.read_bytes() == b"older"
    (hole, _) = state.damaged_ranges
    assert hole.copy == taken.name + ".1"
    assert (store.path / "quarantine" / hole.copy).stat().st_size == bad.size


def test_quarantine_that_cannot_be_made_changes_nothing(tmp_path):
    store = worst_case(tmp_path / "s")
    (store.path / "quarantine").write_bytes(b"a file")
    before = fingerprint(store.path)
    with pytest.raises(StoreError, match="quarantine"):
        store.recover()
    assert {n: d for n, d in fingerprint(store.path).items() if not n.startswith("tmp/")} == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB of its own."""
    point = tmp_path / "disk"
    point.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", point], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.may_skip("mounting needs root")
def test_a_full_disk_destroys_nothing(tmp_path, small_disk):
    store = worst_case(small_disk / "s")
    expected_log = log_bytes(store.path)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    with pytest.raises(StoreFullError):
        store.recover()
    assert log_bytes(store.path) == expected_log
    filler.unlink()
    state = store.recover()
    assert len(state.damaged_ranges) == 2
    assert state.wrote == store.records[160].physical_offset


def test_zeroing_keeps_holes_in_files(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        file.seek(512 * 1024)
        file.write(b"x" * 4096)
    file_ranges.zero_range(path, 1000, 1 << 20)
    assert path.read_bytes() == bytes(1 << 20)
    assert path.stat().st_blocks * 512 < 100_000
    assert FILE_BYTES == 4096
