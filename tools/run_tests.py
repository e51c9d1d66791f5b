"""Runs the tests group by group, each in a pytest of its own, and prints how long each group took against its budget.

    python tools/run_tests.py [--all] [GROUP ...]

Without --all the tests marked `slow` are left out. The group `quick` repeats tests of others: it runs when it is named.
Exit code not 0 when a test failed, a group hung or had no test,
or all were skipped.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import build, interpreters  # noqa: E402
from tools.memory_folder import keep, memory_folder  # noqa: E402
from tools.processes import ends_with_us  # noqa: E402

RESULTS = ROOT / "build" / "test-results"
NOTHING_COLLECTED = 5  # pytest's exit code
SETUP_BUDGET_S = 420
CORES = os.cpu_count() or 1
WORKERS = min(4, 1 + CORES)  # tests also wait: one more than cores
WAITING = min(6, 2 * CORES)  # for groups whose tests mostly wait
HANG_FACTOR = 20  # a group that needs this many budgets hangs; a machine at load 20 needs about ten


@dataclass(frozen=True)
class Group:
    name: str
    budget_s: int
    markers: str
    paths: tuple[str, ...] = ("tests",)
    without: tuple[
        str, ...
    ] = ()  # folders below that are not collected: each process of pytest would import them
    variant: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    workers: int = 1  # pytest processes; not for tests that need all cores for themselves
    in_memory: bool = False  # its tests' files, except those of tests marked `disk`

    @property
    def slug(self) -> str:
        return self.name.split()[0].lower()


# Budgets for 2 cores. Every test belongs to exactly one group; the sanitized one repeats the kernels' tests.
GROUPS = (
    Group(
        "store",
        240,
        "not crash and not rocketmq and not celery and not spark",
        without=("tests/crash", "tests/interop", "tests/celery", "tests/spark"),
        workers=WAITING,
        in_memory=True,
    ),
    Group("crash slice", 180, "crash", paths=("tests/crash",), workers=WORKERS),
    Group("interop", 120, "rocketmq", paths=("tests/interop",), workers=2),  # each with a JVM of its own
    Group(
        "sanitized kernels",
        120,
        "not crash and not rocketmq and not celery and not spark and not unsanitized",
        paths=("tests/unit", "tests/property", "tests/fuzz"),
        variant="asan",
        environment={"CYSTORE_HYPOTHESIS": "quick"},
        workers=WORKERS,
        in_memory=True,
    ),
    Group(
        "celery", 240, "celery", paths=("tests/celery", "tests/structure/test_imports.py"), workers=WAITING
    ),
    Group("spark", 180, "spark", paths=("tests/spark",), workers=2),  # each with a JVM of its own
)
# The tests that a change most often breaks, for `make quick`: rules about the source, the log, the derived files,
# recovery, the kernels, the result backend.
QUICK = Group(
    "quick",
    180,
    "not rocketmq and not spark",
    paths=(
        "tests/structure",
        "tests/golden",
        "tests/property",
        *(f"tests/unit/{room}" for room in ("attachment", "derived", "engine", "manifest", "native")),
        *(f"tests/unit/{room}" for room in ("reading", "recovery", "verify")),
        "tests/crash/test_kill_places.py",
        "tests/celery/results/test_backend.py",
        "tests/celery/results/test_contract.py",
    ),
    environment={"CYSTORE_HYPOTHESIS": "quick"},
    workers=WAITING,
    in_memory=True,
)


@dataclass
class Outcome:
    group: Group
    seconds: float
    exit_code: int
    tests: int = 0
    failed: int = 0
    skipped: int = 0
    cpu_seconds: float = 0.0

    @property
    def passed(self) -> int:
        return self.tests - self.skipped - self.failed

    @property
    def good(self) -> bool:
        return self.exit_code == 0 and self.failed == 0


def run(group: Group, *, everything: bool, seed: int) -> Outcome:
    begin, cpu_before = time.monotonic(), _cpu_seconds()
    report = RESULTS / f"{group.slug}.xml"
    report.unlink(missing_ok=True)
    try:
        env = _environment(group, everything=everything, seed=seed)
        code = _pytest(group, report, env, everything=everything)
    except build.BuildError as error:
        print(error)
        code = 1
    _show_findings(group)
    outcome = Outcome(group, time.monotonic() - begin, code, cpu_seconds=_cpu_seconds() - cpu_before)
    if report.exists():
        for suite in ET.parse(report).getroot().iter("testsuite"):
            outcome.tests += int(suite.get("tests", 0))
            outcome.failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            outcome.skipped += int(suite.get("skipped", 0))
    return outcome


def with_interpreters(seed: int) -> Outcome:
    """The slice with other Pythons, as a group. A machine without another Python has no such tests."""
    group = Group("interpreters", interpreters.SECONDS, "")
    print(f"\n== {group.name}", flush=True)
    begin, cpu_before = time.monotonic(), _cpu_seconds()
    passed, failed = interpreters.run_all(interpreters.SECONDS, seed)
    seconds, cpu = time.monotonic() - begin, _cpu_seconds() - cpu_before
    return Outcome(group, seconds, 1 if failed else 0, passed + failed, failed, cpu_seconds=cpu)


def _environment(group: Group, *, everything: bool, seed: int) -> dict[str, str]:
    build.build_once("failpoints")  # which tests of most groups need
    env = {**os.environ, **group.environment, "CYSTORE_SEED": str(seed)}
    # The tests start hundreds of processes: without bytecode each would compile the same modules again.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if everything:
        env["CYSTORE_HYPOTHESIS"] = "cystore" if group.variant else "long"
    if group.variant:
        shutil.rmtree(build.SANITIZER_FINDINGS, ignore_errors=True)
        build.build_once(group.variant)
        build.SANITIZER_FINDINGS.mkdir(parents=True)
        env.update(build.environment(group.variant))
    return env


def compile_tests(groups: Iterable[Group]) -> None:
    """Compiles the groups' tests, each file once. The workers of a group begin together, and each would compile every
    file."""
    files = sorted({str(path) for group in groups for path in _test_files(group)})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only"]
    env = {**os.environ, "CI": ""}  # the groups report what cannot be collected
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    parts = [files[n::CORES] for n in range(CORES) if files[n::CORES]]
    running = [
        subprocess.Popen(ends_with_us([*command, *part]), cwd=ROOT, env=env, **quiet) for part in parts
    ]
    for process in running:
        process.wait(SETUP_BUDGET_S)


def _test_files(group: Group) -> Iterator[Path]:
    for folder in group.paths:
        for path in (ROOT / folder).rglob("test_*.py"):
            if not any(path.is_relative_to(ROOT / left_out) for left_out in group.without):
                yield path


def _pytest(group: Group, report: Path, env: dict[str, str], *, everything: bool) -> int:
    """Runs the group's tests and gives pytest's exit code; 1 for a group that hangs.

    With `everything` all files are on the disk, so each test also meets a disk's file system."""
    if everything or not group.in_memory:
        return _pytest_in(None, group, report, env, everything=everything)
    kept = RESULTS / f"{group.slug}-files"
    with memory_folder() as folder:
        code = _pytest_in(folder, group, report, env, everything=everything)
        if folder is not None and code:
            keep(folder, kept)
            print(f"{group.name}: the files of failed tests are in {kept}")
    return code


