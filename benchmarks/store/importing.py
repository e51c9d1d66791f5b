"""`python -m benchmarks import`: the cost of `import cystore` for a process, beside other packages; and with what the
first `cystore.open` imports.

Each import runs in processes of its own, with compiled byte code as after an installation. The figure is processor
time without the interpreter's own start, so that other work on the machine counts little.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec

ROUNDS = 15
GOAL_MS = 60
PEERS = ("lmdb", "redis", "sqlalchemy")
OPENED = "cystore.store"


def _processor_ms(code: str, env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def main() -> int:
    names = ["cystore", OPENED, *(name for name in PEERS if find_spec(name))]
    with tempfile.TemporaryDirectory() as folder:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = folder
        programs = {"": "pass", **{name: f"import {name}" for name in names}}
        for code in programs.values():
            _processor_ms(code, env)  # writes the byte code
        took: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(ROUNDS):
            for name, code in programs.items():
                took[name].append(_processor_ms(code, env))
    start = statistics.median(took[""])
    cost = {name: statistics.median(took[name]) - start for name in names}
    print(
        f"start of Python {start:.0f} ms; median of {ROUNDS} processes each, processor time beyond the start:"
    )
    for name, ms in cost.items():
        beside = f"{OPENED} takes {cost[OPENED] / ms:.2f} of it"
        if name == "cystore":
            beside = f"goal {GOAL_MS} ms"
        elif name == OPENED:
            beside = "the same, and what the first `cystore.open` imports"
        print(f"import {name:<14} {ms:6.0f} ms   {beside}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
