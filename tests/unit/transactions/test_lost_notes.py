"""Goal: facts before notes: what the log says about a transaction counts when the note of its end is gone, and what
nobody can know is set aside, never published. One transaction that cannot be ended does not stop the others. Method:
notes that are damaged, removed as an earlier version removed them, or were never put."""

from __future__ import annotations

import pytest

import cystore
from cystore._native.record.message import due_message
from cystore.cli.program import main
from cystore.layout import HALF_TOPIC, OP_TOPIC, OWN_TOPICS
from cystore.transactions.half import committed_of
from cystore.transactions.transactions import Transactions
from tests.support.small_stores import put_own

AT_ONCE = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 0, "services": "none"}
DAY_MS = 86_400_000


def opened(path, **more):
    return cystore.open(path, **{**AT_ONCE, **more})


def bodies(store, topic="orders"):
    return [bytes(message.body) for message in store.scan() if message.topic == topic]


def ended(path, outcomes):
    """A store with these transactions, in order: (body, outcome or None). Returns their handles."""
    with opened(path) as store:
        halves = []
        for body, outcome in outcomes:
            halves.append(store.begin("orders", body))
            if outcome is not None:
                getattr(store, outcome)(halves[-1])
    return halves


def damage(path, places):
    with open(path / "commitlog" / f"{0:020}", "r+b") as log:
        for at, size in places:
            log.seek(at + size // 2)
            byte = log.read(1)[0]
            log.seek(at + size // 2)
            log.write(bytes([byte ^ 0x40]))


def notes(path):
    with opened(path, read_only=True) as store:
        return [(note.physical_offset, note.size_bytes) for note in store.scan() if note.topic == OP_TOPIC]


def remove_notes(path, monkeypatch):
    """As the deletion of the topic in an earlier version."""
    with monkeypatch.context() as patch, opened(path) as store:
        patch.delitem(OWN_TOPICS, OP_TOPIC)
        assert store.delete_topic(OP_TOPIC).queues == 1


@pytest.mark.parametrize("behind", [False, True], ids=["at the end", "before others"])
def test_a_damaged_note_publishes_nothing_and_takes_nothing_back(tmp_path, behind):
    """Seen: a committed message came twice, a rolled-back one was published."""
    path = tmp_path / "s"
    halves = ended(path, [(b"paid", "commit"), (b"refused", "rollback")])
    places = notes(path)
    if behind:
        ended(path, [(b"more", "commit")])
    damage(path, places)
    wanted = [b"paid", b"more"] if behind else [b"paid"]
    for _ in range(2):
        with opened(path) as store:
            assert [half.id for half in store.open_transactions()] == [halves[1].id]
            (reason,) = store.set_aside_transactions().values()
            assert "note" in reason
            for _ in range(3):
                assert store.check_transactions(lambda half, message: pytest.fail("asked")) == (0, 0, 0, 0, 0)
            assert bodies(store) == wanted
            with pytest.raises(cystore.TransactionError):
                store.commit(halves[0])
    with opened(path) as store:
        young = store.begin("orders", b"young")
    with opened(path) as store:
        assert list(map(str, store.set_aside_transactions())) == [str(store.open_transactions()[0])]
        assert store.check_transactions(lambda half, message: "commit").committed == 1
        assert bodies(store) == [*wanted, b"young"]
        store.rollback(halves[1])
        assert store.open_transactions() == []
        assert young.id != halves[1].id
    with opened(path) as store:
        assert store.open_transactions() == [] and bodies(store) == [*wanted, b"young"]


def test_a_damaged_note_leaves_others_open(tmp_path):
    """The index still names the transaction of a damaged note, so older open ones are not in doubt."""
    path = tmp_path / "s"
    with opened(path) as store:
        unended = store.begin("orders", b"open")
        store.rollback(gone := store.begin("orders", b"refused"))
        store.commit(store.begin("orders", b"paid"))
        place = next((m.physical_offset, m.size_bytes) for m in store.scan() if m.topic == OP_TOPIC)
        damage(path, [place])
        table = Transactions(store)._table()
        table.__init__(table._get, 0, 0, table._facts)  # as a new process begins it
        assert list(store.set_aside_transactions()) == [gone]
        assert store.open_transactions() == [unended, gone]
        assert store.check_transactions(lambda half, message: "commit").committed == 1
        assert [bytes(message.body) for message in store.get("orders", 0, 0).messages] == [b"paid", b"open"]


def test_notes_that_an_earlier_version_deleted_open_nothing_again(tmp_path, monkeypatch):
    path = tmp_path / "s"
    halves = ended(path, [(b"paid", "commit"), (b"refused", "rollback"), (b"open", None)])
    remove_notes(path, monkeypatch)
    with opened(path) as store:
        assert [half.id for half in store.open_transactions()] == [halves[2].id]
        assert store.set_aside_transactions() == {}  # the records of the notes are in the log
        store.check_transactions(lambda half, message: "commit")
        assert bodies(store) == [b"paid", b"open"]
    with opened(path) as store:
        assert store.open_transactions() == []


def test_deleted_notes_that_no_index_names_put_older_half_messages_in_doubt(tmp_path, monkeypatch):
    path, plain = tmp_path / "s", {"message_index_enable": False}
    with opened(path, **plain) as store:
        store.rollback(store.begin("orders", b"refused"))
    with monkeypatch.context() as patch, opened(path, **plain) as store:
        patch.delitem(OWN_TOPICS, OP_TOPIC)
        store.delete_topic(OP_TOPIC)
    with opened(path, **plain) as store:
        store.begin("orders", b"young")
        assert [bytes(store.read(half.physical_offset).body) for half in store.set_aside_transactions()] == [
            b"refused"
        ]
        assert store.check_transactions(lambda half, message: "commit").committed == 1
        assert bodies(store) == [b"young"]


def test_a_message_without_its_note_is_not_committed_again(tmp_path):
    """RocketMQ puts the message and the note one after the other, and may be killed in between."""
    path = tmp_path / "s"
    with opened(path) as store:
        half = store.begin("orders", b"paid")
        put_own(store, committed_of(store.read(half.physical_offset), half))
        asked = store.begin("orders", b"asked")
        stored = store.read(asked.physical_offset)
        put_own(
            store,
            due_message(stored, HALF_TOPIC, 0, stored.properties_bytes + b"\x02TRANSACTION_CHECK_TIMES\x011"),
        )
    with opened(path) as store:
        (left,) = store.open_transactions()
        assert left.queue_offset == 2
        assert store.check_transactions(lambda half, message: "commit").committed == 1
        assert bodies(store) == [b"paid", b"asked"]


def test_the_command_shows_what_is_set_aside_and_ends_it(tmp_path, capsys):
    path = tmp_path / "s"
    halves = ended(path, [(b"refused", "rollback"), (b"paid", "commit")])
    damage(path, notes(path)[:1])
    assert main(["transactions", str(path)]) == 0
    assert "note" in capsys.readouterr().out
    assert main(["transactions", str(path), "--json"]) == 0
    assert '"set_aside"' in capsys.readouterr().out
    with opened(path) as store:
        from cystore.metrics import metrics

        found = {one.name: one.samples for one in metrics(store)}
        assert found["cystore_transactions_set_aside"] == found["cystore_transactions_open"] == [({}, 1)]
    assert main(["transactions", str(path), "--rollback", halves[0].id]) == 0
    assert main(["transactions", str(path)]) == 1


# ------------------------------------------------------------------------------------------ one of several


def filled(store):
    """Takes all queue slots that are left."""
    for number in range(1000):
        try:
            store.put(f"filler-{number}", b"x")
        except cystore.QueuesFullError:
            return
    raise AssertionError("the store takes any number of queues")


def test_a_transaction_for_a_queue_that_cannot_be_made_stops_no_other(tmp_path):
    """Seen: each check ended with StoreFullError at the first such transaction."""
    path = tmp_path / "s"
    with opened(path, max_queues=12, transaction_check_interval_ms=DAY_MS) as store:
        store.put("old", b"first")
        stuck = store.begin("new", b"stuck")
        filled(store)
        store.begin("old", b"open")
        asked = []
        checked = store.check_transactions(lambda half, message: asked.append(half.id) or "commit")
        assert (checked.committed, checked.failed) == (1, 1)
        assert "max_queues" in store.set_aside_transactions()[stuck]
        assert store.check_transactions(lambda half, message: pytest.fail("asked too early")).failed == 0
        assert bodies(store, "old") == [b"first", b"open"] and len(asked) == 2
        store.rollback(stuck)
        assert store.open_transactions() == []


def test_a_transaction_that_could_not_be_ended_is_not_begun(tmp_path):
    with opened(tmp_path / "s", max_queues=12) as store:
        store.put("old", b"first")
        filled(store)
        with pytest.raises(cystore.QueuesFullError):
            store.begin("old", b"never")
        assert HALF_TOPIC not in store.topics()


def test_a_wrong_answer_stops_no_other(tmp_path):
    """Seen: the transactions behind it were never asked about."""
    with opened(tmp_path / "s") as store:
        wrong = store.begin("orders", b"wrong")
        store.begin("orders", b"right")
        with pytest.raises(cystore.TransactionError, match=f"not 'yes' for transaction {wrong.id}"):
            store.check_transactions(lambda half, message: "yes" if half == wrong else "commit")
        assert store.open_transactions() == [wrong] and bodies(store) == [b"right"]


@pytest.mark.parametrize("room", [0, 1, 10, 25, 26])
def test_a_half_message_without_room_for_a_check_is_asked_about_once_in_an_interval(tmp_path, room):
    """Seen: it was asked about at every check."""
    path = tmp_path / "s"
    with opened(path, transaction_check_interval_ms=DAY_MS) as store:
        bare = len(store.read(store.begin("orders", b"full").physical_offset).properties_bytes)
        store.rollback(store.open_transactions()[0])
        store.begin("orders", b"full", properties={"a": "x" * (32_767 - bare - room - 3)})
        assert len(store.read(store.open_transactions()[0].physical_offset).properties_bytes) == 32_767 - room
        asked = []
        for _ in range(5):
            store.check_transactions(lambda half, message: asked.append(half.id))
        assert len(asked) == 1
    with opened(path, transaction_check_interval_ms=DAY_MS) as store:
        store.check_transactions(lambda half, message: pytest.fail("asked too early"))
        (half,) = store.open_transactions()
        store.commit(half)
        assert bodies(store) == [b"full"]
