"""Goal: each example does what its page says, ends by itself, and leaves nothing behind. Method: the command of its
README, run literally in the clone, in an empty folder for temporary files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure.sources import ROOT
from tools import redis_server

EXAMPLES = ROOT / "examples"
PATIENCE_S = 300
NO_REDIS = "no redis-server to start"
# Example: lines that it must write.
SAYS = {
    "web_shop": (
        r"order-17: tea and cup", r"order-18: declined", r"\* .*SUCCEEDED   ship-17 ", r"cup-17 .*try 2",
        r"FAILED      pay-18 .*ValueError\('declined'\)", r"SKIPPED     ship-18 .*because of pay-18",
    ),
    "audit_log": (
        r"FAILED .*transfer .*'A-17', 5000.*<redacted>.*bob may not", r"SENT  .*close-A-17",
        r"tasks: 2  runs: 4  failed: 1 ", r"files of the store with the PIN: 0",
    ),
    "replay": (
        r"FAILED .*'Dear eve'.*FileNotFoundError", r"\S+ sent again as \S+", r"written: \['ann', 'bob', 'eve'\]",
    ),
    "django": (
        r"no issues", r"tea paid", r"ValueError\('declined'\)", r"tasks in the admin: 2",
        r"the admin says: Sent again as", r"orders that are paid: 1",
    ),
    "event_log": (
        r"new events: 400", r"billing read 400", r"mail read 400 and order 3 last: True", r"cleaned [1-9]\d* segments",
        r"the auditor's event is there: True",
    ),
    "reminders": (
        r"was killed: True\nwaits: feed the cat, in 10 days\nwaits: call ann, in 14 days\nwaits: water",
        r"moved: True\ncancelled: True\nnow: call ann\ncancelled once more: False\nwaits: feed the cat, in 10 days\n$",
    ),
    "rocketmq_store": (r"V6Topic/1: queue offsets 0 to 35", r"key common: \[29, 26", r"messages in the log: 65"),
}  # fmt: skip
NEED_REDIS = {"web_shop", "audit_log", "replay", "django"}


def commands(page: Path) -> list[str]:
    """The command lines of a page."""
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
    ]
    return [" ".join(shlex.split(line, comments=True)) for line in lines]


def test_every_example_is_tried_and_listed():
    folders = {path.parent.name for path in EXAMPLES.glob("*/__main__.py")}
    assert folders == set(SAYS)
    listed = commands(EXAMPLES / "README.md")
    assert {line.rpartition(".")[2] for line in listed} == folders
    assert all(commands(EXAMPLES / name / "README.md")[0] in listed for name in folders)


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.may_skip(NO_REDIS)
def test_it_runs(tmp_path, name):
    if name in NEED_REDIS and redis_server.find_executable() is None:
        pytest.skip(NO_REDIS)
    words = shlex.split(commands(EXAMPLES / name / "README.md")[0])
    assert words[:2] == [".venv/bin/python", "-m"]
    scratch = tmp_path / "t"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)}, text=True, capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    missing = [pattern for pattern in SAYS[name] if not re.search(pattern, done.stdout)]
    assert not missing, done.stdout + done.stderr
    assert not list(scratch.iterdir())
    assert not _processes_with(str(scratch))


def _processes_with(text: str) -> list[str]:
    """The command lines of the processes whose environment or command has a text."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
                known = command + (folder / "environ").read_bytes()
            except OSError:  # it ended, or is another user's
                continue
            if text.encode() in known:
                found.append(command.replace(b"\0", b" ").decode())
    return found
