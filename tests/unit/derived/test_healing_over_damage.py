"""Goal: a queue heals although records of its own are damaged, too. Method: under a live store, damage in the log and
in one queue's files; every message that was not hit is read, by who healed the queue, by another process and by a
read-only one."""

from __future__ import annotations

import pytest

import cystore
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, open_small

COUNT = 250  # entries: two whole files of 100, and half of one
READ = """
found, offset = {}, 0
while offset < COUNT:
    try:
        result = store.get("T", 0, offset)
    except cystore.CorruptRecordError:
        offset += 1
        continue
    found.update((m.queue_offset, bytes(m.body).decode()) for m in result.messages)
    offset = max(result.next_offset, offset + 1)
"""


def strike(root, put, what):
    file = root / "commitlog" / f"{put.physical_offset - put.physical_offset % LOG_BYTES:020d}"
    if what == "file":
        file.unlink(missing_ok=True)
        return
    with file.open("r+b") as log:
        log.seek(put.physical_offset % LOG_BYTES + {"length": 0, "magic": 4, "body": 88}[what])
        log.write(b"\x55\x66")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gone", [1, 3])
@pytest.mark.parametrize("what", ["length", "magic", "body", "file"])
def test_a_queue_heals_over_damaged_records(tmp_path, what, gone):
    """Seen: the entries behind the first damaged record were not written again; `get` of intact messages raised
    CorruptRecordError until the next open."""
    root = tmp_path / "s"
    with open_small(root) as store, Process() as other, Process() as reader:
        puts = [store.put(topic, b"%d" % n) for n in range(COUNT) for topic in "TU"][::2]
        store.dispatch()
        store.flush()
        for n in (40, 41, 160):
            strike(root, puts[n], what)
        lost = {40, 41, 160}
        if what == "file":
            bases = {puts[n].physical_offset // LOG_BYTES for n in lost}
            lost = {n for n, put in enumerate(puts) if put.physical_offset // LOG_BYTES in bases}
        for file in sorted((root / "consumequeue" / "T" / "0").iterdir())[:gone]:
            file.unlink()
        expected = {n: f"{n}" for n in range(COUNT) if n not in lost}
        reader.do("import cystore; store = cystore.open(path, read_only=True)", path=str(root))
        other.do("import cystore; store = cystore.open(path, services=())", path=str(root))
        for process in (reader, other):
            found = process.do(f"{READ}\nfound", COUNT=COUNT)
            assert {int(n): body for n, body in found.items()} == expected
        names = {"store": store, "cystore": cystore, "COUNT": COUNT}
        exec(READ, names)
        still_mapped = (
            names["found"].items() - expected.items()
        )  # of a file that is gone, in who mapped it before
        assert expected.items() <= names["found"].items()
        assert not still_mapped or what == "file"
        assert all(body == f"{n}" for n, body in still_mapped)
    with open_small(root) as store:
        assert {message.queue_offset for message in store.scan() if message.topic == "T"} == set(expected)
