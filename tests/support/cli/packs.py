"""Packs of small stores, and their content."""

from __future__ import annotations

import cystore
from cystore.config import StoreConfig
from cystore.operate import backup
from tests.support.checks import check_chain, everything

SUFFIXES = ["tar", "tar.gz", "tar.zst"]


def pack(path, file, report=None, **more):
    return backup.pack(path, file, StoreConfig.from_mapping(more), report)


def unpack(file, target, report=None, **more):
    return backup.unpack(file, target, StoreConfig.from_mapping(more), report)


def content(path, **more):
    """All messages of each queue, with their places."""
    with cystore.open(path, read_only=True, **more) as store:
        check_chain(store)
        return {
            queue: [(m.physical_offset, m.queue_offset, bytes(m.body), m.keys, m.tags) for m in messages]
            for queue, messages in everything(store).items()
        }
