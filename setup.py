"""Builds the Cython kernels; all other metadata is in pyproject.toml.

CYSTORE_BUILD=asan builds with the address and undefined-behaviour sanitizers, CYSTORE_BUILD=fuzz with them and a call
at every branch (see tools/coverage.c), CYSTORE_BUILD=failpoints with the named failpoints of the crash tests compiled
in, CYSTORE_BUILD=interpreter quickly for another Python (see tools/interpreters.py), CYSTORE_BUILD=metadata no kernel
at all (registers the package beside kernels that are built in place). The CRC-32C kernel is the one of the crc32c
package: its wheel ships its C sources.

A build that cannot work says so before it translates or compiles anything: `Needs`.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig

LEAST_PYTHON = (3, 11)
# Before the imports below: they may fail for the same reason, in other words.
if sys.platform != "linux":
    raise SystemExit(
        f"cystore runs on Linux only, and this is {sys.platform}: it needs futexes, robust locks and fallocate"
    )
if sys.version_info < LEAST_PYTHON:
    raise SystemExit(
        f"cystore needs Python {'.'.join(map(str, LEAST_PYTHON))} or newer, and this is Python "
        f"{'.'.join(map(str, sys.version_info[:2]))} ({sys.executable})"
    )

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError
from setuptools.modified import newer_group

NATIVE = Path("cystore/_native")
JOBS = len(os.sched_getaffinity(0))
VARIANT = os.environ.get("CYSTORE_BUILD", "")
MACHINE = sysconfig.get_platform().rpartition("-")[
    2
]  # another one than this, if the compiler is for another one
CRC32C = Path(find_spec("crc32c").origin).parent / "ext"

COMPILE = [
    "-std=gnu11",
    "-O2",  # -O3 took a quarter longer to compile
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
elif VARIANT not in ("", "metadata"):
    raise SystemExit(
        f"CYSTORE_BUILD={VARIANT!r}: choose asan, fuzz, failpoints, interpreter, metadata or nothing"
    )


# With -O2 in all rooms a put and a query were a twentieth slower; these are the rooms on their way.
FAST = tuple(f"cystore._native.{room}" for room in ("append", "record", "derived", "lookup"))


def in_place(library):
    """The flags of a library that is built in place."""
    return [*IN_PLACE, "-O3"] if library in FAST else IN_PLACE


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
if MACHINE in ("aarch64", "arm64"):
    CRC32C_SOURCES = ["crc32c_sw.c", "crc32c_arm64.c", "checkarm.c"]

# Cython's code for typed memory views and functions, once instead of in each module: it took half of the build's time.
SHARED = "cystore._native.system.shared"


class Needs:
    """What a build needs of this machine."""

    # Each header: what it is, and the packages of Debian and Fedora that bring it.
    HEADERS = {
        "stdio.h": ("the headers of the C library", "libc6-dev", "glibc-devel"),
        "Python.h": ("the headers of Python", "python3-dev", "python3-devel"),
        "zlib.h": ("the header of zlib", "zlib1g-dev", "zlib-devel"),
    }

    @classmethod
    def check(cls):
        """Raises PlatformError, which setuptools shows as one line."""
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        if not shutil.which(compiler[0]):
            raise PlatformError(
                f"cystore needs a C compiler, and there is no {compiler[0]!r}: "
                "apt-get install gcc libc6-dev (Fedora: dnf install gcc), or name another one in CC"
            )
        error = cls._error_of(compiler, cls.HEADERS)
        if not error:
            return
        missing = [told for header, told in cls.HEADERS.items() if cls._error_of(compiler, [header])]
        if not missing or cls._error_of(compiler, []):
            raise PlatformError(
                f"cystore needs a C compiler, and {shlex.join(compiler)} does not work: {error}"
            )
        what, debian, fedora = zip(*missing, strict=True)
        raise PlatformError(
            f"cystore needs {', '.join(what)}: apt-get install {' '.join(debian)} "
            f"(Fedora: dnf install {' '.join(fedora)})"
        )

    @staticmethod
    def _error_of(compiler, headers):
        """What the compiler says of these headers; nothing if it finds them."""
        flags = [word for name in ("CPPFLAGS", "CFLAGS") for word in shlex.split(os.environ.get(name, ""))]
        folders = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"))
        command = [*compiler, *flags, *(f"-I{folder}" for folder in folders), "-E", "-xc", "-"]
        source = "".join(f"#include <{header}>\n" for header in headers)
        done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
        return done.returncode and (done.stderr.strip() or f"exit code {done.returncode}")


class BuildCrc32c(build_clib):
    """Compiles the crc32c package's C sources with flags of their own: their warnings are not ours."""

    def run(self):
        Needs.check()  # nothing is compiled before this library, and nothing translated
        super().run()

    # Instructions that not every processor of the kind has: these files are called where they are there.
    EXTENSIONS = {"crc32c_adler.c": "-msse4.2", "crc32c_arm64.c": "-mcpu=generic+crc+crypto"}

    def build_libraries(self, libraries):
        for name, build in libraries:
            objects = []
            for source in build["sources"]:
                flags = ["-O3", "-fPIC", "-w"]
                if MACHINE in ("x86_64", "aarch64") and (extension := self.EXTENSIONS.get(Path(source).name)):
                    flags.append(extension)
                folder = str(Path(self.build_temp).resolve())
                objects += self.compiler.compile([source], output_dir=folder, extra_postargs=flags)
            self.compiler.create_static_lib(objects, name, output_dir=self.build_clib)


class BuildExtensions(build_ext):
    """Makes the static library first, also when only the extensions are asked for. Compiles one module on each core,
    whichever library it is for, and only the modules that changed."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = JOBS

    def run(self):
        if not any(library.sources for library in self.extensions):
            return  # nothing to build, or built by an earlier command of the same run
        self.run_command("build_clib")
        in_c(self.extensions)
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
            folder, flags = str(Path("build", Path(folder).name)), in_place(extension.name)
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


def in_c(libraries):
    """Lets Cython translate the modules of each library. From then on its sources are C files."""
    sources = {
        f"{library.name}.{Path(source).stem}": source for library in libraries for source in library.sources
    }
    sources[SHARED] = f"{SHARED.replace('.', '/')}.c"
    modules = cythonize(
        [Extension(name, [source]) for name, source in sources.items()],
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        shared_utility_qualified_name=SHARED,
        nthreads=JOBS,
    )
    for library in libraries:
        library.sources = [
            source
            for module in modules
            if module.name.startswith(f"{library.name}.")
            for source in module.sources
        ]


setup(
    ext_modules=[
        Extension(
            # a library beside the room's folder; cystore/_native/__init__.py finds modules in it
            f"cystore._native.{room}",
            [str(path) for path in sorted((NATIVE / room).glob("*.pyx"))],
            include_dirs=[str(NATIVE), *(str(NATIVE / name) for name in LIBRARIES), str(CRC32C)],
            libraries=LIBRARIES[room],
            extra_compile_args=COMPILE if VARIANT else in_place(f"cystore._native.{room}"),
            extra_link_args=LINK,
            define_macros=MACROS,
            depends=[str(path) for path in NATIVE.rglob("*.h")],
        )
        for room in (LIBRARIES if VARIANT != "metadata" else ())
    ],
    libraries=[("cystore_crc32c", {"sources": [str(CRC32C / name) for name in CRC32C_SOURCES]})],
    cmdclass={"build_clib": BuildCrc32c, "build_ext": BuildExtensions},
)
