"""Shells at a terminal, to press the key for completion in."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

SHELLS = ("bash", "zsh")
TIMEOUT_S = 60.0
# Ctrl-T writes the line, as it is now, to a pipe. Ctrl-U empties it.
START = {
    "bash": r"""
source {script}
bind -x '"\C-t": printf "%s\n" "$READLINE_LINE" > {pipe}'
printf 'ready\n' > {pipe}
""",
    "zsh": r"""
autoload -Uz compinit && compinit -u -D
source {script}
bindkey -e
tell() {{ print -r -- "$BUFFER" > {pipe} }}
zle -N tell
bindkey '^T' tell
bindkey '^U' kill-whole-line
print ready > {pipe}
""",
}
COMMAND = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


class Shell:
    """An interactive shell with the completion script, in a folder. A context manager."""

    def __init__(self, name: str, script: Path, folder: Path, scratch: Path) -> None:
        self._pipe = scratch / "pipe"
        os.mkfifo(self._pipe)
        self._read = os.open(self._pipe, os.O_RDWR)
        start = scratch / "start"
        start.write_text(START[name].format(script=script, pipe=self._pipe))
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            COMMAND[name], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(scratch), "TERM": "dumb", "PS1": "$ ", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        os.close(theirs)
        self._type(f"source {start}\n")
        assert self._told() == "ready"

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)
        os.close(self._read)

    def completed(self, line: str) -> str:
        """The line after the key was pressed behind it."""
        self._type(f"\x15{line}\t\x14")
        return self._told()

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _told(self) -> str:
        """The next line of the pipe. Takes what the shell shows meanwhile, else it would wait for a reader."""
        told = b""
        while not told.endswith(b"\n"):
            ready, _, _ = select.select([self._read, self._terminal], [], [], TIMEOUT_S)
            assert ready, "the shell says nothing"
            if self._terminal in ready:
                os.read(self._terminal, 65536)
            if self._read in ready:
                told += os.read(self._read, 65536)
        return told.decode().removesuffix("\n")


def fish_candidates(script: Path, folder: Path, scratch: Path, line: str) -> set[str]:
    """The words that fish offers for the last one of a line."""
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C {line!r}"],
        cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(scratch)}, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    return {row.partition("\t")[0] for row in done.stdout.splitlines()}


def is_there(name: str) -> bool:
    """Whether this host has the shell."""
    return shutil.which(name) is not None
