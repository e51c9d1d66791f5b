"""Episodes of failover: python -m tests.ha.failover [EPISODE ...] [--count N] [--seed N] [--build asan]

Example: python -m tests.ha.failover cut_off stop --count 20 --seed 7
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.ha.failover.episodes import EPISODES, run
from tools import build

FINDING = "finding"


def _environment(variant: str, folder: Path) -> dict[str, str]:
    """More variables of the members' processes. The sanitizers' findings go into `folder`: a member that they end may
    be started again before anybody misses it."""
    if variant == "inplace":
        return {}
    build.build(variant)
    found = build.environment(variant)
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
        parts = [part for part in found[name].split(":") if not part.startswith("log_path")]
        found[name] = ":".join([*parts, f"log_path={folder / FINDING}"])
    return found


def main(arguments: list[str]) -> int:
    names = [one.__name__ for one in EPISODES]
    parser = argparse.ArgumentParser(prog="python -m tests.ha.failover", epilog=__doc__)
    parser.add_argument("episodes", nargs="*", help=f"only these: {', '.join(names)}")
    parser.add_argument("--count", type=int, default=1_000, help="episodes (default: %(default)d)")
    parser.add_argument("--seed", type=int, help="repeats a run (default: a new one, printed)")
    parser.add_argument("--build", choices=("inplace", "asan"), default="inplace", help="of the members")
    options = parser.parse_args(arguments)
    unknown = set(options.episodes) - set(names)
    if unknown:
        parser.error(f"no such episode: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed: {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="cystore-ha-"))
    environment = _environment(options.build, folder)
    try:
        found = run(
            folder,
            seed,
            options.count,
            tuple(options.episodes),
            lambda line: print(line, flush=True),
            environment,
        )
    finally:
        findings = sorted(folder.glob(f"{FINDING}*"))
        for path in findings:
            print(path.read_text(errors="replace"), flush=True)
    found.faults += [f"a finding of the sanitizers: {path}" for path in findings]
    times = sorted(found.failovers_ms) or [0]
    print(
        f"{found.episodes} episodes, {found.acknowledged} replicated puts, {len(found.failovers_ms)} failovers: "
        f"median {times[len(times) // 2]} ms, p99 {times[int(0.99 * (len(times) - 1))]} ms, longest {times[-1]} ms"
    )
    for fault in found.faults:
        print(f"FAULT: {fault}")
    if found.faults:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
