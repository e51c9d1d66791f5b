"""Goal: a person at a terminal sees long work go on, nobody else sees anything of it. Method: a real terminal (pty)."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading

import pytest

from cystore.operate.progress import PlainBar, RichBar, progress
from tests.support.cli import stores
from tests.support.cli.command import settings


class Terminal:
    """A terminal: `stream` writes to it, `shown` ends it and gives all that it was sent."""

    def __init__(self) -> None:
        self._shown, written = os.openpty()
        self.stream = open(written, "w")  # noqa: SIM115 - closed by shown
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # when nobody has it open for writing any more
            while part := os.read(self._shown, 65536):
                self._parts.append(part)

    def shown(self) -> bytes:
        self.stream.close()
        self._reader.join(60)
        os.close(self._shown)
        return b"".join(self._parts)


def test_no_terminal_no_progress():
    with progress(io.StringIO()) as report:
        assert report is None


def test_a_plain_bar():
    terminal = Terminal()
    bar = PlainBar(terminal.stream, first_after_s=0)
    bar("recover", 25, 100)
    bar("recover", 26, 100)  # too soon after the one before
    bar.close()
    line = "recover [" + "#" * 7 + "." * 23 + "]  25%"
    assert terminal.shown().decode() == "\r" + line + "\r" + " " * len(line) + "\r"


def test_short_work_shows_nothing():
    terminal = Terminal()
    with progress(terminal.stream, first_after_s=3600) as report:
        report("recover", 1, 2)
    assert terminal.shown() == b""


@pytest.mark.parametrize("total", [0, 100])
def test_any_numbers(total):
    terminal = Terminal()
    with progress(terminal.stream, first_after_s=0) as report:
        report("scan", 300, total)
    assert b"scan" in terminal.shown()


@pytest.mark.may_skip("rich comes with the extra cli")
def test_a_rich_bar():
    pytest.importorskip("rich", reason="rich comes with the extra cli")
    terminal = Terminal()
    with progress(terminal.stream, first_after_s=0) as report:
        assert isinstance(report, RichBar)
        report("recover", 25, 100)
        report("dispatch", 1, 2)
    shown = terminal.shown()
    assert b"recover" in shown
    assert b"dispatch" in shown


SLOW = """
import sys, cystore.operate.progress as progress
progress.FIRST_AFTER_S = progress.EVERY_S = 0
progress.progress.__wrapped__.__kwdefaults__["first_after_s"] = 0
from cystore.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "lines", "work"),
    [("dump", 500, b"messages"), ("rebuild", 1, b"dispatch"), ("verify", 1, b"verify")],
)
def test_a_command_shows_its_progress_to_a_terminal_only(command, store_path, name, lines, work):
    stores.write(store_path, 500)
    words = [sys.executable, "-c", SLOW, name, str(store_path), *settings(stores.SMALL)]
    terminal = Terminal()
    done = subprocess.run(
        words, env=command.environment, stdout=subprocess.PIPE, stderr=terminal.stream, timeout=60, check=True
    )
    assert work in terminal.shown()
    assert len(done.stdout.splitlines()) == lines
    done = subprocess.run(words, env=command.environment, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
