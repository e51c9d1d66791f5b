"""Progress of long work on standard error, only while a person looks at it there."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from cystore.clock import monotonic_s

Report = Callable[[str, int, int], None]  # the work, done, in all

FIRST_AFTER_S = 0.3  # shorter work shows no bar
EVERY_S = 0.1
BAR_CHARACTERS = 30


@contextlib.contextmanager
def progress(
    stream: TextIO | None = None, *, first_after_s: float = FIRST_AFTER_S
) -> Iterator[Report | None]:
    """A function that shows progress, or None if `stream` (else standard error) is not a terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield None
        return
    bar = (RichBar if importlib.util.find_spec("rich") else PlainBar)(stream, first_after_s)
    try:
        yield bar
    finally:
        bar.close()


class PlainBar:
    """A bar drawn with letters on one line, which it wipes in the end."""

    def __init__(self, stream: TextIO, first_after_s: float) -> None:
        self._stream = stream
        self._next_s = monotonic_s() + first_after_s
        self._what = ""  # the work shown last
        self._drawn = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = monotonic_s()
        if now < self._next_s and self._what in ("", what):
            return
        self._next_s, self._what = now + EVERY_S, what
        self.draw(what, min(done / total, 1.0) if total > 0 else 0.0)

    def draw(self, what: str, share: float) -> None:
        """Shows that `share` (0 to 1) of the work is done."""
        filled = int(share * BAR_CHARACTERS)
        line = f"{what} [{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {share:4.0%}"
        line = line[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def close(self) -> None:
        """Wipes the line."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0


class RichBar(PlainBar):
    """The same with the package rich, which the extra `cli` brings; loaded when there is something to show."""

    def __init__(self, stream: TextIO, first_after_s: float) -> None:
        super().__init__(stream, first_after_s)
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def draw(self, what: str, share: float) -> None:
        """Shows that `share` (0 to 1) of the work is done."""
        if self._bars is None:
            from rich.console import Console
            from rich.progress import Progress

            # By default rich would redirect standard output.
            self._bars = Progress(
                console=Console(file=self._stream),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=1.0)
        self._bars.update(self._tasks[what], completed=share)

    def close(self) -> None:
        """Wipes the bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
