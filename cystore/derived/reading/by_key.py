"""The obstacles that the kernels of `query` and `query_many` (KeyReader) meet, and their removal."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from cystore._native.record.argument_checks import listed
from cystore._native.record.window import LogWindow
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError

log = logging.getLogger("cystore")

DEFAULT_COUNT = 32  # messages of a query


class KeyObstacles:
    """Removes what keeps a search by key from going on. The kernel then continues."""

    def __init__(self, commit_log: CommitLog, index: IndexFiles, help_dispatch: DispatchHelp) -> None:
        self._commit_log, self._help = commit_log, help_dispatch
        self.index_files: Any = index.shapes

    def dispatch(self) -> None:
        """The index is behind the log, and the kernel could not dispatch by itself."""
        self._help.run()

    def window(self, *, with_expired: bool = False) -> LogWindow:
        """There is no spare window."""
        return self._commit_log.window(with_expired=with_expired)

    def undispatched_damage(self, position: int) -> CorruptRecordError:
        """The error for damage at which a search behind the index had to end."""
        return CorruptRecordError(
            "dispatch has not stepped over this damage yet, and a query cannot read behind it",
            path=self._commit_log.files.directory,
            offset=position,
        )

    def report(self, damaged: Iterable[CorruptRecordError]) -> None:
        """A search met these places without a valid record."""
        for error in damaged:
            log.error("a query met damage: %s", error)


def several(keys: Iterable[str]) -> list[str]:
    """The keys as a new list. A single text is refused, because its letters would become keys."""
    return listed("keys", keys)
