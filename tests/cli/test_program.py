"""Goal: the program behaves as one: help, settings, errors of one line, exit codes, signals, closed pipes. Method:
the command in a process, as a shell would run it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

import cystore
from cystore.operate import exits
from tests.support.cli import stores
from tests.support.cli.command import SMALL, settings
from tests.support.golden.stores import REPOSITORY

NAMES = ("info", "topics", "dump", "query", "put", "tail", "verify", "recover", "rebuild")
GROUPS = {"quarantine": ("list", "show", "restore")}
ARGUMENTS = {"query": ("t", "k"), "put": ("t",), "tail": ("t",)}


def test_help_names_every_command(command):
    text = command.ok("--help")
    for name in NAMES:
        assert f"\n    {name} " in text
    assert "exit codes:" in text
    assert command.ok("--version") == f"cystore {cystore.__version__}\n"


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command(command, name):
    text = command.ok(name, "--help")
    assert f"examples:\n  cystore {name} " in text or f"| cystore {name} " in text
    for option in ("--set NAME=VALUE", "--config FILE.toml", "--json", "PATH"):
        assert option in text


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group(command, group):
    text = command.ok(group, "--help")
    assert re.search(rf"\n    {group}\s", command.ok("--help"))
    for name in GROUPS[group]:
        assert f"\n    {name} " in text and f"  cystore {group} {name} " in text
        own = command.ok(group, name, "--help")
        assert f"examples:\n  cystore {group} {name} " in own
        assert "--json" in own and "PATH" in own


@pytest.mark.parametrize("module", ["cystore", "cystore.cli"])
def test_both_modules_run(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"cystore {cystore.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frobnicate",),
        ("info",),
        ("dump", "x", "--count", "0"),
        ("dump", "x", "--from", "-1"),
        ("info", "x", "--js"),
    ],
)
def test_wrong_usage(command, arguments):
    done = command.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: cystore" in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_settings_and_names_a_wrong_one(command, tmp_path, name):
    stores.write(tmp_path / "store", 1)
    for arguments in (
        ["--set", "mapped_file_size=3"],
        ["--set", "read_only"],
        ["--set", "max_queues=many"],
        ["--config", tmp_path / "none.toml"],
    ):
        done = command.run(name, tmp_path / "store", *ARGUMENTS.get(name, ()), *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"cystore {name}: error: ")
        assert done.stderr.count("\n") == 1


def test_a_file_of_settings(command, store_path, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[cystore]\n" + "".join(f"{name} = {value}\n" for name, value in SMALL.items()))
    command.ok("put", store_path, "t", "--create", "--config", path, stdin=b"body")
    assert (store_path / "commitlog" / ("0" * 20)).stat().st_size == SMALL[
        "mapped_file_size_commit_log_bytes"
    ]
    other = store_path.with_name("other")
    more = ["--set", "mapped_file_size_commit_log_bytes=65536", "--set", "max_message_size_bytes=1000"]
    command.ok("put", other, "t", "--create", "--config", path, *more, stdin=b"body")
    assert (other / "commitlog" / ("0" * 20)).stat().st_size == 65536


@pytest.mark.parametrize(
    "text", ["x = ", "cystore = 3", "no_such_setting = 1", "\udcff", 'record_format = "none"']
)
def test_a_file_that_is_no_settings(command, store_path, tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = command.run("put", store_path, "t", "--config", path)
    assert done.returncode == 2
    assert done.stderr.startswith("cystore put: error: ")
    assert done.stderr.count("\n") == 1
    assert not store_path.exists()


def test_an_error_names_path_and_remedy(command, store_path):
    with cystore.open(store_path, exclusive=True, **SMALL):
        done = command.run("put", store_path, "t", stdin=b"x")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(store_path) in line
    assert "`cystore info PATH` shows the process" in line


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (cystore.StoreFormatError("", path="/s/index/20260101000000000"), "; `cystore rebuild PATH` makes"),
        (
            cystore.StoreFormatError("", path="/s/consumequeue/t/0/00000000000000000000"),
            "; `cystore rebuild PATH` makes",
        ),
        (
            cystore.StoreFormatError("", path="/s/commitlog/00000000000000000000"),
            "; check PATH and the settings",
        ),
        (cystore.CorruptRecordError("", path="/s"), "; `cystore verify PATH` lists"),
        (cystore.MessageIllegalError(""), ""),
        (cystore.StoreConfigError("there is no setting 'x'"), "; settings are the fields"),
        (cystore.StoreConfigError("file_reserved_time_h must be 1 to 9, not 0"), "; settings are the fields"),
        (cystore.StoreConfigError("/r exists: choose another folder"), ""),
        (cystore.StoreConfigError("this is another folder", path="/srv/settings"), ""),
    ],
)
def test_what_to_do_about_an_error(error, remedy):
    assert exits.hint(error).startswith(remedy)
    assert bool(exits.hint(error)) is bool(remedy)


def test_a_newline_in_a_name_does_not_break_the_line(command, tmp_path):
    done = command.run("dump", tmp_path / "a\nb")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "a\\nb" in done.stderr


def test_reports_of_the_library_are_one_line_each(command, store_path):
    stores.write(store_path, 500, max_index_num=100)  # ten index files
    (store_path / "manifest").unlink()  # a store from before, which does not say how large they are
    done = command.run("query", store_path, "alpha", "key-8", *settings({**SMALL, "max_index_num": 200}))
    assert done.returncode == 0
    *lines, last = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("cystore: warning: ") for line in lines)
    assert last == "cystore: 8 more similar reports"


def test_the_reader_goes_away(command, store_path):
    stores.write(store_path, 2000)
    with command.start("dump", store_path, "--json") as process:
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


@pytest.mark.parametrize("name", ["dump", "info"])
def test_output_that_cannot_be_written(command, store_path, name):
    stores.write(store_path, 1)
    with (
        open("/dev/full", "wb") as full,
        command.start(name, store_path, *settings(SMALL), stdout=full) as process,
    ):
        assert process.wait(60) == 2
        assert (
            process.stderr.read() == f"cystore {name}: error: [Errno 28] No space left on device\n".encode()
        )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_with_the_store_closed(command, store_path, number, status):
    with command.start("put", store_path, "t", "--create", "--lines", *settings(SMALL)) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"t/0@0 ")
        process.send_signal(number)
        assert process.wait(60) == status
        assert process.stderr.read() == f"cystore: made a new store in {store_path}\n".encode()
    assert not (store_path / "abort").exists()


def test_starting_loads_little(command):
    """None of the packages that a command without a terminal does not need."""
    heavy = ("rich", "asyncio", "email", "http", "sqlite3", "multiprocessing", "difflib", "unittest")
    code = f"import sys, cystore.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=command.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_any_locale(command, store_path):
    stores.write(store_path, 0)
    command.ok("put", store_path, "t", "--key", "schlüssel", stdin="ü☃".encode())
    command.environment |= {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    assert "\\xfc\\u2603" in command.ok("dump", store_path)
    (row,) = command.json_lines("dump", store_path)
    assert row["keys"] == ["schlüssel"]


def test_closed_streams(command, store_path):
    """Whatever is opened next must not take their place."""
    words = shlex.join(
        [*command.words, "put", str(store_path), "t", "--create", "--allow-empty", "--json", *settings(SMALL)]
    )
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            f"{words} {closed}", shell=True, env=command.environment, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    with cystore.open(store_path, read_only=True) as store:
        assert [bytes(m.body) for m in store.scan()] == [b""] * 4


AS_NOBODY = """
import os, sys
from cystore.cli import main
from cystore.cli.program import build_parser
import difflib; build_parser().format_help()  # loads what the interpreter loads late: it may be out of reach afterwards
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments", [("dump",), ("info",), ("put", "t"), ("tail", "t", "-f"), ("verify",), ("recover",)]
)
def test_a_user_without_rights(command, store_path, arguments):
    """As root the command becomes another user once it is loaded."""
    stores.write(store_path, 3)
    store_path.chmod(0o700 if os.geteuid() == 0 else 0o000)
    command.words = [sys.executable, "-c", AS_NOBODY]
    done = command.run(arguments[0], store_path, *arguments[1:], *settings(SMALL))
    store_path.chmod(0o700)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(store_path) in done.stderr
    assert "run it as the user that owns the store" in done.stderr
