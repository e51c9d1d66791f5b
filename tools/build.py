"""Builds the kernels in place or as a variant beside it; a compiler or Cython warning from our sources fails the build.

    python tools/build.py [inplace | asan | failpoints | fuzz | interpreter] ...

Variants are whole trees under build/VARIANT/lib, so that they never meet the in-place build. `environment(variant)`
lets a process import the tree instead of the repository.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ("asan", "failpoints", "fuzz", "interpreter")
# `environment` sets these for a sanitized run; a build inside such a run must not inherit them.
SANITIZER_VARIABLES = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")
SANITIZER_FINDINGS = ROOT / "build" / "asan" / "findings"
COVERAGE = ROOT / "build" / "fuzz" / "libcoverage.so"  # the branches of the fuzz build call it
SHARED = Path("cystore", "_native", "system", "shared.c")  # Cython's own code, which has no source of ours
BUILT = "CYSTORE_BUILT"
WARNING = re.compile(r"\bwarning:|performance hint:", re.IGNORECASE)
MODULE = re.compile(r"(cystore/_native/\w+/\w+)\.(?:c|pyx)\b")
# Warnings that are not about our sources: setuptools and Python announce their own changes.
FOREIGN_WARNING = re.compile(
    r"DeprecationWarning|SetuptoolsDeprecation|UserWarning|FutureWarning|site-packages/|byte-compiling"
)


class BuildError(RuntimeError):
    """The build failed or warned; the text holds its output."""


def tree(variant: str) -> Path:
    """The folder that holds the variant's `cystore` package."""
    return ROOT / "build" / variant / "lib"


def build(variant: str = "inplace", *, python: str = sys.executable, packages: str = "") -> Path:
    """Builds outdated modules and returns the folder to import from. Raises BuildError.

    `python` is the interpreter for which it builds, `packages` where that one finds setuptools, Cython and crc32c if
    it has none of its own."""
    program = [python, "setup.py", "-q"]
    env = {name: value for name, value in os.environ.items() if name not in SANITIZER_VARIABLES}
    env.pop("CYSTORE_BUILD", None)
    if packages:
        env["PYTHONPATH"] = packages
    jobs = str(os.cpu_count() or 1)
    if variant == "inplace":
        target, command = ROOT, [*program, "build_ext", "--inplace", "--parallel", jobs]
    elif variant in VARIANTS:
        target = tree(variant)
        env["CYSTORE_BUILD"] = variant
        command = [*program, "build", "--parallel", jobs]
        command += ["--build-base", f"build/{variant}", "--build-lib", str(target.relative_to(ROOT))]
    else:
        raise BuildError(f"no build variant {variant!r}: choose inplace, {', '.join(VARIANTS)}")
    with _alone():
        if variant == "fuzz":
            _build_coverage()
        drop_stale_libraries(target)
        drop_generated_without_source()
        if variant != "inplace":
            drop_stale_sources(target)
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        warned = warnings_in(done.stdout)
        if done.returncode == 0 and not warned:
            return target
        forget(variant, warned)
    what = (
        f"failed ({done.returncode})"
        if done.returncode
        else f"gave {len(warned)} warnings, and none is allowed"
    )
    raise BuildError(f"{done.stdout}\nbuild {variant}: {what}")


def build_once(variant: str) -> None:
    """Builds a variant unless this process, or one that led to it, did so: BUILT in the environment tells. Looking for
    outdated modules takes seconds, and the tests ask in many processes."""
    built = os.environ.get(BUILT, "").split()
    if variant not in built:
        build(variant)
        os.environ[BUILT] = " ".join([*built, variant])


def warnings_in(output: str) -> list[str]:
    """The compilers' warnings about our sources, line by line."""
    return [line for line in output.splitlines() if WARNING.search(line) and not FOREIGN_WARNING.search(line)]


