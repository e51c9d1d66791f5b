"""Goal: `cystore read` shows one message by its place. Method: the command beside the library on the same store."""

from __future__ import annotations

import cystore
from tests.support.cli import stores


def test_by_offset_and_by_id(command, store_path):
    stores.write(store_path, 20)
    with cystore.open(store_path, read_only=True) as store:
        message = list(store.scan())[7]
    for place in (message.physical_offset, cystore.MessageId.of(message)):
        (row,) = command.json_lines("read", store_path, place)
        assert (row["physical_offset"], row["properties"]["number"]) == (message.physical_offset, "7")


def test_where_no_record_begins_and_what_is_no_place(command, store_path):
    stores.write(store_path, 20)
    for place, why in ((1, "bad magic"), (1 << 40, "offset")):
        done = command.run("read", store_path, place)
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
    for place in ("x", "-1", "7F00"):
        done = command.run("read", store_path, place)
        assert done.returncode == 2
        assert done.stdout == ""
