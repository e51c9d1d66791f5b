"""System calls of a process that fail when the test says so."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Any

from tests.support.processes.shifted import COMPILER

SOURCE = Path(__file__).resolve().parents[2] / "crash" / "faults" / "fail_calls.c"
FAIL = (
    "import os; os.environ.update(CYSTORE_FAIL_CALL=call, CYSTORE_FAIL_AT='1', CYSTORE_FAIL_TIMES='1000000')"
)
SUCCEED = "os.environ.pop('CYSTORE_FAIL_CALL', None)"


class FailingCalls:
    """Compiles the library into a folder; `environment` is for the processes whose calls can fail."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "fail_calls.so"
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True)

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        # The address sanitizer's library has to be the first.
        preload = " ".join(filter(None, [given.get("LD_PRELOAD", ""), str(self._library)]))
        return {**given, "LD_PRELOAD": preload, "CYSTORE_FAIL_ERRNO": str(errno.EIO)}


def fail(process: Any, call: str) -> None:
    """From now on each such call of a `Process` fails with EIO."""
    process.do(FAIL, call=call)


def succeed(process: Any) -> None:
    """From now on they succeed."""
    process.do(SUCCEED)
