"""Goal: a store's files are reached in one way, without following links, and nothing stored is ever executed. Method:
rules over the syntax of every source of the library."""

from __future__ import annotations

import ast
import re

from tests.structure.sources import files, name_of

# Beside the calls of test_tidy.py: methods that open, make or remove what a path names, whatever they are called on.
PATH_METHODS = {
    *("read_bytes", "read_text", "write_bytes", "write_text", "touch", "mkdir", "rmdir", "unlink"),
    *("symlink_to", "hardlink_to", "rename", "replace", "chmod", "iterdir"),
}
MAY_REACH = {
    "cystore/system/files.py": "the only caller",
    "cystore/system/folders.py": "opens what stands in an open folder",
    "cystore/system/file_system.py": "the rest of it: whole file systems, exchanged names",
    "cystore/system/platform.py": "reads what the kernel says of processes",
    "cystore/reports/report_folder.py": "renames the user's report, no file of a store",
}
OPENS = {"open_in", "open_beneath"}
LISTS = {"os.scandir", "MappedFile.of", "MappedFile.open"}

# What a driver and its own executors send to each other, as Spark itself does; nothing of it is stored.
PICKLED_BY_SPARK = "cystore/spark/jobs/spread.py"
UNPICKLES = re.compile(
    r"^\s*(?:from|import|cimport)\b.*\b(?:_?c?[pP]ickle|marshal|shelve|dill|cloudpickle|copyreg|joblib)\b"
)


def _reaching(text: str) -> list[tuple[int, str]]:
    """Calls of such methods on something that is no text, and of what lists or maps by path."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, on = ast.unparse(node.func), node.func.value
        is_method = node.func.attr in PATH_METHODS and not (isinstance(on, ast.Name) and on.id == "files")
        # str.replace and dataclasses.replace are something else.
        other = node.func.attr == "replace" and (len(node.args) != 1 or node.keywords)
        if name in LISTS or (is_method and not other):
            found.append((node.lineno, name))
    return found


def test_every_file_of_a_store_is_opened_by_files_py():
    assert _reaching("path.read_bytes()\nfiles.rename(a)\n'a'.replace('a', 'b')\nos.scandir('/')") == [
        (1, "path.read_bytes"),
        (4, "os.scandir"),
    ]
    found = [
        f"{name_of(path)}:{line} {call}"
        for path in files(".py", under="cystore")
        if name_of(path) not in MAY_REACH
        and not name_of(path).startswith(("cystore/cli/", "cystore/operate/"))
        for line, call in _reaching(path.read_text())
    ]
    assert not found, f"only cystore/system/files.py may: {found}"


def test_the_one_way_follows_no_link():
    """Each call that opens says so, by itself or by the flags that it names. That it is closed on exec is `open_in`'s
    own rule."""
    opening = {"cystore/system/files.py": {"_open"}, "cystore/system/folders.py": None}
    for name, expected in opening.items():
        text = files(".py", under=name)[0].read_text()
        source = ast.parse(text)
        flags = {
            node.targets[0].id: ast.unparse(node.value)
            for node in source.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        callers = {
            function.name: ast.unparse(function)
            for function in ast.walk(source)
            if isinstance(function, ast.FunctionDef)
            if any(isinstance(n, ast.Call) and ast.unparse(n.func) in OPENS for n in ast.walk(function))
        }
        assert callers, name
        assert expected in (None, set(callers)), callers
        for function, body in callers.items():
            said = body + "".join(value for flag, value in flags.items() if flag in body)
            assert "O_NOFOLLOW" in said or "_RESOLVE_NO_SYMLINKS" in said, (name, function)


def test_the_store_never_pickles():
    """Nor does it load anything else that runs code of what it reads. The Celery plugin leaves that to Celery."""
    assert UNPICKLES.match("import pickle") and UNPICKLES.match("    from marshal import loads")
    found = [
        f"{name_of(path)}:{number}"
        for path in files(".py", ".pyx", ".pxd", under="cystore")
        if not name_of(path).startswith("cystore/celery/") and name_of(path) != PICKLED_BY_SPARK
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNPICKLES.match(line) or re.search(r"(?<![\w.])(?:eval|exec|__import__)\(", line)
    ]
    assert not found
