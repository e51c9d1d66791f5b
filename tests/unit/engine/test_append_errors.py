"""Goal: an append that cannot go on ends with the policy's error. Method: a policy that gives another segment, or whose
store is detached, in the middle of a put."""

from __future__ import annotations

import os

import pytest

import cystore
from cystore._native.memory.mapping import MappedFile
from tests.support.small_stores import open_small


def test_a_segment_that_is_mapped_for_reading_only_is_refused(tmp_path, monkeypatch):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x")
        appender = store._parts.appender
        path = store._parts.commit_log.files.get(0).path
        with open(path, "rb") as file:
            segment = MappedFile.of(file.fileno(), path, 0, os.path.getsize(path), writable=False)
        monkeypatch.setattr(appender.policy, "segment_at", lambda at: segment)
        appender.forget_segment()
        with pytest.raises(cystore.StoreError, match="mapped for reading only") as refused:
            store.put("T", b"y")
        assert refused.value.path == path


def test_a_put_whose_store_is_closed_meanwhile_says_so(tmp_path, monkeypatch):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x")
        appender = store._parts.appender
        segment = store._parts.commit_log.files.get(0)

        def closes(at):
            appender.detach()
            return segment

        monkeypatch.setattr(appender.policy, "segment_at", closes)
        appender.forget_segment()
        with pytest.raises(cystore.StoreClosedError, match="closed meanwhile") as refused:
            store.put("T", b"y")
        assert refused.value.path == store.path
