"""Makes what a release hands out: the source archive, and a wheel for each CPython and processor.

    .venv/bin/python tools/wheels.py [--python 3.11 ...] [--machine x86_64 aarch64] [--twice] [--out dist]

The compiler is the one of the ziglang package: it compiles for glibc 2.28 (manylinux_2_28) and for both processors,
whatever this machine has. The Pythons are those of this machine that have headers; one that it lacks comes from
Maven Central if `mvn` is there, and is named and left out otherwise. Every wheel for this machine's processor is
installed into an empty environment and used there, without a compiler. One for another processor runs under QEMU if
the machine has it, and a Python for it.

The same sources give the same bytes: times are the day of the release, and no path of this machine is compiled in.
`--twice` builds everything again in another folder, and compares.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import interpreters  # noqa: E402

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
BYTES_MAX = 6 << 20
# Versions that a machine may lack: the artifact has a whole CPython, with its headers, for both processors.
FROM_MAVEN = {"3.14": "org.bytedeco:cpython:3.14.3-1.5.13"}
OF_MAVEN = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}
# The functions of zlib that the kernels call: the wheel is linked with a library that has these names alone, and uses
# the one of the machine where it is installed.
ZLIB = ("crc32",)
USE = """
import cystore, os, sys, tempfile
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    with cystore.open(os.path.join(folder, "store"), allow_any_file_system=True) as store:
        store.put("orders", b"2 x tea", keys=("order-17",), tags="new", flush="sync")
        store.put_many([cystore.Message(topic="orders", body=body) for body in (b"a", b"b")])
        assert [m.body for m in store.query("orders", "order-17")] == [b"2 x tea"]
        assert len(store.get("orders", 0, 0).messages) == 3
    with cystore.open(os.path.join(folder, "store"), read_only=True) as store:
        assert store.get("orders", 0, 2).messages[0].text() == "b"
print(cystore.__version__, os.path.dirname(cystore.__file__))
"""


class WheelError(RuntimeError):
    """A wheel could not be made, or is not what it must be; the text has what the tool said."""


@dataclass(frozen=True)
class Target:
    """A CPython of this machine that makes a wheel, and the processor that the wheel is for."""

    python: Path
    version: str
    machine: str
    include: Path | None = None  # the headers of a CPython for that processor, if there is one

    @property
    def tag(self) -> str:
        return f"cp{self.version.replace('.', '')}"

    @property
    def platform(self) -> str:
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"

    @property
    def name(self) -> str:
        return f"CPython {self.version}, {self.machine}"


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise WheelError(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def epoch() -> str:
    """SOURCE_DATE_EPOCH: that of the environment, the day of this version in the changelog, or the last commit's time
    while it is not there."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    if day := re.search(rf"^## \[{re.escape(version)}\] - (\S+)$", changes, re.MULTILINE):
        return str(int(datetime.fromisoformat(day[1]).replace(tzinfo=UTC).timestamp()))
    return run("git", "log", "-1", "--format=%ct").strip()


def source_archive(out: Path, when: str) -> Path:
    """The source archive, packed again: files sorted, all of one time and owner."""
    code = "import sys; sys.path.insert(0, 'tools/backend'); import in_a_copy; in_a_copy.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, out)
    (archive,) = out.glob("cystore-*.tar.gz")
    packed = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = int(when), {}
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with open(archive, "wb") as written, gzip.GzipFile("", "wb", 9, written, mtime=int(when)) as zipped:
        zipped.write(packed.getvalue())
    return archive


def pythons(wanted: list[str], machines: list[str]) -> tuple[list[Target], list[str]]:
    """The targets that can be built here, and a line for each one that cannot."""
    here = interpreters.Interpreter(Path(sys.executable), sys.version_info[:2], True)
    there = {
        f"3.{found.version[1]}": found.path for found in [*interpreters.found(), here] if found.has_headers
    }
    targets, missing = [], []
    for version in wanted:
        include: dict[str, Path] = {}
        if version not in there and version in FROM_MAVEN:
            if shutil.which("mvn"):
                for machine in MACHINES:
                    home = from_maven(version, machine)
                    include[machine] = home / "include" / f"python{version}"
                    if machine == os.uname().machine:
                        there[version] = home / "bin" / f"python{version}"
            else:
                missing.append(f"CPython {version}: not on this machine, and there is no mvn to get it with")
        if version not in there:
            missing.append(f"CPython {version}: no interpreter with headers on this machine")
            continue
        targets += [Target(there[version], version, machine, include.get(machine)) for machine in machines]
    return targets, missing


