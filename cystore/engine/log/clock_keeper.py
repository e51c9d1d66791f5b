"""Watches the store's clock: reports a wall clock that jumped, and keeps the believed time for the next process of the
same boot.

The kernel decides which time is believed, and since when (cystore/_native/memory/wallclock.h). The checkpoint keeps
it beside CLOCK_BOOTTIME. After another boot of the host that means nothing; then the wall clock counts, except for
deleting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore.engine.files.checkpoint import Checkpoint

log = logging.getLogger("cystore")

INT64_MAX = (1 << 63) - 1


class ClockKeeper:
    """The clock of one attachment."""

    def __init__(self, control: Control, checkpoint: Checkpoint, boot_id: str) -> None:
        self._control, self._checkpoint = control, checkpoint
        self._boot = _digest(boot_id)
        self._reported = 0  # the clock that the last report was about, as an offset to CLOCK_BOOTTIME

    def begin(self, jump_ms: int, last_store_timestamp_ms: int) -> None:
        """The clock of a new control block, alone in the store."""
        fields = self._checkpoint.fields()
        words = (
            fields.clock_offset_ms,
            fields.clock_seen_ms,
            fields.clock_seen_since_ms,
            fields.clock_stood_ms,
            fields.clock_known_ms,
        )
        known = fields.clock_boot == self._boot and fields.clock_check == self._check(words)
        store_clock.begin(self._control, jump_ms, last_store_timestamp_ms, words if known else None)

    def look(self) -> None:
        """Looks at the clock; logs once that it jumped, or is believed again; saves the believed time. Called often."""
        control = self._control
        now_ms = store_clock.now_ms(control)
        words = store_clock.words(control)
        seen = words[1]
        if seen and abs(seen - self._reported) > store_clock.jump_ms(control):
            self._reported = seen
            log.warning(
                "%s: the wall clock jumped by %.0f s against CLOCK_BOOTTIME and is not believed yet; the store "
                "continues at %d. If the wall clock is "
                "right, wait, or run cystore clock PATH --believe",
                self._checkpoint.path.parent,
                (seen - words[0]) / 1000,
                now_ms,
            )
        elif not seen and self._reported:
            self._reported = 0
            log.warning("%s: the wall clock is believed again", self._checkpoint.path.parent)
        if not control.read_only and self._checkpoint.clock_check != self._check(words):
            self._keep(words)

    def _keep(self, words: Sequence[int]) -> None:
        """Not durable: it is worth nothing after a power cut, which is another boot."""
        checkpoint = self._checkpoint
        checkpoint.clock_boot = self._boot
        (
            checkpoint.clock_offset_ms,
            checkpoint.clock_seen_ms,
            checkpoint.clock_seen_since_ms,
            checkpoint.clock_stood_ms,
            checkpoint.clock_known_ms,
        ) = words
        checkpoint.clock_check = self._check(words)

    def _check(self, words: Sequence[int]) -> int:
        return _digest(repr((self._boot, *words)))


def _digest(text: str) -> int:
    import hashlib  # loads OpenSSL; a process that only imports cystore does without

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
