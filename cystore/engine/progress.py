"""What a service reports of one turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` counts what was worked off (bytes, files or records, as the service says); `more` says whether work is left."""

    done: int
    more: bool = False
