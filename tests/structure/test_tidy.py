"""Goal: the house's rules hold. Method: each rule is data below; its test reads every file it is about.

A rule that has no exceptions needs no judgement: the few places that may differ stand beside the rule, with their
reason.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from dataclasses import dataclass, field
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType

import pytest

from tests.structure.sources import files, name_of

LINES_MAX = 600
COLUMNS_MAX = 120
CODE = (".py", ".pyx", ".pxd", ".pyi", ".h", ".c", ".java")


@dataclass(frozen=True)
class Ban:
    """A pattern that must not stand in files of these kinds below these folders."""

    why: str
    pattern: str
    suffixes: tuple[str, ...] = CODE
    under: tuple[str, ...] = ("",)
    # File: the reason why it may.
    allowed: dict[str, str] = field(default_factory=dict)
    # One line that breaks the rule, so that the pattern itself is tested.
    example: str = ""


THIS = {"tests/structure/test_tidy.py": "the rules themselves"}
SYSTEM_CALLS = {
    "cystore/system/files.py": "the only caller",
    "cystore/system/ranges/file_ranges.py": "changes lengths of files that files.py opened",
    "cystore/system/folders.py": "opens what stands in an open folder",
    "cystore/system/file_system.py": "the rest of it: whole file systems, exchanged names",
    "cystore/system/small_files.py": "files that are written in place",
    "cystore/clock.py": "the only caller",
    "cystore/config.py": "reads a settings file; below files.py",
    "cystore/reports/report_folder.py": "writes the user's report, no file of a store",
}

BANS = (
    Ban("work left open goes into an issue", r"\b(TODO|FIXME|HACK)\b", allowed=THIS, example="# TODO: later"),
    Ban(
        "only a name of RocketMQ's may hold three crosses",
        r"\bXXX\b",
        allowed=THIS,
        example="# XXX why",
    ),
    Ban(
        "wait for an event, not for time to pass",
        r"\btime\.sleep\(|from time import .*\bsleep\b",
        (".py",),
        ("tests",),
        allowed=THIS,
        example="    time.sleep(0.1)",
    ),
    Ban(
        "directives stand once, in setup.py",
        r"^# *cython:|@cython\.(boundscheck|wraparound|cdivision)",
        (".pyx", ".pxd"),
        example="# cython: boundscheck=False",
    ),
    Ban(
        "Cython's DEF and textual includes are deprecated",
        r"^\s*(DEF|include) ",
        (".pyx", ".pxd"),
        example="DEF N = 1",
    ),
    Ban(
        "every name imported is named",
        r"^from \S+ import \*",
        (".py",),
        allowed=THIS,
        example="from os import *",
    ),
    Ban(
        "every name cimported is named",
        r"^\s*from \S+ cimport \*",
        (".pyx", ".pxd", ".pxi"),
        example="from libc.stdint cimport *",
    ),
    Ban(
        "a test that asserts nothing",
        r"^\s*assert True\b",
        (".py",),
        ("tests",),
        allowed=THIS,
        example="assert True",
    ),
    Ban(
        "a test that is expected to fail is an issue",
        r"mark\.xfail",
        (".py",),
        ("tests",),
        allowed=THIS,
        example="@pytest.mark.xfail",
    ),
    Ban(
        "a status is compared with its name, not with a number",
        r"\b\w*(?:status|returncode|exit_code)\s*(?:==|!=|<=?|>=?|in)\s*[({\[]?-?\d",
        (".py", ".pyx", ".pxd"),
        ("cystore", "celery_app"),
        example="    if status != 0:",
    ),
    Ban(
        "a program ends with a named exit code",
        r"(?:\b_?exit|\bSystemExit|\.abort)\(-?\d",
        (".py", ".pyx"),
        ("cystore", "celery_app", "benchmarks/__main__.py"),
        example="sys.exit(2)",
    ),
    Ban(
        "one guard takes the shared locks: memory/locks.pxd",
        r"\b(?:pthread_mutex_(?:try|timed)?lock|pthread_mutex_unlock|robust_(?:try|un)?lock\w*)\(",
        (".pyx", ".pxd"),
        ("cystore",),
        allowed={
            "cystore/_native/memory/locks.pxd": "the guard",
            "cystore/_native/memory/locks.pyx": "its wait",
            "cystore/_native/memory/atomics.pxd": "declarations",
            "cystore/_native/lookup/tail.pyx": "a lock of one process, not of the control block",
            "cystore/_native/lookup/tail_table.pyx": "a lock of one process, not of the control block",
        },
        example="    pthread_mutex_lock(&lock)",
    ),
    Ban(
        "one module starts threads, so that no room for one is said as what it is",
        r"\bthreading\.(?:Thread|Timer)\(|\b(?:Thread|Process)PoolExecutor\(|\bstart_new_thread\b|import Thread\b",
        (".py", ".pyx"),
        ("cystore", "celery_app", "pyspark_cystore.py"),
        allowed={
            "cystore/system/threads/os_threads.py": "that module",
            "cystore/system/threads/thread_pool.py": "pools of them",
        },
        example="    threading.Thread(target=work).start()",
    ),
    Ban(
        "kernels return facts, and Python logs them",
        r"\bimport logging\b|\bgetLogger\(|\blog\.(?:debug|info|warning|error|exception)\(",
        (".pyx", ".pxd"),
        example="import logging",
    ),
    Ban(
        "one module reads and writes the JSON files of a store",
        r"\bjson\.(?:loads?|dumps?)\(",
        (".py",),
        tuple(
            f"cystore/{room}" for room in ("engine", "derived", "recovery", "services", "consumers", "system")
        ),
        allowed={"cystore/system/checked_json.py": "that module"},
        example="json.loads(data)",
    ),
    Ban(
        "nothing is stubbed",
        r"\bNotImplementedError\b",
        (".py", ".pyx"),
        allowed=THIS,
        example="raise NotImplementedError",
    ),
)
# Stored fields of compiled classes, which cannot carry a text.
FIELD_TYPES = (GetSetDescriptorType, MemberDescriptorType)
CLI = ("cystore/cli/", "cystore/operate/")


def _banned(ban: Ban, text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if re.search(ban.pattern, line)]


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.why)
def test_banned(ban):
    assert _banned(ban, ban.example), "the rule does not see its own example"
    found = [
        f"{name_of(path)}:{number}"
        for path in files(*ban.suffixes, under=ban.under)
        if name_of(path) not in ban.allowed
        for number in _banned(ban, path.read_text())
    ]
    assert not found, f"{ban.why}: {found}"


def _is_long(text: str) -> bool:
    return len(text.splitlines()) > LINES_MAX and "generated by" not in text[:300].lower()


def test_no_file_is_longer_than_it_should_be():
    assert _is_long("\n" * (LINES_MAX + 1)) and not _is_long("Generated by us." + "\n" * (LINES_MAX + 1))
    long = [name_of(path) for path in files(*CODE) if _is_long(path.read_text())]
    assert not long, f"one idea a file: split {long}"


def test_no_line_is_longer_than_it_should_be():
    long = [
        f"{name_of(path)}:{number}"
        for path in files(*CODE, under="cystore")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > COLUMNS_MAX
    ]
    assert not long


OUTSIDE_CALLS = {
    *(
        "open",
        "io.open",
        "os.open",
        "os.fdopen",
        "os.fsync",
        "os.fdatasync",
        "os.rename",
        "os.replace",
        "os.unlink",
        "os.remove",
    ),
    *(
        "os.truncate",
        "os.ftruncate",
        "os.posix_fallocate",
        "os.mkdir",
        "os.makedirs",
        "shutil.rmtree",
        "shutil.move",
    ),
    *("time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow"),
}


def _outside_calls(text: str) -> list[tuple[int, str]]:
    """Calls that reach the file system or the wall clock, in a Python file."""
    return [
        (node.lineno, name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in OUTSIDE_CALLS
    ]


def test_only_files_and_clock_reach_the_file_system_and_the_clock():
    assert _outside_calls("import os\nos.fsync(1)\nfiles.open(1)") == [(2, "os.fsync")]
    found = [
        f"{name_of(path)}:{line} {call}"
        for path in files(".py", under="cystore")
        if name_of(path) not in SYSTEM_CALLS and not name_of(path).startswith(CLI)
        for line, call in _outside_calls(path.read_text())
    ]
    pattern = re.compile(
        r"(?<![\w.])(" + "|".join(re.escape(name) for name in sorted(OUTSIDE_CALLS)) + r")\("
    )
    for path in files(".pyx", under="cystore"):
        if name_of(path) in SYSTEM_CALLS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (
                (match := pattern.search(line))
                and not re.match(r"\s*(cp?def|def) ", line)
                and not line.lstrip().startswith("#")
            ):
                found.append(f"{name_of(path)}:{number} {match[1]}")
    assert not found, f"only cystore/system/files.py and cystore/clock.py may: {found}"


def _swallowed(text: str) -> list[int]:
    """Lines of handlers that catch everything and say nothing: bare, or of a whole class of errors with nothing
    inside."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        raises = any(isinstance(inner, ast.Raise) for statement in node.body for inner in ast.walk(statement))
        caught = ast.unparse(node.type) if node.type else ""
        silent = all(isinstance(s, (ast.Pass, ast.Continue, ast.Constant)) for s in node.body)
        if (not caught and not raises) or (caught in ("Exception", "BaseException") and silent):
            lines.append(node.lineno)
    return lines


