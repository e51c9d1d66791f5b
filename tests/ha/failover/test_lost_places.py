"""Goal: a copy of a member's directory neither ends its lease nor is elected with an old log. Method: members in this
process with a real etcd."""

from __future__ import annotations

import shutil

import pytest

import cystore
from cystore.ha.election.orders import group_of, promote
from cystore.ha.role import role_of
from tests.ha.failover.test_members import (
    LEASE_MS,
    master,
    put,
    seen,
    settings,
    until_some,
)
from tests.ha.failover.test_members import etcd as etcd
from tests.support.ha.etcd import needs_etcd
from tests.support.ha.ha_pair import until

pytestmark = needs_etcd


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
        with pytest.raises(TimeoutError):
            until_some(lambda: master(etcd), 2 * LEASE_MS / 1000)
        # The only copy that is left: an operator decides.
        with group_of(role_of(backup._attached().manifest.snapshot()), backup.settings) as group:
            promote(group, "a", 20.0)
        put(backup)
