"""Processes that must not outlive their starter, even if the starter is killed and cannot clean up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence


def ends_with_us(command: Sequence[str]) -> list[str]:
    """The command, wrapped so that the kernel sends it SIGTERM when the starting thread ends. Unchanged without setpriv
    (Debian's package util-linux, which is always there)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else list(command)
