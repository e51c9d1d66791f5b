"""Goal: `cystore filters` shows and changes what the library does. Method: the commands beside the library."""

from __future__ import annotations

import cystore

EXTENDED = {"enable_consume_queue_ext": True, "services": "none"}


def test_filters_are_added_listed_and_removed(command, tmp_path):
    path = tmp_path / "s"
    with cystore.open(path, **EXTENDED) as store:  # the commands work beside the store's users
        empty = command.run("filters", path)
        assert (empty.returncode, empty.stdout) == (1, "")
        added = command.json_lines("filters", "add", path, "billing", "orders", "price > 90")
        assert added == [{"group": "billing", "topic": "orders", "expression": "price > 90", "born": 0}]
        assert [row._asdict() for row in store.filters] == added == command.json_lines("filters", path)
        assert "price > 90" in command.run("filters", path).stdout
        store.put("orders", b"", properties={"price": "91"})
        assert (
            "are marked from 0 of the log on"
            in command.run("filters", "add", path, "billing", "orders", "price > 90").stdout
        )
        assert command.run("filters", "remove", path, "billing", "orders").returncode == 0
        again = command.run("filters", "remove", path, "billing", "orders")
        assert (again.returncode, again.stderr) == (1, "cystore: billing has no filter for orders\n")
        assert store.filters.list() == []


def test_what_is_refused(command, tmp_path):
    with cystore.open(tmp_path / "plain", services="none"):
        pass
    done = command.run("filters", "add", tmp_path / "plain", "billing", "orders", "price > 90")
    assert done.returncode == 2 and "enable_consume_queue_ext=True" in done.stderr
    with cystore.open(tmp_path / "s", **EXTENDED):
        pass
    done = command.run("filters", "add", tmp_path / "s", "billing", "orders", "price >")
    assert done.returncode == 2 and "position 7" in done.stderr
    assert command.run("filters", "add", tmp_path / "s", "no@group", "orders", "TRUE").returncode == 2
