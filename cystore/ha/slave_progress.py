"""The slaves' progress. One process of the master's store serves the slaves; every process may wait for them.

Source: HAService.GroupTransferService, HAService.isSlaveOK, CommitLog.handleHA.
"""

from __future__ import annotations

import logging
import zlib
from pathlib import Path

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.errors import FlushSlaveTimeoutError, SlaveNotAvailableError, StoreError
from cystore.ha.epochs.confirmed_file import ConfirmedFile

log = logging.getLogger("cystore")

WANTED = zlib.crc32(b"cystore.ha.wanted")  # woken by a put that waits for slaves
REPORTED = zlib.crc32(b"cystore.ha.reported")  # woken when a slave's position has moved
SLICE_MS = 250


class SlaveProgress:
    """The words about slaves in the control block of one store. `root`: only for the process that replicates."""

    def __init__(self, control: Control, config: StoreConfig, root: Path | None = None) -> None:
        self._control, self._config = control, config
        self._kept = None if root is None else ConfirmedFile(root)
        self._failed = False

    def wait_for(self, end: int, waited_ms: int | None = None) -> None:
        """Returns when a slave has the log up to `end`; with an elected master, when each member in sync has it on its
        disk. A wait that has begun counts with its `waited_ms`: the slaves were there then. Raises
        SlaveNotAvailableError, FlushSlaveTimeoutError."""
        control, timeout_ms = self._control, self._config.slave_timeout_ms
        if control.replicated >= end:
            return
        epoch = control.epoch
        if epoch == 0 and control.in_sync_needed:
            raise self._ended("the epoch", end)
        if epoch == 0 and waited_ms is None:
            self._check_slaves(end)
        left_ms = timeout_ms - (waited_ms or 0)
        until_s = monotonic_s() + left_ms / 1000
        self.announce()
        while not control.wait_replicated(end, REPORTED, epoch, min(max(left_ms, 1), SLICE_MS)):
            left_ms = int((until_s - monotonic_s()) * 1000)
            who = "no slave" if epoch == 0 else "not every member in sync"
            if left_ms <= 0:
                raise FlushSlaveTimeoutError(
                    f"{who} had the log up to {end} within {timeout_ms} ms (slave_timeout_ms); the master has the "
                    "messages",
                    path=control.file.path,
                )
            if control.epoch != epoch:
                raise self._ended(f"epoch {epoch}", end)

    def announce(self) -> None:
        """Wakes the thread that serves slaves: a put waits for them. If that thread is in this process, its socket is
        the shorter way."""
        if not self._control.ring():
            self._control.wake_key(WANTED)

    def _ended(self, epoch: str, end: int) -> FlushSlaveTimeoutError:
        return FlushSlaveTimeoutError(
            f"{epoch} ended before every member in sync had the log up to {end}; the messages may be cut",
            path=self._control.file.path,
        )

    def _check_slaves(self, end: int) -> None:
        control = self._control
        if control.replicas == 0:
            raise SlaveNotAvailableError(
                "no slave is connected; the master alone has the messages", path=control.file.path
            )
        behind = end - control.replicated
        if behind >= self._config.ha_slave_fallbehind_max_bytes:
            raise SlaveNotAvailableError(
                f"the slaves are {behind} bytes behind (ha_slave_fallbehind_max_bytes); the master alone has "
                "the messages",
                path=control.file.path,
            )

    def connected(self, count: int) -> None:
        """Publishes the number of slaves that follow now."""
        self._control.replicas = count

    def reported(self, position: int) -> None:
        """Publishes that a slave has the log up to `position`."""
        if position > self._control.replicated:
            self._control.raise_replicated(position)
            self._control.wake_key(REPORTED)

    def confirmed(self, position: int) -> None:
        """Publishes that no failover takes back the log below `position`: readers see it."""
        if position > self._control.confirmed:
            self._keep(position)
            self._control.raise_confirmed(position)
            self._control.wake_committed()

    def _keep(self, position: int) -> None:
        """Before a reader sees the records: after a kill of all processes readers see them again."""
        if self._kept is None:
            return
        try:
            self._kept.write(position)
        except StoreError as error:
            if not self._failed:
                log.warning("%s; after a kill of all processes reads may step back", error)
            self._failed = True

    def close(self) -> None:
        """Closes the file with the confirmed position."""
        if self._kept is not None:
            self._kept.close()

    @property
    def position(self) -> int:
        """The highest position that a slave reported."""
        return self._control.replicated
