"""The master's side: reads the facts from time to time, for all slaves that ask for them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import StoreClosedError, StoreError
from cystore.ha.facts.shipment import FOLLOWED, GroupOffsets, Shipment
from cystore.ha.link.wire import FACTS_BYTES_MAX

log = logging.getLogger("cystore")

READ_S = 1.0  # between two reads; RocketMQ's slave asks every ten seconds
RETRY_S = 30.0
READ_SHARE = 50  # a read that takes long is repeated that many times later


class Sealed(NamedTuple):
    """The content of a frame. A slave that has the log up to `position` has every record that the facts speak of."""

    position: int
    data: bytes


class CollectedFacts:
    """The facts of a master's store."""

    def __init__(self, control: Control, manifest: Manifest, groups: GroupOffsets | None) -> None:
        self._control, self._manifest, self._groups = control, manifest, groups
        self._next_s = 0.0
        self._shipment: Shipment | None = None
        self._sealed: Sealed | None = None

    def read(self, now_s: float) -> Sealed | None:
        """The newest facts; the same object while nothing changes. None if there are too many to ship."""
        if now_s < self._next_s:
            return self._sealed
        self._next_s = now_s + RETRY_S
        try:
            shipment = self._read()
        except StoreClosedError:
            raise
        except StoreError as error:  # slaves get the log nevertheless
            log.warning("%s: its slaves do not get its facts now: %s", self._manifest.root, error)
            return self._sealed
        if self._shipment is None or replace(shipment, begin=self._shipment.begin) != self._shipment:
            self._shipment, data = shipment, shipment.data()
            # After the read: an offset of a group is never beyond the records below this position.
            self._sealed = Sealed(self._control.wrote, data) if len(data) <= FACTS_BYTES_MAX else None
            if self._sealed is None:
                log.warning(
                    "%s: its slaves do not get the offsets of consumer groups and the removed queues: "
                    "these have %d bytes, and %d are shipped at most",
                    self._manifest.root,
                    len(data),
                    FACTS_BYTES_MAX,
                )
        ended_s = monotonic_s()
        self._next_s = ended_s + max(READ_S, READ_SHARE * (ended_s - now_s))
        return self._sealed

    def _read(self) -> Shipment:
        facts = self._manifest.snapshot()
        return Shipment(
            {} if self._groups is None else self._groups.read(),
            {name: facts.settings[name] for name in FOLLOWED if name in facts.settings},
            tuple(facts.removed),
            self._control.min_physical_offset,
        )