def environment(variant: str) -> dict[str, str]:
    """Environment variables, to be added to a process's own, under which Python imports the variant's tree.

    `asan` also loads the sanitizers' run time and makes their first finding end the process. Leak detection is off,
    because the interpreter itself keeps memory until its end.
    """
    env = {
        "CYSTORE_BUILD": variant,
        "PYTHONPATH": os.pathsep.join([str(tree(variant)), str(ROOT)]),
        "PYTHONSAFEPATH": "1",  # else the working directory, usually the repository, would come first
    }
    if variant in ("asan", "fuzz"):
        library = subprocess.run(
            [os.environ.get("CC", "gcc"), "-print-file-name=libasan.so"],
            text=True,
            capture_output=True,
            check=True,
        ).stdout.strip()
        if not os.path.isabs(library):
            raise BuildError(
                "the C compiler has no address sanitizer (libasan.so): apt-get install libgcc-12-dev or gcc"
            )
        env["LD_PRELOAD"] = os.path.realpath(library) + (f":{COVERAGE}" if variant == "fuzz" else "")
        # Findings go to files: a test's standard error is captured, and lost with its process.
        findings = f"log_path={SANITIZER_FINDINGS}/finding"
        # These limits keep allocations cheap: few frames of an allocation's origin (a finding has its own whole stack),
        # and a small quarantine of freed memory, all of which every process must touch first.
        env["ASAN_OPTIONS"] = (
            f"{findings}:detect_leaks=0:halt_on_error=1:abort_on_error=1:allocator_may_return_null=1"
            ":malloc_context_size=4:quarantine_size_mb=32"
        )
        env["UBSAN_OPTIONS"] = f"{findings}:halt_on_error=1:abort_on_error=1:print_stacktrace=1"
        env["PYTHONMALLOC"] = "malloc"  # else small objects share arenas and an overrun goes unseen
    return env


def _build_coverage() -> None:
    COVERAGE.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "tools" / "coverage.c"
    command = [
        os.environ.get("CC", "gcc"),
        "-O2",
        "-Wall",
        "-shared",
        "-fPIC",
        "-o",
        str(COVERAGE),
        str(source),
    ]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode or done.stderr:
        raise BuildError(f"{done.stderr}\nbuild fuzz: {COVERAGE.name} could not be built")


def drop_stale_sources(target: Path) -> None:
    """Removes copies whose source was changed or deleted. An up-to-date tree does not change, because processes import
    from it: a process that misses a file would import the repository's package instead."""
    for path in target.rglob("*.py") if target.exists() else ():
        source = ROOT / path.relative_to(target)
        if not (source.exists() and filecmp.cmp(path, source, shallow=False)):
            path.unlink()


def drop_stale_libraries(target: Path) -> None:
    """Removes libraries that no build makes any more: Python would import a library with a module's own name instead of
    ours."""
    native = target / "cystore" / "_native"
    for path in native.rglob("*.so"):
        room = native / path.name.partition(".")[0]
        if path.parent != native or not (room / "__init__.py").exists():
            path.unlink()


def drop_generated_without_source() -> None:
    """Removes from Cython's output the C of a deleted module and the copy of a deleted header, and what was compiled
    beside them. Cython keeps both, and the C compiler finds such a header before the one of that name in another
    room."""
    output = ROOT / "build" / "cython"
    for path in list(output.rglob("*")):
        source = ROOT / path.relative_to(output)
        if (
            path.is_file()
            and path != output / SHARED
            and not (source.with_suffix(".pyx") if path.suffix == ".c" else source).exists()
        ):
            path.unlink()
            beside = path.parent.relative_to(ROOT)
            for compiled in (ROOT / "build").glob(f"**/temp.*/{beside}/*.o"):
                compiled.unlink()


def forget(variant: str, warned: list[str]) -> None:
    """Makes the next build compile the modules with warnings again: otherwise a warning would be shown only once. All
    modules, if a warning names none: it is about a file that they share."""
    bases = [ROOT / "build" / ("" if variant == "inplace" else variant)]
    if variant == "failpoints":
        bases.append(ROOT / "build")  # modules without a failpoint are those of the build in place
    modules = [MODULE.findall(line) for line in warned]
    if all(modules):
        for name in {name for names in modules for name in names}:
            for path in (
                ROOT / "build" / "cython" / f"{name}.c",
                *(built for base in bases for built in base.glob(f"temp.*/build/cython/{name}.o")),
            ):
                path.unlink(missing_ok=True)
        return
    for path in (temporary for base in bases for temporary in base.glob("temp.*")):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "cython", ignore_errors=True)


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: tests may ask for one from several processes, and all variants share Cython's output."""
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(variants: list[str]) -> int:
    for variant in variants or ["inplace"]:
        try:
            print(f"built {variant} in {build(variant)}")
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
