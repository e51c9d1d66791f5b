"""A wall clock that jumps, and time that passes, for the processes that it is given to, and for nobody else."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

from cystore.system.threads import os_threads

SAME_TIME_S = 0.002
SOURCE = Path(__file__).with_name("shifted_clock.c")
COMPILER = os.environ.get("CC") or ("cc" if shutil.which("cc") else "gcc")


class ShiftedClock:
    """Compiles the library into a folder; `environment` is for the processes that live with the clock."""

    def __init__(self, folder: Path) -> None:
        library, self._path = folder / "shifted_clock.so", folder / "offset"
        command = [COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"]
        subprocess.run(command, check=True)
        self._path.write_bytes(bytes(16))
        with open(self._path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 16)
        self._library = library

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        # The address sanitizer's library has to be the first.
        preload = " ".join(filter(None, [given.get("LD_PRELOAD", ""), str(self._library)]))
        return {**given, "LD_PRELOAD": preload, "CYSTORE_CLOCK_FILE": str(self._path)}

    @property
    def offset_ms(self) -> int:
        """By how much the wall clock is off."""
        return int(struct.unpack_from("=q", self._memory)[0])

    @offset_ms.setter
    def offset_ms(self, value: int) -> None:
        self._set(0, value)

    @property
    def passed_ms(self) -> int:
        """How much more time has passed than really has, by the wall clock and by CLOCK_BOOTTIME."""
        return int(struct.unpack_from("=q", self._memory, 8)[0])

    @passed_ms.setter
    def passed_ms(self, value: int) -> None:
        self._set(8, value)

    def _set(self, at: int, value: int) -> None:
        """An append has the time from when the system was asked last, up to a millisecond ago: no event says that
        this is over."""
        struct.pack_into("=q", self._memory, at, value)
        os_threads.pause(SAME_TIME_S)
