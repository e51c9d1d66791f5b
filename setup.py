"""Builds the Cython kernels; all other metadata is in pyproject.toml.

CYSTORE_BUILD=asan builds with the address and undefined-behaviour sanitizers, CYSTORE_BUILD=fuzz with them and a call
at every branch (see tools/coverage.c), CYSTORE_BUILD=failpoints with the named failpoints of the crash tests compiled
in, CYSTORE_BUILD=interpreter quickly for another Python (see tools/interpreters.py), CYSTORE_BUILD=metadata no kernel
at all (registers the package beside kernels that are built in place). The CRC-32C kernel is the one of the crc32c
package: its wheel ships its C sources.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("cystore/_native")
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
# Python's own flags ask for debugging information: four fifths of the installed bytes.
IN_PLACE = [*COMPILE, "-g0"]
LINK: list[str] = []
MACROS: list[tuple[str, str | None]] = [("CYTHON_CLINE_IN_TRACEBACK", "0")]
if VARIANT in ("asan", "fuzz"):
    SANITIZE = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
        "-g1",  # a finding's stack names functions and lines; variables cost the build a sixth of its time
    ]
    # The fuzzer runs for hours. The tests of `asan` run for a minute, and their build takes longer than that.
    COMPILE += [*SANITIZE, "-O1" if VARIANT == "fuzz" else "-O0"]
    LINK += SANITIZE
    if VARIANT == "fuzz":
        COMPILE.append("-fsanitize-coverage=trace-pc")
elif VARIANT == "failpoints":
    MACROS.append(("CYSTORE_FAILPOINTS", "1"))
    COMPILE += ["-O0", "-g0"]  # a kill does not care how fast it came; the build does
elif VARIANT == "interpreter":
    COMPILE += ["-O0", "-g0"]
elif VARIANT == "":
    COMPILE = IN_PLACE
elif VARIANT != "metadata":
    raise SystemExit(
        f"CYSTORE_BUILD={VARIANT!r}: choose asan, fuzz, failpoints, interpreter, metadata or nothing"
    )

# Each room is one library: its name, and the C libraries that it needs beside the C library itself.
LIBRARIES: dict[str, list[str]] = {
    "system": [],
    "memory": [],
    "record": ["z"],
    "filters": [],
    "append": [],
    "replication": [],
    "derived": [],
    "scan": [],
    "lookup": [],
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
    """Makes the static library first, also when only the extensions are asked for. Compiles one module on each core,
    whichever library it is for, and only the modules that changed."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = JOBS

    def run(self):
        self.run_command("build_clib")
        super().run()

    def build_extensions(self):
        modules = [(extension, source) for extension in self.extensions for source in extension.sources]
        modules.sort(key=lambda module: -os.path.getsize(module[1]))  # the longest first: no core ends late
        with ThreadPoolExecutor(int(self.parallel)) as pool:
            objects = list(pool.map(lambda module: (module[0], self._object_of(*module)), modules))
        for extension in self.extensions:
            # A library whose objects are older than itself is not linked again.
            extension.extra_objects = [built for owner, built in objects if owner is extension]
            extension.sources, extension.depends = [], extension.extra_objects
        super().build_extensions()

    def _object_of(self, extension, source):
        folder, flags = self.build_temp, extension.extra_compile_args
        if VARIANT == "failpoints" and "failpoint" not in Path(source).read_text():
            # Such a module is the same without failpoints: the build in place has its object, or finds it.
            folder, flags = str(Path("build", Path(folder).name)), IN_PLACE
        (built,) = self.compiler.object_filenames([source], output_dir=folder)
        if self.force or newer_group([source, *extension.depends], built):
            self.compiler.compile(
                [source],
                output_dir=folder,
                macros=extension.define_macros,
                include_dirs=extension.include_dirs,
                debug=self.debug,
                extra_postargs=flags,
            )
        return built


def in_c(rooms):
    """Lets Cython translate every module; returns the C sources of each room."""
    modules = [
        Extension(f"cystore._native.{room}.{path.stem}", [str(path)])
        for room in rooms
        for path in sorted((NATIVE / room).glob("*.pyx"))
    ]
    sources = {room: [] for room in rooms}
    for module in cythonize(
        modules,
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        nthreads=JOBS if len(modules) > 1 else 0,
    ):
        sources[module.name.split(".")[2]] += module.sources
    return sources


SOURCES = in_c(LIBRARIES if VARIANT != "metadata" else ())

setup(
    ext_modules=[
        Extension(
            # a library beside the room's folder; cystore/_native/__init__.py finds modules in it
            f"cystore._native.{room}",
            sources,
            include_dirs=[str(NATIVE), *(str(NATIVE / name) for name in LIBRARIES), str(CRC32C)],
            libraries=LIBRARIES[room],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
            define_macros=MACROS,
            depends=[str(path) for path in NATIVE.rglob("*.h")],
        )
        for room, sources in SOURCES.items()
    ],
    libraries=[("cystore_crc32c", {"sources": [str(CRC32C / name) for name in CRC32C_SOURCES]})],
    cmdclass={"build_clib": BuildCrc32c, "build_ext": BuildExtensions},
)
