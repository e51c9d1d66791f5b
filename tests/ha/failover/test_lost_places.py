"""Goal: a copy of a member's directory neither ends its lease nor is elected with an old log, and a master that can
append nothing gives the role to a member that can. Method: members in processes of this host with a real etcd; a full
disk is one that says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import cystore
from cystore.engine.manifest.manifest import read_facts
from cystore.ha.election.orders import group_of, promote
from cystore.ha.role import is_copied, keep_place, role_of
from tests.ha.failover.test_members import (
    LEASE_MS,
    OPENED,
    TRIED,
    in_sync,
    master,
    put,
    seen,
    settings,
    until_some,
)
from tests.ha.failover.test_members import etcd as etcd
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import until
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

pytestmark = needs_etcd
FULL = "import cystore.engine.log.disk_space as place; kept = place.space_of; place.space_of = lambda root: (100.0, 0)"
FREE = "place.space_of = kept"


def never_for_two_leases(found: Callable[[], object]) -> None:
    with pytest.raises(TimeoutError):
        until_some(found, 2 * LEASE_MS / 1000)


@contextmanager
def master_alone(tmp_path: Path, etcd: EtcdServer) -> Iterator[Process]:
    """The process of member a, which takes puts."""
    with Process() as a:
        a.do(OPENED, path=str(tmp_path / "a"), settings=settings(etcd, "a"))
        until(lambda: a.do(TRIED) == "")
        yield a


@contextmanager
def slave_of_it(tmp_path: Path, etcd: EtcdServer) -> Iterator[Process]:
    """The process of member b, in sync with member a."""
    with Process() as b:
        b.do(OPENED, path=str(tmp_path / "b"), settings=settings(etcd, "b"))
        until(lambda: in_sync(etcd) == {"a", "b"})
        yield b


def test_a_copy_of_a_member_is_no_candidate_and_ends_no_lease(tmp_path, etcd, caplog):
    a_settings = settings(etcd, "a")
    with cystore.open(tmp_path / "a", **a_settings) as a:
        put(a, b"in the backup")
    until(lambda: not master(etcd))
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    with cystore.open(tmp_path / "a", **a_settings) as a:
        put(a, b"not in the backup")
        epoch = seen(etcd).master.epoch
        copy_settings = settings(etcd, "a")
        with cystore.open(tmp_path / "backup", **copy_settings):
            until(lambda: "has this one's name" in caplog.text)
            put(a)
        with cystore.open(tmp_path / "backup", **copy_settings):
            put(a)
        assert seen(etcd).master.epoch == epoch
    until(lambda: not master(etcd))
    with cystore.open(tmp_path / "backup", **copy_settings) as backup:
        never_for_two_leases(lambda: master(etcd))
        # The only copy that is left: an operator decides.
        with group_of(role_of(backup._attached().manifest.snapshot()), backup.settings) as group:
            promote(group, "a", 20.0)
        put(backup)


def test_a_backup_with_the_inode_of_the_removed_member_is_a_copy(tmp_path, monkeypatch):
    """As ext4 gives it to the next directory."""
    root = tmp_path / "a"
    monkeypatch.setattr("cystore.ha.role.os", SimpleNamespace(stat=lambda path: SimpleNamespace(st_ino=7)))
    with cystore.open(root, **SETTINGS) as a:
        keep_place(a._attached().manifest, root)
    assert not is_copied(root, read_facts(root)[0])
    root.rename(tmp_path / "moved")
    assert not is_copied(tmp_path / "moved", read_facts(tmp_path / "moved")[0])
    shutil.copytree(tmp_path / "moved", root)
    assert is_copied(root, read_facts(root)[0])


def test_a_master_with_a_full_disk_gives_the_role_to_a_member_with_space(tmp_path, etcd):
    with master_alone(tmp_path, etcd) as a, slave_of_it(tmp_path, etcd) as b:
        a.do(FULL)
        until(lambda: master(etcd) == "b")
        until(lambda: b.do(TRIED) == "")
        a.do(FREE)
        until(lambda: in_sync(etcd) == {"a", "b"})


@pytest.mark.slow
def test_a_master_with_a_full_disk_stays_if_nobody_has_its_log(tmp_path, etcd):
    with master_alone(tmp_path, etcd) as a:
        epoch = seen(etcd).master.epoch
        a.do(FULL)
        until(lambda: a.do(TRIED) == "StoreFullError")
        never_for_two_leases(lambda: master(etcd) != "a")
        a.do(FREE)
        until(lambda: a.do(TRIED) == "")
        assert seen(etcd).master.epoch == epoch


@pytest.mark.slow
def test_members_with_full_disks_do_not_pass_the_role_around(tmp_path, etcd):
    """Seen: members whose disks became full together, as equal disks with equal logs do, had a new master in each
    lease."""
    with master_alone(tmp_path, etcd) as a, slave_of_it(tmp_path, etcd) as b:
        b.do(FULL)
        until(lambda: seen(etcd).full == {"b"})
        epoch = seen(etcd).master.epoch
        a.do(FULL)
        until(lambda: seen(etcd).full == {"a", "b"})
        never_for_two_leases(lambda: not master(etcd) or seen(etcd).master.epoch != epoch)
        b.do(FREE)
        until(lambda: master(etcd) == "b")
        until(lambda: b.do(TRIED) == "")
        a.do(FREE)
        until(lambda: in_sync(etcd) == {"a", "b"} and not seen(etcd).full)
