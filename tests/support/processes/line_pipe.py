"""A pipe into which processes that may be killed at any moment write lines."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

PIPE_BYTES = 1 << 20  # more than the writers of a case say before it is read


class LinePipe:
    """Writers write to `out`; `lines` gives what they wrote by now. A context manager."""

    def __init__(self) -> None:
        self._read, self.out = os.pipe()
        fcntl.fcntl(self.out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._read, False)
        self._rest = b""

    def __enter__(self) -> LinePipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes both ends."""
        os.close(self._read)
        os.close(self.out)

    def fileno(self) -> int:
        """The reading end, for `select`."""
        return self._read

    def lines(self) -> Iterator[list[str]]:
        """The words of each whole line that was written by now."""
        while True:
            try:
                data = os.read(self._read, PIPE_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield line.decode().split()

    def drop_rest(self) -> None:
        """Forgets the first part of a line whose writer was killed."""
        self._rest = b""
