"""Goal: `cystore transactions` lists what is open and ends what it is told to, and nothing else. Method: the command
beside the library."""

from __future__ import annotations

import cystore


def test_transactions_are_listed_and_ended(command, store_path):
    with cystore.open(store_path) as store:
        one, two, three = (store.begin("orders", b"%d" % number) for number in range(3))
    assert [row["id"] for row in command.json_lines("transactions", store_path)] == [one.id, two.id, three.id]
    assert three.id in command.run("transactions", store_path).stdout
    old = command.run("transactions", store_path, "--older-than-ms", "3600000")
    assert (old.returncode, old.stdout, old.stderr) == (1, "", "cystore: no transaction is open\n")
    (place,) = command.json_lines("transactions", store_path, "--commit", one.id)
    assert place["queue_offset"] == 0
    assert command.run("transactions", store_path, "--rollback", two.id).returncode == 0
    again = command.run("transactions", store_path, "--commit", two.id)
    assert again.returncode == 2
    assert f"transaction {two.id}: it was rolled back" in again.stderr
    with cystore.open(store_path, read_only=True) as store:
        assert store.open_transactions() == [three]
        assert [bytes(message.body) for message in store.get("orders", 0, 0).messages] == [b"0"]


def test_an_empty_id_is_an_error(command, store_path):
    """Seen: it listed the transactions, with exit code 0: a script with an empty variable took them for ended."""
    with cystore.open(store_path) as store:
        store.begin("orders", b"one")
    for end in ("--commit", "--rollback"):
        done = command.run("transactions", store_path, end, "")
        assert (done.returncode, done.stdout) == (2, "")
        assert "the store knows no open transaction of this id" in done.stderr