def from_maven(version: str, machine: str) -> Path:
    """The folder of a whole CPython, fetched once."""
    home = ROOT / "build" / "pythons" / f"{version}-{machine}"
    if home.exists():
        return home
    group, artifact, number = FROM_MAVEN[version].split(":")
    folder = home.with_name(f"{home.name}.tmp")
    shutil.rmtree(folder, ignore_errors=True)
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    jar = f"-Dartifact={group}:{artifact}:{number}:jar:{OF_MAVEN[machine]}"
    run("mvn", "-q", "-B", plugin, jar, f"-DoutputDirectory={folder}")
    (packed,) = folder.glob("*.jar")
    with zipfile.ZipFile(packed) as zipped:
        zipped.extractall(folder)
    content = folder / "org" / "bytedeco" / "cpython" / OF_MAVEN[machine]
    for program in [*(content / "bin").iterdir(), *content.rglob("*.so*")]:
        program.chmod(0o755)
    content.rename(home)
    shutil.rmtree(folder)
    return home


class Compiler:
    """ziglang's C compiler, with the two headers of zlib and a library to link with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        include = folder / "zlib"
        include.mkdir(parents=True, exist_ok=True)
        for header in ("zlib.h", "zconf.h"):
            source = Path("/usr/include", header)
            if not source.exists():
                raise WheelError(f"there is no {source}: apt-get install zlib1g-dev")
            shutil.copy(source, include)
        self._stub = folder / "zlib.c"
        self._stub.write_text("".join(f"void {name}(void) {{}}\n" for name in ZLIB))

    def variables(self, target: Target, when: str) -> dict[str, str]:
        """The environment in which setuptools compiles for the target."""
        zig = f"{sys.executable} -m ziglang"
        compiler = f"{zig} cc -target {target.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]} -fno-sanitize=all"
        libraries = self._folder / target.machine
        libraries.mkdir(exist_ok=True)
        library = libraries / "libz.so"
        if not library.exists():
            run(*compiler.split(), "-shared", "-Wl,-soname,libz.so.1", "-o", library, self._stub)
        include = [self._folder / "zlib", *([target.include] if target.include else [])]
        return {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared -s -Wl,--build-id=none -L{libraries}",
            "AR": f"{zig} ar",
            "ARFLAGS": "rcsD",
            "CFLAGS": "-O2 -DNDEBUG -fwrapv",
            "CPPFLAGS": " ".join(f"-I{folder}" for folder in include),
            "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
            "SETUPTOOLS_EXT_SUFFIX": f".{target.tag.replace('cp', 'cpython-')}-{target.machine}-linux-gnu.so",
            "SOURCE_DATE_EPOCH": when,
            "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build" / "zig"),
            # The target's Python has none of its own; the packages' compiled parts are for this one, and optional.
            "PYTHONPATH": str(Path(metadata.distribution("setuptools").locate_file("")).resolve()),
            "PYTHONNOUSERSITE": "1",
        }


def wheel(target: Target, tree: Path, compiler: Compiler, out: Path, when: str) -> Path:
    """The target's wheel, made from an unpacked source archive. Cython translates for all targets once."""
    before = set(out.glob("*.whl"))
    shutil.rmtree(tree / "cystore.egg-info", ignore_errors=True)
    base = f"build/{target.tag}-{target.machine}"
    command = ["setup.py", "-q", "build", "--build-base", base, "bdist_wheel", "--bdist-dir", f"{base}/bdist"]
    command += ["--plat-name", target.platform, "--dist-dir", str(out)]
    run(target.python, *command, cwd=tree, **compiler.variables(target, when))
    (made,) = set(out.glob("*.whl")) - before
    return made


def check(made: Path, target: Target) -> None:
    """Its size, its names, the versions of the C library that it asks for, and no path of this machine in it."""
    size = made.stat().st_size
    if size > BYTES_MAX:
        raise WheelError(f"{made.name} has {size} bytes, more than {BYTES_MAX}")
    told = run(sys.executable, "-m", "auditwheel", "show", made)
    glibc = re.search(
        r"manylinux_(\d+)_(\d+)_" + target.machine, told.replace("\n", " ").split("constrains")[0]
    )
    if glibc is None or tuple(map(int, glibc.groups())) > GLIBC:
        raise WheelError(f"{made.name} is not {target.platform}:\n{told}")
    with zipfile.ZipFile(made) as zipped:
        for name in zipped.namelist():
            content = zipped.read(name)
            for path in {str(ROOT), str(Path.home()), str(sys.prefix)} - {"/"}:
                if path.encode() + b"/" in content:
                    raise WheelError(f"{made.name}: {name} has the path {path} in it")


def use(made: Path, target: Target, folder: Path) -> str:
    """Installs the wheel into an empty environment and uses it there, without a compiler; what was tried."""
    if target.machine != os.uname().machine:
        return _use_emulated(made, target, folder)
    env = folder / f"env-{target.tag}"
    run(target.python, "-m", "venv", "--clear", "--without-pip", env)
    python = env / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    run(*pip, made)
    alone = {"PATH": str(env / "bin"), "PYTHONPATH": ""}
    run(python, "-P", "-c", USE, folder, cwd=folder, **alone)
    run(env / "bin" / "cystore", "--help", cwd=folder, **alone)
    return "installed and used"


