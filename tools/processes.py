"""Processes that must not outlive whoever started them, even where that one is killed and cannot clean up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence


def ends_with_us(command: Sequence[str]) -> list[str]:
    """The command, such that the kernel sends it SIGTERM when the thread that starts it ends. As it is where there is no
    setpriv (Debian's package util-linux, which is always there)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else list(command)
