"""Goal: a log in two folders is one log for cystore and for RocketMQ 4.9.3 (MultiPathMappedFileQueue). Method: one
writes it, the other one reads it and appends to it, in turn; each looks where the segments are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cystore
from cystore.engine.files.log_folders import chosen
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.cystore_side import put_all
from tests.support.interop.expect import Stored, check_queries, check_queues, check_records
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S

FILE_BYTES = specs.SMALL["mapedFileSizeCommitLog"]


@pytest.fixture
def writer(rng):
    return specs.Writer(rng)


class TwoFolders:
    """A store and the second folder of its log. RocketMQ's setting has both as absolute paths."""

    def __init__(self, place: Path) -> None:
        self.path, self.other = place / "store", place / "other"
        self.other.mkdir(parents=True, exist_ok=True)
        both = f"{self.path / 'commitlog'},{self.other}"
        self.theirs = {**specs.SMALL, "storePathCommitLog": both}
        self.ours = {
            **cystore_config({"config": specs.SMALL}),
            "store_path_commit_log": f"commitlog,{self.other}",
        }

    def check_places(self) -> None:
        """Each segment is where the rule puts it, and both folders have some."""
        folders = [self.path / "commitlog", self.other]
        for folder in folders:
            bases = [int(name) for name in os.listdir(folder)]
            assert bases
            for base in bases:
                assert chosen(base // FILE_BYTES, list(map(str, folders))) == str(folder), base

    def dump_of_copy(self, rocketmq, scratch: Path) -> list[dict]:
        copy = TwoFolders(scratch)
        shutil.copytree(self.path, copy.path)
        shutil.copytree(self.other, copy.other, dirs_exist_ok=True)
        return rocketmq.dump(copy.path, copy.theirs, scratch / "dump.jsonl")


def check(store: cystore.MessageStore, stored: list[Stored]) -> None:
    log = list(store.scan())
    assert [m.physical_offset for m in log] == [one.physical_offset for one in stored]
    assert sum(sum(q.max_offset - q.min_offset for q in each.values()) for each in store.topics().values())


@pytest.mark.parametrize("first", ["RocketMQ", "cystore"])
def test_each_goes_on_in_the_others_folders(rocketmq, writer, tmp_path, first):
    two, items = TwoFolders(tmp_path), list(writer.many(150))
    if first == "RocketMQ":
        written = rocketmq.write({"config": two.theirs, "messages": items}, two.path).result(ANSWER_TIMEOUT_S)
        stored = [Stored.by_rocketmq(*pair) for pair in zip(items, written, strict=True)]
    else:
        with cystore.open(two.path, **two.ours) as store:
            stored = put_all(store, items)
    two.check_places()
    for _ in range(2):
        with cystore.open(two.path, **two.ours) as store:
            stored += put_all(store, list(writer.many(120)))
            check(store, stored)
        two.check_places()
        items = list(writer.many(100))
        with rocketmq.opened(two.path, two.theirs) as there:
            stored += [Stored.by_rocketmq(*pair) for pair in zip(items, there.put(items), strict=True)]
        two.check_places()
    with cystore.open(two.path, read_only=True, **two.ours) as store:
        check(store, stored)
    rows = two.dump_of_copy(rocketmq, tmp_path / "scratch")
    check_records(rows, stored)
    check_queues(rows, stored, ext=False)
    check_queries(rows, stored)