def _pytest_in(
    folder: Path | None, group: Group, report: Path, env: dict[str, str], *, everything: bool
) -> int:
    markers = group.markers if everything else f"({group.markers}) and not slow"
    command = [sys.executable, "-m", "pytest", "-q", "-m", markers, f"--junitxml={report}", "--durations=5"]
    command += [*group.paths, *(f"--ignore={folder}" for folder in group.without)]
    if folder is not None:
        command += [f"--basetemp={folder / 't'}"]
    if group.workers > 1:
        command += ["-n", str(group.workers), "--dist", "worksteal"]
    process = subprocess.Popen(ends_with_us(command), cwd=ROOT, env=env, start_new_session=True)
    try:
        return process.wait(None if everything else group.budget_s * HANG_FACTOR)
    except subprocess.TimeoutExpired:
        print(f"{group.name}: not finished after {HANG_FACTOR} budgets, ended")
        _end(process)
        return 1
    except (
        BaseException
    ):  # Ctrl-C or an end from outside: the group has a session of its own and would continue
        _end(process)
        raise


def _show_findings(group: Group) -> None:
    """The sanitizers' output, without the frames of the interpreter."""
    for path in sorted(build.SANITIZER_FINDINGS.glob("*")) if group.variant == "asan" else []:
        lines = path.read_text(errors="replace").splitlines()
        print(
            "\n".join(
                [
                    f"== {path.name}",
                    *(line for line in lines if "Python/" not in line and "Objects/" not in line),
                ][:40]
            )
        )