def _use_emulated(made: Path, target: Target, folder: Path) -> str:
    """As `use`, under QEMU: it needs the C library of that processor (/usr/aarch64-linux-gnu, or ARM64_ROOT) with a
    libz.so.1."""
    emulator = shutil.which(f"qemu-{target.machine}")
    root = Path(os.environ.get("ARM64_ROOT", f"/usr/{target.machine}-linux-gnu"))
    python = target.include and target.include.parent.parent / "bin" / f"python{target.version}"
    if not (emulator and python and python.exists() and root.exists()):
        return "not used: no emulator, or no Python and C library for it"
    site = folder / f"site-{target.tag}-{target.machine}"
    with zipfile.ZipFile(made) as zipped:
        zipped.extractall(site)
    alone = {"PYTHONPATH": str(site), "PYTHONHOME": str(python.parent.parent)}
    # With QEMU's own option -L the folder / would be that of the C library for programs, too.
    loader = [
        root / "lib" / f"ld-linux-{target.machine}.so.1",
        "--library-path",
        f"{python.parent.parent}:{root / 'lib'}",
    ]
    run(emulator, *loader, python, "-P", "-c", USE, folder, cwd=folder, **alone)
    return "used under QEMU"


def bill(out: Path, files: list[Path], when: str) -> Path:
    """The bill of materials, as CycloneDX: the files with their digests, and what is compiled into them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    inside = [("crc32c", "its C sources are compiled in", "required")]
    inside += [("Cython", "made the C sources, and part of its code is in them", "required")]
    inside += [("setuptools", "built the files", "excluded"), ("ziglang", "compiled the wheels", "excluded")]
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package.lower()}@{(number := metadata.version(package))}",
            "name": package,
            "version": number,
            "description": what,
            "scope": scope,
            "purl": f"pkg:pypi/{package.lower()}@{number}",
        }
        for package, what, scope in inside
    ]
    zlib = {"type": "library", "bom-ref": "zlib", "name": "zlib", "scope": "required"}
    components.append(zlib | {"description": "the one of the machine is loaded: libz.so.1"})
    components += [
        {
            "type": "file",
            "bom-ref": path.name,
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": digest(path)}],
        }
        for path in files
    ]
    own = f"pkg:pypi/{name}@{version}"
    text = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + ''.join(map(digest, files)))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(int(when), UTC).isoformat(),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": own,
            },
        },
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": [str(each["bom-ref"]) for each in components[:2]] + ["zlib"]}
        ],
    }
    path = out / f"{name}-{version}.cdx.json"
    path.write_text(json.dumps(text, indent=2) + "\n")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_all(folder: Path, out: Path, targets: list[Target], when: str) -> Iterator[tuple[Path, Target]]:
    """Makes the source archive and one wheel after another, in `out`; all work is below `folder`."""
    archive = source_archive(out, when)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    tree = folder / archive.name.removesuffix(".tar.gz")
    compiler = Compiler(folder)
    for target in targets:
        yield wheel(target, tree, compiler, out, when), target


def make(out: Path, targets: list[Target], twice: bool) -> None:
    when, work = epoch(), ROOT / "build" / "wheels"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    for folder in (out, work / "one"):
        folder.mkdir(parents=True)
    for path, target in build_all(work / "one", out, targets, when):
        check(path, target)
        print(
            f"wheels: {path.name}: {path.stat().st_size / 1e6:.1f} MB, {use(path, target, work)}", flush=True
        )
    files = sorted(path for path in out.iterdir() if path.is_file())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    if twice:
        (again := work / "again").mkdir()
        (elsewhere := work / "another" / "folder").mkdir(parents=True)
        for path, _ in build_all(elsewhere, again, targets, when):
            if digest(path) != digest(out / path.name):
                raise WheelError(f"a second build gave other bytes: {path} and {out / path.name}")
        (archive,) = again.glob("*.tar.gz")
        if digest(archive) != digest(out / archive.name):
            raise WheelError(f"a second build gave other bytes: {archive} and {out / archive.name}")
        print(f"wheels: a second build in another folder gave the same bytes: {len(files)} files")
    files.append(bill(out, files, when))
    (out / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))
    print(f"wheels: {len(files)} files and SHA256SUMS in {out}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Makes the source archive and the wheels.")
    parser.add_argument("--python", nargs="+", choices=VERSIONS, default=VERSIONS, help="(default: all)")
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=MACHINES, help="(default: both)")
    parser.add_argument("--twice", action="store_true", help="build again elsewhere, and compare the bytes")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="made anew (default: dist)")
    options = parser.parse_args(arguments)
    os.umask(0o022)
    try:
        targets, missing = pythons(list(options.python), list(options.machine))
        for line in missing:
            print(f"wheels: {line}: left out")
        make(options.out.resolve(), targets, options.twice)
    except WheelError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
