"""The result of one turn of a service."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """`done` counts the finished work (bytes, files or records, depending on the service); `more` says whether work is
    left."""

    done: int
    more: bool = False
