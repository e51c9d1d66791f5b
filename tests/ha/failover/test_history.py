"""Goal: two logs are cut where they part, and nowhere else. Method: histories by hand, and random ones beside a
comparison of each byte's epoch."""

from __future__ import annotations

import pytest

import cystore
from cystore.ha.epochs.history import EPOCHS_MAX, Begin, History, history_of, parse_history
from cystore.ha.epochs.membership import Membership
from cystore.ha.link.wire import Joined
from tests.support.ha.ha_pair import fill, wrote
from tests.support.small_stores import open_small


def history(*begins: tuple[int, int]) -> History:
    return History("log", tuple(Begin(*one) for one in begins))


@pytest.mark.parametrize(
    ("mine", "end", "masters", "masters_end", "common"),
    [
        (history((1, 0)), 100, history((1, 0)), 100, 100),
        (history((1, 0)), 100, history((1, 0)), 80, 80),
        (history((1, 0)), 100, history((1, 0), (5, 70)), 200, 70),
        (history((1, 0), (3, 60)), 100, history((1, 0), (5, 70)), 200, 60),
        (history((1, 0), (3, 60)), 100, history((1, 0), (3, 60), (5, 100)), 100, 100),
        (history((1, 0), (3, 100)), 100, history((1, 0), (5, 70)), 90, 70),
        (history((2, 0)), 100, history((1, 0)), 100, -1),
    ],
)
def test_the_common_part(mine, end, masters, masters_end, common):
    assert mine.common_end(end, masters, masters_end) == common


def test_random_histories_beside_every_byte(rng):
    """A group of logs with one master at a time, each of which may lose its end to the next one."""
    for _ in range(300):
        logs: list[tuple[list[int], History]] = [([], history()) for _ in range(3)]
        for epoch in range(1, rng.randrange(2, 9)):
            chosen = rng.randrange(3)
            bytes_, known = logs[chosen]
            known = known.begun(epoch, len(bytes_))
            bytes_ = bytes_ + [epoch] * rng.randrange(0, 5)
            logs[chosen] = (bytes_, known)
            for other in range(3):
                if other != chosen and rng.random() < 0.5:  # it follows for a while
                    behind, theirs = logs[other]
                    common = max(theirs.common_end(len(behind), known, len(bytes_)), 0) if behind else 0
                    got = rng.randrange(common, len(bytes_) + 1)
                    logs[other] = (bytes_[:got], known)
        for a, mine in logs:
            for b, theirs in logs:
                same = next(
                    (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
                )
                assert max(mine.common_end(len(a), theirs, len(b)), 0) == same


def test_an_epoch_is_never_used_again():
    with pytest.raises(cystore.ReplicationError, match="not newer"):
        history((4, 10)).begun(4, 20)


def test_old_epochs_are_forgotten():
    known = History("log")
    for epoch in range(1, 2 * EPOCHS_MAX):
        known = known.begun(epoch, epoch * 10)
    assert len(known.begins) == EPOCHS_MAX and known.last_epoch == 2 * EPOCHS_MAX - 1
    assert parse_history(known.as_json()) == known


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"log_id": 1, "begins": []},
        {"log_id": "x", "begins": [[1]]},
        {"log_id": "x", "begins": [[1, -1]]},
        {"log_id": "x", "begins": [[2, 0], [1, 5]]},
        {"log_id": "x", "begins": [[1, True]]},
        {"log_id": "x", "begins": [[1, 1 << 70]]},
        {"log_id": "x", "begins": [[i, i] for i in range(EPOCHS_MAX + 1)]},
    ],
)
def test_nonsense_is_no_history(found):
    with pytest.raises(cystore.ReplicationError):
        parse_history(found)


def test_a_put_without_a_lease_is_refused_before_it_is_appended(tmp_path):
    """Of every kind, in the kernel; puts that are not replicated are taken."""
    with open_small(tmp_path / "store") as store:
        control = store._attached().control
        control.epoch, control.in_sync, control.in_sync_needed = 7, 1, 1
        end = wrote(store)
        for put in (
            lambda: store.put("T", b"x", flush="replicated"),
            lambda: store.put("T", b"x", keys=("k",), properties={"a": "b"}, flush="replicated"),
            lambda: store.put_many([cystore.Message(topic="T", body=b"x")], flush="replicated"),
        ):
            with pytest.raises(cystore.NotAcknowledgingError, match="lease of epoch 7"):
                put()
        assert wrote(store) == end
        control.lease_until_ms = 1 << 60
        control.in_sync_needed = 2
        with pytest.raises(cystore.NotAcknowledgingError, match="1 of 2 members"):
            store.put("T", b"x", flush="replicated")
        assert wrote(store) == end
        fill(store, 3)
        control.in_sync_needed = 1
        control.raise_replicated(1 << 40)
        assert store.put("T", b"x", flush="replicated").physical_offset >= end


def test_a_store_that_is_new_in_its_group_is_no_candidate_before_it_has_caught_up(tmp_path):
    """The in-sync set may have its name: of a store that was there before, and whose disk is gone."""
    with open_small(tmp_path / "store") as store:
        manifest = store._attached().manifest
        for doubtful in (True, False):  # new, then known
            membership = Membership(manifest, "g", "a", 5)
            membership.joined(Joined(5, history((5, 0)).as_json()), 0, 0, 1000)
            membership.follows()
            assert history_of(manifest.snapshot()).doubtful is doubtful
            membership.caught_up()
            assert not history_of(manifest.snapshot()).doubtful
