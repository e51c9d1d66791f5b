"""A store's parts, for commands that show a store's state and do none of its work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from cystore import StoreConfig, StoreError, StoreNotWritableError
from cystore.attachment.attach import Attachment, attach
from cystore.attachment.detach import detach
from cystore.attachment.private_reads import has_moved
from cystore.operate.progress import progress

T = TypeVar("T")


@contextlib.contextmanager
def attached(root: Path, config: StoreConfig) -> Iterator[Attachment]:
    """The store, opened for reading; `recovered` is None where other processes have it open."""

    def revive() -> NoReturn:
        raise StoreNotWritableError("the store is open for reading only", path=root)

    with progress() as report:
        parts = attach(root, config, revive, report)
    try:
        yield parts
    finally:
        detach(parts)


def looked_at(root: Path, config: StoreConfig, look: Callable[[Attachment], T]) -> T:
    """The result of `look`, repeated when another process opens the store meanwhile."""
    while True:
        with attached(root, config) as parts:
            try:
                found = look(parts)
            except StoreError:
                if not has_moved(parts):
                    raise
                continue
            if not has_moved(parts):
                return found
