"""Runs a piece of code in a fresh interpreter, under the same build as the test, and reads what it reports."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 120


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a test file in a new process and returns its (JSON) result.

    Its source is what is sent, so it imports what it needs by itself and takes and gives plain values.
    """
    source = textwrap.dedent(inspect.getsource(function))
    code = f"{source}\nimport json, sys\nprint(json.dumps({function.__name__}(*json.loads(sys.argv[1]))))"
    env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        cwd=ROOT,
        env=env,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
