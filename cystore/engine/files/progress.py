"""The result of one turn of a service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` counts the finished work (bytes, files or records, depending on the service); `more` says whether work is
    left."""

    done: int
    more: bool = False
