"""Goal: what is opened is closed, what is made is freed. Method: in a fresh process, do the same many times and count
descriptors, mappings, threads and Python's memory blocks before and after: they must not grow with the number of
times."""

from __future__ import annotations

import pytest

from tests.support.isolated import fresh

ROUNDS = 60
# Caches fill up for a while, so a few blocks more are no leak; one block kept each round is.
SLACK = ROUNDS


def grown(path: str, what: str, rounds: int) -> dict[str, int]:
    """How many more there are of each resource after `rounds` rounds than after a first few."""
    import gc
    import os
    import sys
    import threading

    import cystore

    def open_and_close() -> None:
        cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20).close()

    def refuse() -> None:
        try:
            cystore.open(path, mapped_file_size_commit_log_bytes=-1)
        except cystore.StoreError:
            return
        raise AssertionError("a negative size was taken")

    store = None

    def use() -> None:
        assert store is not None
        store.put("T", b"body", keys=("k", "l"), tags="t", properties={"a": "b"})
        store.put_many([cystore.Message(topic="T", body=bytearray(8), keys=("k",)) for _ in range(3)])
        found = store.get("T", 0, 0, 8)
        assert found.messages[0].body == b"body"
        assert found.messages[0].properties["a"] == "b"
        store.get("T", 0, 0, 8, raw=True)
        store.get("T", 0, 0, 8, tags="t || u")
        assert store.query("T", "k", 4)
        assert store.topics()
        store.stats()
        store.offset_by_time("T", 0, found.messages[0].store_timestamp_ms)
        next(iter(store.scan()))

    def fail() -> None:
        assert store is not None
        bad = [("", b""), ("T", 5), ("T" * 128, b""), (None, b"")]
        for topic, body in bad:
            try:
                store.put(topic, body)
            except cystore.StoreError:
                continue
            raise AssertionError(f"{topic!r} {body!r} was taken")

    def counts() -> dict[str, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            mappings = sum(path in line for line in maps)
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mappings": mappings,
            "threads": threading.active_count(),
            "blocks": sys.getallocatedblocks(),
        }

    work = {"open_and_close": open_and_close, "refuse": refuse, "use": use, "fail": fail}[what]
    if what in ("use", "fail"):
        store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20, services=())
    # Caches of the interpreter fill. The mapping of a queue's file is split once, where its written part ends.
    for _ in range(3 * rounds):
        work()
    before = counts()
    for _ in range(rounds):
        work()
    after = counts()
    if store is not None:
        store.close()
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize("what", ["open_and_close", "refuse", "use", "fail"])
def test_nothing_grows(what, tmp_path):
    growth = fresh.run(grown, str(tmp_path / "store"), what, ROUNDS)
    assert growth["descriptors"] == 0
    assert growth["threads"] == 0
    assert growth["mappings"] <= 0
    assert growth["blocks"] < SLACK


def views_after_close(path: str) -> list:
    """The body of a view held over the close, and whether mappings of the store are left with and without it."""
    import gc

    import cystore

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any(path in line and "commitlog" in line for line in maps)

    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"a body that outlives its store")
    body = store.get("T", 0, 0).messages[0].body
    store.close()
    held, text = mapped(), bytes(body).decode()
    del body, store
    gc.collect()
    return [text, held, mapped()]


def test_a_view_keeps_its_segment_mapped_and_nothing_else_does(tmp_path):
    assert fresh.run(views_after_close, str(tmp_path / "store")) == [
        "a body that outlives its store",
        True,
        False,
    ]


def import_side_effects() -> list:
    """The threads and descriptors that an import makes."""
    import os
    import threading

    before = set(os.listdir("/proc/self/fd"))
    import cystore

    return [cystore.__name__, threading.active_count(), len(set(os.listdir("/proc/self/fd")) - before)]


def test_import_starts_nothing():
    assert fresh.run(import_side_effects) == ["cystore", 1, 0]