def _cpu_seconds() -> float:
    """CPU seconds of all ended child processes: the cost of a group, even on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the group's pytest and its processes: SIGABRT first, which makes faulthandler print every stack."""
    for sign in (signal.SIGABRT, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def table(outcomes: list[Outcome], *, everything: bool, setup_s: int) -> str:
    lines = [
        f"{'group':<18} {'tests':>6} {'failed':>7} {'skipped':>8} {'seconds':>8} {'cpu':>7} {'budget':>7}"
    ]
    late = "  BEYOND ITS BUDGET" if setup_s > SETUP_BUDGET_S else ""
    lines.append(f"{'set-up':<18} {'':>23} {setup_s:>8.1f} {'':>7} {SETUP_BUDGET_S:>7}{late}")
    for outcome in outcomes:
        over = not everything and outcome.seconds > outcome.group.budget_s
        note = "" if outcome.good else "  NO TESTS" if outcome.exit_code == NOTHING_COLLECTED else "  FAILED"
        note += "  BEYOND ITS BUDGET: move cases to make test-all (mark them slow)" if over else ""
        lines.append(
            f"{outcome.group.name:<18} {outcome.tests:>6} {outcome.failed:>7} {outcome.skipped:>8} "
            f"{outcome.seconds:>8.1f} {outcome.cpu_seconds:>7.1f} {outcome.group.budget_s:>7}{note}"
        )
    seconds = sum(outcome.seconds for outcome in outcomes)
    lines.append(f"{'all':<18} {sum(o.tests for o in outcomes):>6} {'':>16} {setup_s + seconds:>8.1f}")
    return "\n".join(lines)


def last_line(outcomes: list[Outcome]) -> str:
    """The sum of all groups, in the form of pytest's last line."""
    counts = {
        what: sum(getattr(outcome, what) for outcome in outcomes) for what in ("failed", "passed", "skipped")
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no tests ran"
    return f"{told} in {sum(outcome.seconds for outcome in outcomes):.2f}s"


def seed_of_this_version() -> int:
    """A seed of the committed files: two machines that test one version choose the same cases, so a failure can be
    repeated. The next version chooses other cases. Without git the seed is random."""
    try:
        asked = ["git", "rev-parse", "HEAD^{tree}"]
        tree = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return random.SystemRandom().randrange(2**32)
    return int(tree[:8], 16)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs the tests group by group.")
    known = (*GROUPS, QUICK)
    parser.add_argument("groups", nargs="*", help=f"only these: {', '.join(group.slug for group in known)}")
    parser.add_argument("--all", action="store_true", help="the slow tests too, and many more examples")
    parser.add_argument(
        "--interpreters", action="store_true", help="a slice with each other Python of this machine, too"
    )
    parser.add_argument(
        "--setup-seconds", type=int, default=0, help="what the set-up before took, for the table"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.groups) - {group.slug for group in known}
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    chosen = [group for group in known if group.slug in options.groups] if options.groups else list(GROUPS)
    compile_tests(group for group in chosen if group.workers > 1 and not group.variant)
    setup_s = options.setup_seconds + int(time.monotonic() - begin)
    seed = int(os.environ.get("CYSTORE_SEED") or seed_of_this_version())
    outcomes = []
    for group in chosen:
        print(f"\n== {group.name}", flush=True)
        outcomes.append(run(group, everything=options.all, seed=seed))
    if options.interpreters:
        outcomes.append(with_interpreters(seed))
    print(f"\n{table(outcomes, everything=options.all, setup_s=setup_s)}\nseed: CYSTORE_SEED={seed}")
    print(f"==== {last_line(outcomes)} ====")
    good = all(outcome.good for outcome in outcomes) and any(outcome.passed for outcome in outcomes)
    return 0 if good else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # SystemExit also ends a group's processes
    sys.exit(main(sys.argv[1:]))
