"""A store's parts, for commands that look at how things stand and help nothing along."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from cystore import StoreConfig, StoreNotWritableError
from cystore.attach import Attachment, attach
from cystore.cli.progress import progress
from cystore.detach import detach


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
