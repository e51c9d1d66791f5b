"""Builds the Cython kernels; all other metadata is in pyproject.toml.

CYSTORE_BUILD=asan builds with the address and undefined-behaviour sanitizers, CYSTORE_BUILD=fuzz with them and a call at every
branch (see tools/coverage.c), CYSTORE_BUILD=failpoints with the named
failpoints of the crash tests compiled in, CYSTORE_BUILD=metadata no kernel at all (registers the package beside kernels that
are built in place). The CRC-32C kernel is the one of the crc32c package: its wheel ships its C sources.
"""

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext

NATIVE = Path("cystore/_native")
ROOMS = [str(path) for path in sorted(NATIVE.iterdir()) if (path / "__init__.py").exists()]
JOBS = len(os.sched_getaffinity(0))
VARIANT = os.environ.get("CYSTORE_BUILD", "")
CRC32C = Path(find_spec("crc32c").origin).parent / "ext"

COMPILE = [
    "-std=gnu11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-cast-function-type",
    "-fno-strict-aliasing",
]
LINK: list[str] = []
MACROS: list[tuple[str, str | None]] = [("CYTHON_CLINE_IN_TRACEBACK", "0")]
if VARIANT in ("asan", "fuzz"):
    SANITIZE = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
        "-g",
    ]
    COMPILE += [*SANITIZE, "-O1"]
    LINK += SANITIZE
    if VARIANT == "fuzz":
        COMPILE.append("-fsanitize-coverage=trace-pc")
elif VARIANT == "failpoints":
    MACROS.append(("CYSTORE_FAILPOINTS", "1"))
    COMPILE.append("-O1")  # a kill does not care how fast it came; the build does
elif VARIANT == "":
    # Python's own flags ask for debugging information: four fifths of the installed bytes.
    COMPILE.append("-g0")
elif VARIANT != "metadata":
    raise SystemExit(f"CYSTORE_BUILD={VARIANT!r}: choose asan, fuzz, failpoints, metadata or nothing")

# Extension name: the C libraries it needs beside the C library itself.
EXTENSIONS: dict[str, list[str]] = {
    "system.failpoint": [],
    "system.descriptor": [],
    "record.checksum": ["z"],
    "memory.locks": [],
    "memory.control": [],
    "memory.queue_table": [],
    "memory.mapping": [],
    "record.record": [],
    "record.message": [],
    "append.append": [],
    "memory.store_clock": [],
    "record.exact": [],
    "record.properties": [],
    "append.appender": [],
    "append.put": [],
    "derived.delay": [],
    "memory.upkeep": [],
    "record.window": [],
    "derived.queue": [],
    "derived.ext": [],
    "derived.index": [],
    "read.key_reader": [],
    "read.tail": [],
    "system.log_files": [],
    "system.queue_files": [],
    "derived.dispatch": [],
    "read.get_result": [],
    "read.queue_reader": [],
    "read.scan": [],
    "derived.index_chains": [],
    "read.columns": [],
    "derived.entries": [],
}

# The whole set of Cython directives; files carry none of their own.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}

CRC32C_SOURCES = ["crc32c_sw.c", "crc32c_adler.c", "checksse42.c"]
if platform.machine() in ("aarch64", "arm64"):
    CRC32C_SOURCES = ["crc32c_sw.c", "crc32c_arm64.c", "checkarm.c"]


class BuildCrc32c(build_clib):
    """Compiles the crc32c package's C sources with flags of their own: their warnings are not ours."""

    def build_libraries(self, libraries):
        flags = ["-O3", "-fPIC", "-w"] + (["-msse4.2"] if platform.machine() in ("x86_64", "AMD64") else [])
        for name, build in libraries:
            objects = [
                item
                for source in build["sources"]
                for item in self.compiler.compile(
                    [source],
                    output_dir=str(Path(self.build_temp).resolve()),
                    extra_postargs=[f for f in flags if f != "-msse4.2" or "adler" in source],
                )
            ]
            self.compiler.create_static_lib(objects, name, output_dir=self.build_clib)


class BuildExtensions(build_ext):
    """Makes the static library first, also when only the extensions are asked for. Compiles one module on each core."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = JOBS

    def run(self):
        self.run_command("build_clib")
        super().run()


modules = [
    Extension(
        f"cystore._native.{name}",
        [str(NATIVE / f"{name.replace('.', '/')}.pyx")],
        include_dirs=[str(NATIVE), *ROOMS, str(CRC32C)],
        libraries=libraries,
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        define_macros=MACROS,
        depends=[str(path) for path in NATIVE.rglob("*.h")],
    )
    for name, libraries in EXTENSIONS.items()
    if VARIANT != "metadata" and (NATIVE / f"{name.replace('.', '/')}.pyx").exists()
]

setup(
    ext_modules=cythonize(
        modules,
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        nthreads=JOBS if len(modules) > 1 else 0,
    ),
    libraries=[("cystore_crc32c", {"sources": [str(CRC32C / name) for name in CRC32C_SOURCES]})],
    cmdclass={"build_clib": BuildCrc32c, "build_ext": BuildExtensions},
)
