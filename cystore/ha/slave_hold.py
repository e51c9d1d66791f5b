"""A named hold on the part of the log that slaves still need, up to a limit.

RocketMQ's master cleans by age alone; there, an operator has to set up anew a slave that fell behind.
"""

from __future__ import annotations

import logging

from cystore._native.memory.control import Control
from cystore.config import StoreConfig
from cystore.engine.log.commit_log import CommitLog
from cystore.services.retention.hold import HoldTable

log = logging.getLogger("cystore")

HOLD = "ha-slaves"


class SlaveHold:
    """Keeps the log from the slowest slave's position on, even while that slave is away, but at most ha_hold_bytes_max
    bytes."""

    def __init__(
        self, control: Control, commit_log: CommitLog, holds: HoldTable, config: StoreConfig
    ) -> None:
        self._control, self._commit_log, self._holds = control, commit_log, holds
        self._most = config.ha_hold_bytes_max
        found = holds.read().get(HOLD)
        self._held = -1 if found is None else found.physical_offset
        # The last position of each slave, by its host: a slave reconnects from another port.
        self._known: dict[str, int] = {} if found is None else {"": found.physical_offset}

    def keep(self, positions: dict[str, int]) -> None:
        """Moves the hold. `positions` are the positions of the connected slaves, by ``host:port``."""
        if positions:
            self._known.pop("", None)
        here: dict[str, int] = {}
        for name, position in positions.items():
            host = name.rpartition(":")[0]
            here[host] = min(position, here.get(host, position))
        self._known.update(here)
        least = self._control.wrote - self._most
        for host, position in list(self._known.items()):
            if position < least and host not in here:
                log.warning(
                    "%s: the slave %s is away and %d bytes behind: its log is kept no longer (ha_hold_bytes_max)",
                    self._commit_log.files.root,
                    host or "of an earlier master process",
                    self._control.wrote - position,
                )
                del self._known[host]
        if self._known:
            wanted = max(min(self._known.values()), least, 0)
            wanted -= (
                wanted % self._commit_log.file_bytes
            )  # whole files are cleaned, so the hold moves, and is written, once per file
            if wanted != self._held:
                self._held = self._holds.set(HOLD, wanted).physical_offset
        elif self._held >= 0:
            self._holds.release(HOLD)
            self._held = -1
