"""Goal: a position is acknowledged when each member that may be elected has it, at each moment of a change of the set.
Method: the set alone, with reports and answers in every order."""

from __future__ import annotations

from cystore.ha.epochs.in_sync import InSync

LAG_S = 3.0


def made(*names: str, needed: int = 1) -> InSync:
    members = InSync("m", frozenset({"m", *names}), LAG_S, needed)
    members.begin(0.0)
    return members


def test_the_slowest_member_decides():
    members = made("a", "b")
    assert members.acknowledged(50) == -1  # nobody reported
    members.reported({"a": 30, "b": 40}, 60, 1.0)
    assert members.acknowledged(50) == 30
    assert members.acknowledged(20) == 20
    members.reported({"a": 30}, 60, 2.0)  # b is away, and has what it had
    assert members.acknowledged(50) == 30


def test_the_own_disk_alone_acknowledges_nothing_before_the_slowest_member_reports():
    members = made("a", "b")
    assert members.awaits_reports(0)  # nobody reported
    members.reported({"a": 30, "b": 40}, 60, 1.0)
    assert members.awaits_reports(30) and members.acknowledged(30) == members.acknowledged(60)
    assert not members.awaits_reports(29)
    members.pending = frozenset({"m", "a", "b", "c"})
    assert members.awaits_reports(29)
    assert not made().awaits_reports(60)


def test_a_slave_that_is_no_member_does_not_count():
    members = made()
    members.reported({"x": 5}, 60, 1.0)
    assert members.acknowledged(50) == 50


def test_a_member_that_is_to_come_acknowledges_before_etcd_knows():
    members = made()
    members.reported({"a": 60}, 60, 1.0)
    assert members.wanted({"a": 60}, 60, 1.0) == {"m", "a"}
    members.pending = frozenset({"m", "a"})
    assert members.acknowledged(70) == 60
    assert members.wanted({"a": 60}, 60, 1.0) is None  # one question at a time


def test_a_member_that_is_to_go_acknowledges_until_etcd_has_said_so():
    members = made("a")
    members.reported({"a": 10}, 60, 1.0)
    assert members.wanted({"a": 10}, 10, LAG_S - 0.1) is None
    assert members.wanted({"a": 10}, 10, LAG_S + 0.1) == {"m"}
    members.pending = frozenset({"m"})
    assert members.acknowledged(60) == 10
    members.committed, members.pending = frozenset({"m"}), None
    assert members.acknowledged(60) == 60


def test_a_member_behind_what_was_acknowledged_does_not_come():
    members = made()
    members.reported({"a": 50}, 50, 1.0)
    assert members.wanted({"a": 50}, 51, 1.0) is None
    assert members.wanted({"a": 51}, 51, 1.0) == {"m", "a"}


def test_a_member_that_always_has_what_was_there_a_moment_ago_stays():
    members = made("a")
    for tick in range(1, 200):
        members.reported({"a": (tick - 1) * 10}, tick * 10, tick * 0.1)
        assert members.wanted({"a": (tick - 1) * 10}, 0, tick * 0.1) is None


def test_a_member_that_falls_ever_further_behind_goes():
    members = made("a")
    for tick in range(1, 1000):
        members.reported({"a": tick}, tick * 10, tick * 0.1)
        if members.wanted({"a": tick}, 0, tick * 0.1) == {"m"}:
            break
    else:
        raise AssertionError("it stays for ever")


def test_too_few_members_acknowledge_nothing():
    members = made("a", needed=2)
    members.reported({"a": 30}, 60, 1.0)
    assert members.acknowledged(50) == 30
    members.committed = frozenset({"m"})
    assert members.acknowledged(50) == -1


def test_a_member_that_lost_what_it_had_acknowledged_goes_at_once():
    members = made("a")
    members.reported({"a": 60}, 60, 1.0)
    assert members.wanted({"a": 60}, 60, 1.0) is None
    members.reported({"a": 40}, 60, 1.1)
    assert members.wanted({"a": 40}, 60, 1.1) == {"m"}


def test_what_earlier_epochs_wrote_is_confirmed_by_fewer_members_than_a_put_needs():
    members = made(needed=2)
    assert members.acknowledged(90) == -1
    assert members.confirmed(90, 60) == 60 and members.confirmed(50, 60) == 50
    members = made("a", needed=2)
    assert members.confirmed(90, 60) == -1  # nobody knows what a has
    members.reported({"a": 80}, 90, 1.0)
    assert members.confirmed(90, 60) == members.acknowledged(90) == 80
