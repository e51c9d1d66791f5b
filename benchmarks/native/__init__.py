"""Compiles the C floors once (into build/benchmarks) and calls or runs them."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sysconfig
from array import array
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = HERE / "baseline.c"
MAP_FIXED = 0x10  # of Linux
LARGE_PAGE_BYTES = 2 * 1024 * 1024
LIBRARY = ROOT / "build" / "benchmarks" / "baseline.so"


@cache
def library() -> ctypes.CDLL:
    """The loaded library, compiled anew when its source is newer."""
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
        _compile()
    loaded = ctypes.CDLL(str(LIBRARY))
    functions = (
        loaded.copy_records,
        loaded.copy_together,
        loaded.pass_line,
        loaded.shared_log_bytes,
        loaded.shared_log_make,
        loaded.checksum_pieces,
        loaded.lock_and_unlock,
        loaded.load_at_random,
        loaded.time_steps,
    )
    for function in functions:
        function.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.copy_records.argtypes = [pointer, number, pointer, pointer, number, number]
    loaded.shared_log_bytes.argtypes = []
    loaded.shared_log_make.argtypes = [pointer]
    loaded.copy_together.argtypes = [pointer, pointer, number, pointer, *[number] * 4]
    loaded.pass_line.argtypes = [pointer, number, number]
    loaded.time_steps.argtypes = [number]
    loaded.checksum_pieces.argtypes = [pointer, pointer, number, pointer]
    loaded.lock_and_unlock.argtypes = [number]
    loaded.load_at_random.argtypes = [*[pointer] * 4, number, number]
    loaded.look_up.argtypes = [pointer, pointer, number]
    loaded.look_up.restype = ctypes.c_double
    loaded.choose_kernel()
    return loaded


class Joined:
    """Files that are mapped for reading one behind the other, from `begin` on. As in a store, a large page is mapped as
    a whole: it begins at a multiple of its size, in memory and in the first file. `in_large_pages`: they are copies in
    memory that has only such pages, if the system allows it. A context manager."""

    def __init__(self, paths: list[Path], *, in_large_pages: bool = False) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        sizes = [path.stat().st_size for path in paths]
        self._length = sum(sizes) + LARGE_PAGE_BYTES
        self._all = self._map(None, self._length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.begin = at = -(-self._all // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        if in_large_pages:
            self._libc.madvise(self.begin, sum(sizes), mmap.MADV_HUGEPAGE)
        for path, size in zip(paths, sizes, strict=True):  # sizes are multiples of a page, but for the last
            with open(path, "rb") as file:
                if in_large_pages:
                    file.readinto((ctypes.c_char * size).from_address(at))
                else:
                    self._map(at, size, mmap.MAP_SHARED | MAP_FIXED, file.fileno(), mmap.PROT_READ)
            at += size

    def _map(
        self, at: int | None, length: int, flags: int, fd: int, access: int = mmap.PROT_READ | mmap.PROT_WRITE
    ) -> int:
        found = self._libc.mmap(at, length, access, flags, fd, 0)
        if found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return int(found)

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *_: object) -> None:
        self._libc.munmap(self._all, self._length)


class LookupFiles(ctypes.Structure):
    """A store's mapped index files, newest first, and its log, whose records take `record_lines` cache lines."""

    _fields_ = (
        ("indexes", ctypes.POINTER(ctypes.c_void_p)),
        ("index_count", ctypes.c_int64),
        ("slots_at", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("entries_at", ctypes.c_int64),
        ("log", ctypes.c_void_p),
        ("record_lines", ctypes.c_int64),
    )

    @classmethod
    def of(
        cls, indexes: list[int], slots_at: int, slots: int, entries_at: int, log: int, lines: int
    ) -> LookupFiles:
        begins = (ctypes.c_void_p * len(indexes))(*indexes)
        return cls(begins, len(indexes), slots_at, slots, entries_at, log, lines)

    def lookup_ns(self, hashes: array[int]) -> float:
        """ns of a lookup of a key, which is known by its hash in the index. Lookups overlap, and only load."""
        begin, _ = hashes.buffer_info()
        ns = float(library().look_up(ctypes.byref(self), begin, len(hashes)))
        if ns < 0:
            raise RuntimeError("a hash is not in the index")
        return ns


def nothing() -> Callable[..., None]:
    """A function in C that takes any arguments and returns at once."""
    make: Any = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    definition = ctypes.c_char.in_dll(library(), "nothing_definition")
    function: Callable[..., None] = make(ctypes.addressof(definition), None, None)
    return function


def replicated_ns(folder: Path, writers: int, count: int, record_bytes: int, *, syncs: bool) -> int:
    """Nanoseconds of a round of replicated puts in bare C (replicated.c). `syncs`: the other process syncs, too."""
    return int(_run("replicated", folder, writers, count, record_bytes, int(syncs)))


def shipped_ns(
    folder: Path, count: int, record_bytes: int, put_ns: int, rounds: int, pace: int
) -> list[list[int]]:
    """Nanoseconds of pairs of rounds of puts in bare C (shipped.c): three of a round without a slave, which are in all,
    on a processor, and ready for one, and the same beside a slave. `pace`: puts a second, 0 for no limit."""
    lines = _run("shipped", folder, count, record_bytes, put_ns, rounds, pace).splitlines()
    return [[int(ns) for ns in line.split()] for line in lines]


def _run(name: str, folder: Path, *numbers: int) -> str:
    """What a program prints. It is compiled anew when its source is newer."""
    source, program = HERE / f"{name}.c", LIBRARY.parent / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        temporary = program.with_suffix(f".{os.getpid()}")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O3", "-w", "-pthread", str(source), "-o", str(temporary)], check=True)
        temporary.replace(program)
    command = [str(program), str(folder), *(str(number) for number in numbers)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def _compile() -> None:
    package = find_spec("crc32c")
    if package is None or package.origin is None:
        raise RuntimeError("the crc32c package, whose C sources the floors use, is not installed")
    crc32c = Path(package.origin).parent / "ext"
    x86 = platform.machine() in ("x86_64", "AMD64")
    kernel = [
        "crc32c_sw.c",
        *(["crc32c_adler.c", "checksse42.c"] if x86 else ["crc32c_arm64.c", "checkarm.c"]),
    ]
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-O3", "-w", "-fPIC", "-shared", *(["-msse4.2"] if x86 else [])]
    command += [
        *(f"-I{ROOT / 'cystore' / '_native' / room}" for room in ("", "memory", "record")),
        f"-I{crc32c}",
        f"-I{sysconfig.get_path('include')}",
        str(SOURCE),
        *(str(crc32c / name) for name in kernel),
    ]
    temporary = LIBRARY.with_suffix(f".{os.getpid()}")
    subprocess.run([*command, "-o", str(temporary)], check=True)
    temporary.replace(LIBRARY)