def test_no_exception_is_swallowed():
    assert _swallowed("try:\n    f()\nexcept Exception:\n    pass") == [3]
    assert _swallowed("try:\n    f()\nexcept:\n    log()") == [3]
    assert not _swallowed(
        "try:\n    f()\nexcept OSError:\n    pass\nexcept BaseException:\n    g()\n    raise"
    )
    found = [f"{name_of(path)}:{line}" for path in files(".py") for line in _swallowed(path.read_text())]
    assert not found


def test_every_test_file_is_collected():
    """A file with tests whose name pytest does not take would never run."""
    lost = [
        name_of(path)
        for path in files(".py", under="tests")
        if not path.name.startswith("test_")
        and re.search(r"^(def test_|class Test)", path.read_text(), re.MULTILINE)
    ]
    assert not lost


def test_test_files_say_their_goal():
    silent = [
        name_of(path)
        for path in files(".py", under="tests")
        if path.name.startswith("test_") and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, "a test file opens by saying its goal and method"


def test_the_library_does_not_print():
    """It returns, raises or logs; only the command prints."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in files(".py", under="cystore")
        if not name_of(path).startswith(CLI)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert not found


def _public(module: ModuleType) -> list[tuple[str, object]]:
    """The names in a module's `__all__`, and the public members that its classes define themselves."""
    found = []
    for name in module.__all__:
        item = getattr(module, name)
        found.append((name, item))
        if inspect.isclass(item) and not issubclass(item, (Exception, enum.Enum, tuple)):
            fields = getattr(item, "__dataclass_fields__", {})
            members = {
                key: value
                for key, value in vars(item).items()
                if not key.startswith("_") and key not in fields and not isinstance(value, FIELD_TYPES)
            }
            found += [(f"{name}.{key}", value) for key, value in members.items()]
    return found


@pytest.mark.parametrize("module", ["cystore"])
def test_every_public_name_is_documented(module):
    bare = [name for name, item in _public(importlib.import_module(module)) if not inspect.getdoc(item)]
    assert not bare
