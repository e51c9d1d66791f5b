"""Runs the real command in a process of its own (see forked_python.py), under the same build as the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import REPOSITORY, Golden
from tests.support.processes.forked_python import Python

TIMEOUT_S = 120
# Small files, so that a test store is small.
SMALL = {
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}


def settings(values: dict[str, Any]) -> list[str]:
    """--set NAME=VALUE for each."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def golden_settings(golden: Golden) -> list[str]:
    """--set for what shapes the files of a golden store."""
    return settings(cystore_config(golden.spec))


class Command:
    """`cystore` as a user runs it, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = [os.environ.get("PYTHONPATH", ""), str(REPOSITORY)]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.words = [sys.executable, "-m", "cystore.cli"]

    def run(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """The command's exit code and output."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(stdin, TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
        decoded = (out.decode(), err.decode())
        assert "Traceback" not in decoded[1], decoded[1]
        return subprocess.CompletedProcess(process.args, process.returncode, *decoded)

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        """The command, running; the caller ends it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return Python([*self.words, *map(str, arguments)], cwd=self.folder, env=self.environment, **pipes)

    def ok(self, *arguments: object, stdin: bytes = b"") -> str:
        """Standard output of a run that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done.stdout

    def json_lines(self, *arguments: object, stdin: bytes = b"") -> list[Any]:
        """The JSON values that a successful run with --json writes."""
        return [json.loads(line) for line in self.ok(*arguments, "--json", stdin=stdin).splitlines()]
