"""Goal: pickles of an earlier release are read. Method: pickles that it made, as bytes."""

from __future__ import annotations

import pickle

import pytest

import cystore


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        (b"ccystore.result\nGetStatus\np0\n(VFOUND\np1\ntp2\nRp3\n.", cystore.GetStatus.FOUND),
        (b"ccystore._native.message\nMessage\np0\n.", cystore.Message),
        (b"ccystore._native.read.get_result\nGetResult\np0\n.", cystore.GetResult),
        (b"ccystore.stats\nQueueRange\np0\n.", cystore.QueueRange),
    ],
    ids=["status", "message", "get result", "queue range"],
)
def test_an_earlier_release_named_other_modules(stored, meant):
    assert pickle.loads(stored) is meant


def test_the_place_of_a_put_comes_back_from_a_pickle_of_an_earlier_release(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        put = store.put("T", b"x")
    earlier = pickle.dumps(put, 0).replace(b"cystore._native.record.message", b"cystore._native.message")
    assert b"cystore._native.message" in earlier
    assert pickle.loads(earlier) == put
