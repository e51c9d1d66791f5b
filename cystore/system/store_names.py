"""What tells a store from any other directory."""

from __future__ import annotations

MARKS = frozenset({"commitlog", "checkpoint", "manifest"})  # one of them, and a directory is a store
FIRST_NAMES = frozenset(
    {"lock", "abort", "config", "control", "headroom", "tmp"}
)  # what a kill may leave of a new one


def is_store(names: set[str]) -> bool:
    """Whether a directory with these names is a store, ours or RocketMQ's: anybody may have a folder that is called `index`."""
    return bool(names & MARKS) or (bool(names) and names <= FIRST_NAMES)
