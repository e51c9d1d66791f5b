"""Runs fuzz targets one after the other, each in a process of its own:

    python -m tests.fuzz [TARGET ...] [--seconds N] [--seed TEXT] [--build fuzz|asan|inplace] [--loop] [--replay FILE]

What guides a run is printed with it: the branches of the kernels (`fuzz` build, the default where it can be built),
Python's branches (atheris, where it is installed and the target is about Python), or nothing. An input that fails or
kills its process is kept below build/fuzz/found, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

from tools import build

FOUND = build.ROOT / "build" / "fuzz" / "found"
HANGS_S = 60  # an input that takes so much longer than the run hangs


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(2**32)))
    parser.add_argument("--build", choices=("fuzz", "asan", "inplace"), default="fuzz")
    parser.add_argument("--loop", action="store_true", help="not atheris, even where it is installed")
    parser.add_argument("--replay", type=Path, help="runs this input once")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _environment(variant: str) -> dict[str, str]:
    build.build(variant)
    if variant == "inplace":
        return dict(os.environ)
    found = {**os.environ, **build.environment(variant)}
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):  # to the screen, not to the files of the tests
        found[name] = ":".join(part for part in found[name].split(":") if not part.startswith("log_path"))
    return found


def _parent(args: argparse.Namespace) -> int:
    environment = _environment(args.build)
    listed = subprocess.run(
        [sys.executable, "-c", "from tests.fuzz.targets import TARGETS; print(*TARGETS)"],
        env=environment, cwd=build.ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    unknown = set(args.targets) - set(listed)
    if unknown:
        print(f"no target {', '.join(sorted(unknown))}; there are {', '.join(listed)}", file=sys.stderr)
        return 2
    failed = False
    for name in args.targets or listed:
        command = [sys.executable, "-m", "tests.fuzz", "--child", name, "--seconds", str(args.seconds)]
        command += ["--seed", args.seed, *(["--loop"] if args.loop else [])]
        command += ["--replay", str(args.replay.resolve())] if args.replay else []
        try:
            code = subprocess.run(
                command, env=environment, cwd=build.ROOT, timeout=args.seconds + HANGS_S, check=False
            ).returncode
            how = f"killed by signal {-code}" if code < 0 else "failed"
        except subprocess.TimeoutExpired:
            code, how = 1, "hangs"
        if code and not args.replay:
            print(f"{name}: {how}; input kept in {_keep(name)}", flush=True)
        failed |= bool(code)
    return int(failed)


def _notepad(name: str) -> Path:
    return FOUND / f".{name}"


def _keep(name: str) -> Path:
    from tests.fuzz.loop import Notepad

    data = Notepad.read(_notepad(name))
    path = FOUND / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def _child(args: argparse.Namespace) -> int:
    from tests.fuzz import loop

    if not args.loop and not args.replay and find_spec("atheris") is not None:
        from tests.fuzz import guided

        target = guided.load(args.targets[0])
        if target is not None:
            return guided.run(target, seconds=args.seconds, seed=args.seed, notepad=_notepad(target.name))
    from tests.fuzz.targets import TARGETS

    target = TARGETS[args.targets[0]]
    if args.replay:
        target.run(args.replay.read_bytes())
        return 0
    outcome = loop.run(target, seed=args.seed, seconds=args.seconds, notepad=_notepad(target.name))
    guide = (
        f"guided by {outcome.edges} kernel branches, kept {outcome.kept}" if outcome.edges else "not guided"
    )
    speed = outcome.inputs / max(outcome.seconds, 1e-9)
    print(f"{target.name}: {outcome.inputs} inputs, {speed:.0f}/s, {guide}, seed {args.seed}", flush=True)
    if outcome.failed is not None:
        traceback.print_exception(outcome.failed[1])
    return int(outcome.failed is not None)


if __name__ == "__main__":
    arguments = _arguments(sys.argv[1:])
    sys.exit(_child(arguments) if arguments.child else _parent(arguments))
